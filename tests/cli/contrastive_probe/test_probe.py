import csv
import json
from pathlib import Path

import pytest

from raybio.cli.evaluate import app
from raybio.core.errors import ConfigError, DataError
from tests.encoders.tiny_text import save_tiny

HEADER = "head_cui,head_name,rel,tail_names,tail_cuis"


@pytest.fixture
def medlama(tmp_path: Path) -> Path:
    return write_medlama(tmp_path / "medlama")


def write_medlama(folder: Path) -> Path:
    """Two relations, full and hard, in MedLAMA's layout."""
    folder.mkdir()
    rows = {
        "may_treat": [
            "C1,Asthma,may_treat,risk factors || life,C2 || C3",
            "C3,life,may_treat,illness,C4",
        ],
        "occurs_after": [
            "C5,cohort,occurs_after,tropical country,C6",
            "C2,risk factors,occurs_after,Asthma,C1",
        ],
    }
    for relation, lines in rows.items():
        (folder / f"{relation}_2.csv").write_text("\n".join([HEADER, *lines]) + "\n")
        (folder / f"{relation}_1_hard.csv").write_text("\n".join([HEADER, lines[0]]) + "\n")
    return folder


def call(*arguments: object) -> None:
    app([str(argument) for argument in arguments], standalone_mode=False)


def test_probing_writes_a_report_and_a_sheet_that_is_read_with_scores(medlama, tmp_path, capsys):
    out, model = tmp_path / "report", save_tiny(tmp_path / "tiny")
    call(
        "probe",
        "--model",
        model,
        "--benchmark",
        medlama,
        "--out",
        out,
        "--subset",
        "both",
        "--sheet",
        2,
    )
    assert "probing tiny, cls pooling, full: 6 names, 4 queries" in capsys.readouterr().out
    data = json.loads((out / "report.json").read_text())
    assert [one["name"] for one in data["sets"]] == ["full", "hard"]
    assert data["sets"][0]["results"][0]["micro"]["10"]["value"] == 1  # fewer than 10 names
    assert "## Scores, hard set" in (out / "report.md").read_text()
    sheet = out / "sheet_full.csv"
    with sheet.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 6
    with sheet.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(row | {"score": "5"} for row in rows)
    call("sheet", "--filled", sheet, "--benchmark", medlama, "--out", tmp_path / "scores")
    assert "12 predictions: 100.00% scored 5" in capsys.readouterr().out
    assert (tmp_path / "scores/scores.png").is_file() and (tmp_path / "scores/scores.md").is_file()
    with pytest.raises(
        DataError, match="sheet_full.csv: has 12 scores filled in"
    ):  # before the model is looked for
        call("probe", "--model", "none", "--benchmark", medlama, "--out", out, "--sheet", 2)


