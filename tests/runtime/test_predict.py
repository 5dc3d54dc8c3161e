"""Predictions for new inputs equal those of the training process, from a fresh process."""

import csv
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import raybio
from raybio.core.errors import ConfigError, DataError
from raybio.core.final_report import FinalReport
from raybio.methods import METHODS
from raybio.methods.sppt.downstream.config import TASKS
from raybio.methods.sppt.downstream.formats.read import read_task_files
from raybio.methods.sppt.downstream.prepare import prepare_task
from raybio.methods.sppt.downstream.scores import class_set_scores
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.runtime.predict import predict_file, read_predictor
from raybio.store import table_rows
from raybio.training.collective import SingleProcess
from raybio.training.loop import fit
from tests.jobs.test_finetune_job import write_task
from tests.methods.conformance_cases import tiny_config
from tests.methods.sppt.downstream.test_own_tables import prepared, rows_of, write_csv
from tests.methods.sppt.downstream.test_system import task_of
from tests.paths import ROOT
from tests.script_process import Done, run_script

JOB = ROOT / "jobs" / "predict.py"


class Trained(NamedTuple):
    """A finished run of ``finetune``.

    Attributes:
        store: its task.
        folder: its export.
        final: its final evaluation.
    """

    store: TaskStore
    folder: Path
    final: FinalReport

    @property
    def rows(self) -> np.ndarray:
        return self.store.split_rows("test")


pytestmark = pytest.mark.first_tier("remote_homology", "scicite")