def test_the_sources_of_biolama_are_columns_of_one_table(medlama, tmp_path):
    """The paper's Table 7."""
    model, out, sources = save_tiny(tmp_path / "tiny"), tmp_path / "report", []
    for source, answer in (("CTD", "life"), ("wikidata", "illness")):
        folder = tmp_path / "biolama" / source
        (folder / "triples_processed" / "P1").mkdir(parents=True)
        (folder / "prompts").mkdir()
        record = {"sub_label": "asthma", "sub_uri": "a", "obj_labels": [answer], "obj_uris": ["b"]}
        (folder / "triples_processed" / "P1" / "test.jsonl").write_text(json.dumps(record))
        (folder / "prompts" / "manual.jsonl").write_text(
            json.dumps({"relation": "P1", "template": "[X] has [Y] ."})
        )
        sources += ["--benchmark", folder]
    call("probe", "--model", model, *sources, "--out", out)
    with (out / "tables/table_7_biolama_acc_1_acc_5.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["approach", "model", "CTD", "wikidata"]
    assert rows[1] == ["chance", "", "50.00 / 100.00", "50.00 / 100.00"]
    ours = next(row for row in rows if row[:2] == ["ours", "tiny"])
    assert ours[2].endswith(" / 100.00")
    assert ["mask predict (published)", "BERT", "0.06 / 1.20", "1.16 / 6.04"] in rows
    with pytest.raises(
        ConfigError, match="CTD: .*CTD has a set named CTD too.*Probe them one by one"
    ):
        call("probe", "--model", model, *sources[:2], *sources[:2], "--out", out)


def test_a_relation_without_a_prompt_is_named(medlama, tmp_path, capsys):
    model, out = save_tiny(tmp_path / "tiny"), tmp_path / "report"
    (medlama / "eases_1.csv").write_text(f"{HEADER}\nC1,Asthma,eases,life,C3\n")
    call("probe", "--model", model, "--benchmark", medlama, "--out", out)
    assert "relations without a prompt, queried by their names: eases\n" in capsys.readouterr().out
    assert (
        json.loads((out / "report.json").read_text())["settings"]["relations without a prompt"]
        == "eases"
    )
    (medlama / "prompts.csv").write_text(
        "pid,default_prompt,human_prompt\neases,[X] eases [Y].,[X] brings ease to [Y].\n"
    )
    call("probe", "--model", model, "--benchmark", medlama, "--out", out)
    assert "relations without a prompt" not in capsys.readouterr().out


def test_layers_are_probed_and_plotted(medlama, tmp_path):
    out, model = tmp_path / "report", save_tiny(tmp_path / "tiny")
    call("probe", "--model", model, "--benchmark", medlama, "--out", out, "--layers", "1,2")
    labels = [
        one["label"] for one in json.loads((out / "report.json").read_text())["sets"][0]["results"]
    ]
    assert labels == ["tiny, 1 layers", "tiny, 2 layers"]
    mine = out / "tables/mine.csv"
    mine.write_text("kept")
    assert (out / "plots/layers_full_acc10.png").is_file()
    report = (out / "report.md").read_text()
    assert "## Label-free layer selection of tiny, full set: acc@10, macro" in report
    # Its two wordings are one, so whatever is predicted would agree.
    assert "| occurs_after |  |  |" in report
    assert (out / "tables/agreement_of_two_wordings_above_chance_full_set.csv").is_file()
    # A later report there leaves nothing of this one, and what is another's alone.
    call("probe", "--model", model, "--benchmark", medlama, "--out", out)
    assert not [
        *out.glob("plots/layers_*"),
        *out.glob("tables/agreement_*"),
        *out.glob("tables/by_layer_*"),
    ]
    there = {path.relative_to(out).as_posix() for path in out.glob("*/*")}
    assert there == {*json.loads((out / "report.json").read_text())["files"], "tables/mine.csv"}
    assert mine.read_text() == "kept"


def test_layers_of_a_benchmark_with_one_wording_have_no_agreement(tmp_path):
    out, model = tmp_path / "report", save_tiny(tmp_path / "tiny")
    (tmp_path / "eases_1.csv").write_text(f"{HEADER}\nC1,Asthma,eases,life,C3\n")
    call("probe", "--model", model, "--benchmark", tmp_path, "--out", out, "--layers", "1,2")
    report = (out / "report.md").read_text()
    assert "## By layer, full set" in report
    assert "greement" not in report and "Label-free" not in report


def test_of_several_layers_the_sheet_has_the_predictions_of_the_deepest(medlama, tmp_path):
    model = save_tiny(tmp_path / "tiny")

    def sheet_of(*layers):
        out = tmp_path / "-".join(["report", *layers])
        call("probe", "--model", model, "--benchmark", medlama, "--out", out, "--sheet", 4, *layers)
        return (out / "sheet_full.csv").read_text()

    assert sheet_of("--layers", "1,2") == sheet_of()


def test_a_sample_of_the_queries_is_probed_and_the_report_says_so(medlama, tmp_path, capsys):
    out, model = tmp_path / "report", save_tiny(tmp_path / "tiny")
    sampled = ["--queries-per-relation", 1, "--sheet", 4]
    call("probe", "--model", model, "--benchmark", medlama, "--out", out, *sampled)
    assert "6 names, 2 queries" in capsys.readouterr().out
    settings = json.loads((out / "report.json").read_text())["settings"]
    assert settings["queries per relation"] == 1
    assert settings["pooling"] == "cls"
    # Its sheet is read with the whole benchmark.
    sheet = out / "sheet_full.csv"
    sheet.write_text(sheet.read_text(encoding="utf-8-sig").replace(",\n", ",3\n"), encoding="utf-8")
    call("sheet", "--filled", sheet, "--benchmark", medlama, "--out", tmp_path / "scores")
    assert "12 predictions: 0.00% scored 5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--layers", "3,x"], "--layers 3,x: want numbers of layers"),
        (["--layers", "0"], "--layers 0: want numbers of layers"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_read(option, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        call(
            "probe",
            "--model",
            "none",
            "--benchmark",
            tmp_path / "none",
            "--out",
            tmp_path / "out",
            *option,
        )