@pytest.fixture(
    scope="module",
    params=["remote_homology", "secondary_structure", "stability", "scicite", "text_multilabel"],
)
def trained(request, tiny_task: TaskStore, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp(request.param)
    changes = {"schedule.max_steps": 15}
    if request.param == "remote_homology":
        store = tiny_task
    elif request.param == "scicite":
        data = write_task(folder / "data")
        store = prepare_task(folder / "store", "scicite", *read_task_files("scicite", data))
        changes["encoder.vocabulary_size"] = 60
    elif request.param == "text_multilabel":
        data = write_csv(folder / "data.csv", rows_of(request.param))
        store = prepared(request.param, data, folder / "store")
        changes["encoder.vocabulary_size"] = 60
    else:
        store = task_of(folder, request.param)
        changes["encoder.max_length"] = 24  # some are cut
    config = tiny_config("finetune", **changes)
    system = METHODS["finetune"].build(config, store.path)
    list(fit(system, config))
    final = system.final_evaluate(system.model, SingleProcess())
    return Trained(store, system.export(folder / "export", {}), final)


def predict(folder: Path, *arguments: object) -> Done:
    return run_script(JOB, folder, *map(str, arguments))


def write_inputs(trained: Trained, folder: Path) -> dict[str, Path]:
    """Write the test rows in every format that the model reads."""
    texts = trained.store.texts(trained.rows)
    ids = [f"row{row}" for row in trained.rows]
    on_texts = TASKS[trained.store.task].on_texts
    column = "text" if on_texts else "Sequence"
    table = pa.table({"id": ids, "note": ["a"] * len(ids), column: texts})
    pa.csv.write_csv(table, folder / "inputs.csv")
    pq.write_table(table, folder / "inputs.parquet")
    (folder / "inputs.jsonl").write_text("\n".join(map(json.dumps, table.to_pylist())))
    lines = [f"{key}\t{text}\n" for key, text in zip(ids, texts, strict=True)]
    (folder / "inputs.tsv").write_text(f"id\t{column}\n" + "".join(lines))
    plain = folder / "inputs.txt"
    if on_texts:
        plain.write_text("".join(lines))
    else:
        plain.write_text(
            "".join(f">{key} x\n{text}\n" for key, text in zip(ids, texts, strict=True))
        )
    return {path.suffix: path for path in folder.glob("inputs.*")}


def test_predictions_of_test_rows_are_those_of_the_final_evaluation(
    trained: Trained, tmp_path: Path
) -> None:
    inputs = write_inputs(trained, tmp_path)
    done = predict(
        tmp_path, trained.folder, "--input", inputs[".txt"], "--out", "new/predictions.jsonl"
    )
    assert done.returncode == 0, done.stderr
    assert f"{len(trained.rows)} predictions for {len(trained.rows)} inputs" in done.stdout
    lines = (tmp_path / "new" / "predictions.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [one["id"] for one in found] == [f"row{row}" for row in trained.rows]
    expected = trained.final.unit_scores["trained"]["test"]
    assert expected.unit_U.tolist() == trained.rows.tolist()
    gold = trained.store.target_N[trained.rows]
    names = trained.store.class_names
    labels = TASKS[trained.store.task].labels
    if labels == "class":
        correct = [
            one["class"] == names[int(label)] for one, label in zip(found, gold, strict=True)
        ]
        assert correct == expected.value_by_measure["accuracy"].astype(bool).tolist()
        assert sum(correct) > 0
        for one in found:
            assert one["probability"] == max(one[f"p({name})"] for name in names)
            assert sum(one[f"p({name})"] for name in names) == pytest.approx(1)
    elif labels == "class_set":
        predicted_QC = np.array(
            [[name in one["classes"].split(";") for name in names] for one in found]
        )
        is_probable_QC = [[one[f"p({name})"] >= 0.5 for name in names] for one in found]
        assert predicted_QC.tolist() == is_probable_QC
        assert 0 < predicted_QC.sum() < predicted_QC.size
        scores = class_set_scores(predicted_QC, trained.store.targets(trained.rows))
        for measure, value_Q in scores.items():
            np.testing.assert_allclose(expected.value_by_measure[measure], value_Q)
        assert "those of a probability of at least 0.5, of 2: helix, strand" in (
            trained.folder / "README.md"
        ).read_text().replace("\n", " ")
        head = json.loads((trained.folder / "head.json").read_text())
        assert head["threshold"] == 0.5 and head["labels"] == "class_set"
    elif labels == "number":
        number = np.array([one["number"] for one in found])
        error = -((number - gold) ** 2)
        np.testing.assert_allclose(
            error, expected.value_by_measure["negative_mse"], rtol=1e-5, atol=1e-7
        )
    else:
        correct, labeled = [], []
        for row, one in zip(trained.rows, found, strict=True):
            start, stop = trained.store.indptr_N1[row : row + 2]
            assert one["num_residues"] == stop - start
            assert len(one["tags"]) == min(stop - start, 23)  # [CLS] counts
            gold_tags = [names[label] for label in trained.store.class_T[start:stop]]
            correct.append(sum(map(str.__eq__, one["tags"], gold_tags)))
            labeled.append(len(one["tags"]))
        accuracy = expected.value_by_measure["accuracy"].mean()
        assert sum(correct) / sum(labeled) == pytest.approx(accuracy, abs=1e-6)
        num_cut = sum(one["num_residues"] > 23 for one in found)
        assert num_cut and f"sequences: {num_cut} of 20" in done.stdout, done.stdout
    in_memory = raybio.load(trained.folder).predict(trained.store.texts(trained.rows))
    for one, value in zip(found, in_memory, strict=True):
        del one["id"]
        assert value == {
            # Another process may round in another way.
            name: pytest.approx(expected, rel=1e-5) if isinstance(expected, float) else expected
            for name, expected in one.items()
        }


def test_all_formats_of_input_and_output_hold_the_same_and_a_second_run_the_same_bytes(
    trained: Trained, tmp_path: Path
) -> None:
    inputs = write_inputs(trained, tmp_path)
    assert len(inputs) == 5
    outputs = {}
    for suffix, path in inputs.items():
        out = tmp_path / f"from{suffix[1:]}.tsv"
        predict_file(read_predictor(trained.folder), [path], out)
        outputs[suffix] = out.read_bytes()
    assert len(set(outputs.values())) == 1
    for suffix in (".jsonl", ".parquet"):
        predict_file(read_predictor(trained.folder), [inputs[".tsv"]], tmp_path / f"p{suffix}")
    rows = pq.read_table(tmp_path / "p.parquet").to_pylist()
    assert rows == [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    with (tmp_path / "fromtsv.tsv").open(newline="") as file:
        for row, cells in zip(rows, csv.DictReader(file, dialect="excel-tab"), strict=True):
            assert cells.keys() == row.keys()
            for name, value in row.items():
                if isinstance(value, list):
                    assert cells[name].split(" ") == value
                elif isinstance(value, float):
                    assert float(cells[name]) == pytest.approx(value, rel=1e-8)
                else:
                    assert cells[name] == str(value)


def test_many_classes_are_predicted_in_small_blocks(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = write_inputs(trained, tmp_path)
    predictor = read_predictor(trained.folder)
    monkeypatch.setattr(table_rows, "CELLS_AT_ONCE", 4 * len(predictor.columns))
    with predictor.open_files([inputs[".tsv"]], max_bad_share=0, strip_stop=False) as read:
        sizes = [len(block.keys) for block in read.blocks()]
    assert max(sizes) == 4 and sum(sizes) == len(trained.rows)


def test_remarks_say_that_rows_are_numbered_and_how_many_have_no_class(
    trained: Trained, tmp_path: Path
) -> None:
    predictor = read_predictor(trained.folder)
    column = "text" if TASKS[trained.store.task].on_texts else "sequence"
    inputs = tmp_path / "inputs.csv"
    said: list[str] = []
    lines = [f"id{row},{text}\n" for row, text in enumerate(trained.store.texts(trained.rows))]
    for header in ("PMID", "id"):
        inputs.write_text("".join([f"{header},{column}\n", *lines]))
        predict_file(predictor, [inputs], tmp_path / f"{header}.jsonl", say=said.append)
    numbered = "inputs.csv: no column id: rows are numbered; rename yours"
    assert said.count(numbered) == 1
    first = json.loads((tmp_path / "PMID.jsonl").read_text().splitlines()[0])
    assert first["id"] == "1"
    rows = [json.loads(line) for line in (tmp_path / "id.jsonl").read_text().splitlines()]
    num_empty = sum(row.get("classes") == "" for row in rows)
    remark = f"{num_empty} of {len(rows)} inputs got no class: no probability reaches 0.5"
    assert said.count(remark) == 2 * (num_empty > 0)
    if TASKS[trained.store.task].labels == "class_set":
        assert num_empty > 0


def test_bad_input_is_refused_before_a_model_is_loaded(trained: Trained, tmp_path: Path) -> None:
    (trained.folder / "model.safetensors").rename(tmp_path / "away")
    try:
        on_texts = TASKS[trained.store.task].on_texts
        predictor = read_predictor(trained.folder)
        wrong = tmp_path / "wrong.txt"
        wrong.write_text(">p\nMKT\n" if on_texts else "a text\n")
        with pytest.raises(DataError, match=r"wrong.txt, line 1: begins with .*>.*"):
            predict_file(predictor, [wrong], tmp_path / "out.tsv")
        with pytest.raises(ConfigError, match="out.xls: want a file that ends in .tsv, .jsonl"):
            predict_file(predictor, [wrong], tmp_path / "out.xls")
        with pytest.raises(DataError, match="nowhere.txt: does not exist"):
            predict_file(predictor, [tmp_path / "nowhere.txt"], tmp_path / "out.tsv")
        table = tmp_path / "table.csv"
        table.write_text("name,seq\na,MKT\n")
        column = "text" if on_texts else "sequence"
        with pytest.raises(
            DataError,
            match=f"has the columns name, seq; want one named '{column}'.*or add such a line",
        ):
            predict_file(predictor, [table], tmp_path / "out.tsv")
        table.write_text(f"id,{column}\na,MKT\nb\n")
        with pytest.raises(DataError, match="table.csv, line 3: has 1 columns, want 2"):
            predict_file(predictor, [table], tmp_path / "out.tsv")
        table.write_text(f"id,{column}\na,\nb,MKT\n")
        with pytest.raises(DataError, match=r"1 of 2 .* records are bad .*first table.csv:2"):
            predict_file(predictor, [table], tmp_path / "out.tsv")
        lines = tmp_path / "table.jsonl"
        lines.write_text(f'{{"{column}": "MKT"}}\n')
        with pytest.raises(ConfigError, match="table.jsonl: is an input, which would be lost"):
            predict_file(predictor, [wrong, lines], lines)
        assert lines.read_text() == f'{{"{column}": "MKT"}}\n'
        (tmp_path / "torn.parquet").write_bytes(b"PAR1 torn")
        with pytest.raises(DataError, match="torn.parquet: cannot be read as Parquet"):
            predict_file(predictor, [tmp_path / "torn.parquet"], tmp_path / "out.tsv")
        assert not (tmp_path / "out.tsv").exists()
    finally:
        (tmp_path / "away").rename(trained.folder / "model.safetensors")


def test_a_folder_without_a_head_says_so(tiny_store, tmp_path: Path) -> None:
    folder = (
        METHODS["sppt_protein"]
        .build(tiny_config("sppt_protein"), tiny_store.path)
        .export(tmp_path / "export", {})
    )
    with pytest.raises(ConfigError, match="has no head that predicts; want a run of finetune"):
        read_predictor(folder)
    with pytest.raises(ConfigError, match="has no head that predicts"):
        raybio.load(folder).predict(["MKT"])
    done = predict(tmp_path, tmp_path / "exprot", "--input", __file__, "--out", "x.tsv")
    assert done.returncode == 2
    assert "MODEL" in done.stderr and "did you mean export?" in done.stderr
