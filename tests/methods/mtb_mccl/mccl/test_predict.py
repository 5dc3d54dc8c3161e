"""Relations extracted from files equal the predictions on a store."""

import csv
import json
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

import raybio
from raybio.core.errors import ConfigError, DataError
from raybio.core.records import read_record, write_record
from raybio.methods import METHODS
from raybio.methods.mtb_mccl.documents.entities import id_of_name
from raybio.methods.mtb_mccl.documents.formats import read_documents
from raybio.methods.mtb_mccl.documents.prepare import prepare_documents, prepare_unlabeled
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mccl import system as relation_extraction
from raybio.methods.mtb_mccl.mccl.classifier import embed_with_frozen, predict_classes
from raybio.methods.mtb_mccl.mccl.config import LINEAR, KnnSettings
from raybio.methods.mtb_mccl.mccl.labeled_pairs import LabeledPairs
from raybio.methods.mtb_mccl.mccl.predict import (
    DocumentBlock,
    RelationPredictor,
    predict_documents,
)
from raybio.methods.mtb_mccl.mccl.trained_model import load_relation_model
from raybio.runtime.predict import predict_file, read_predictor
from raybio.store.quarantine import Quarantine
from raybio.training.collective import SingleProcess
from raybio.training.loop import fit
from tests.jobs.test_sppt_job import run
from tests.methods.conformance_cases import tiny_config
from tests.methods.mtb_mccl.documents.test_formats import DOCRED
from tests.methods.mtb_mccl.documents.test_prepare import pubtator
from tests.paths import ROOT


@pytest.fixture(scope="module", params=["mccl", pytest.param("ce", marks=pytest.mark.nightly)])
def trained(request, tiny_documents: DocumentStore, tmp_path_factory) -> Path:
    changes = {
        "schedule.max_steps": 40,
        "plan.global_batch_rows": 16,
        "objective.kind": request.param,
    }
    config = tiny_config("relation_finetune", **changes)
    system = relation_extraction.build(config, tiny_documents.path)
    list(fit(system, config))
    folder = tmp_path_factory.mktemp("export")
    final = system.final_evaluate(system.model, SingleProcess())
    (folder / "final.json").write_text(json.dumps(final.scores["trained"]["test"], default=float))
    return system.export(folder / "model", {})


def find(folder: Path, source: Path, out: Path) -> int:
    """Write the relations of a file, and return their number."""
    predictor = read_predictor(folder)
    # The command checks the output's suffix by the method alone, before torch is imported.
    declared = METHODS["relation_finetune"].predictor
    assert declared is not None
    assert declared.document_suffixes == tuple(predictor.document_writers)
    return predict_file(predictor, [source], out).num_rows


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file, dialect="excel-tab")]


def test_files_give_the_relations_that_the_same_documents_give_in_a_store(
    trained, tiny_documents, tmp_path
) -> None:
    source = tiny_documents.path.parent / "test.PubTator"
    (tmp_path / "unlabeled.PubTator").write_text(
        "".join(
            line for line in source.read_text().splitlines(keepends=True) if line.count("\t") != 3
        )
    )
    model = load_relation_model(trained)
    queries = embed_with_frozen(model.frozen, LabeledPairs(tiny_documents, "test", 1.0, seed=0))
    predicted_PC = predict_classes(model.classifier, model.knn_settings, queries.pairs.embedding_PD)
    expected = set()
    for pair, label in zip(*np.nonzero(predicted_PC), strict=True):
        row = int(queries.pairs.row_P[pair])
        keys = tiny_documents.keys(row)
        # The entity that is mentioned first comes first, and its key is "its type:its id".
        entities = sorted(int(end_P[pair]) for end_P in queries.pairs[2:])
        ids = [
            tiny_documents.entity_keys[int(keys[entity])].as_py().split(":", 1)[1]
            for entity in entities
        ]
        expected.add((tiny_documents.document_id(row), *ids, tiny_documents.relation_names[label]))
    for name, file in (("labeled", source), ("unlabeled", tmp_path / "unlabeled.PubTator")):
        out = tmp_path / "new" / f"{name}.tsv"
        assert find(trained, file, out) == len(expected) > 10
        found = table(out)
        assert {
            (one["id"], one["head_id"], one["tail_id"], one["relation"]) for one in found
        } == expected
        for one in found:
            for end in ("head", "tail"):
                mention = [one["id"], one[f"{end}_start"], one[f"{end}_end"], one[end]]
                assert "\n" + "\t".join(mention) + "\t" in source.read_text()
            assert one["pair"] == "unordered"
            assert np.isfinite(float(one["score"]))
    assert (tmp_path / "new" / "labeled.tsv").read_bytes() == (
        tmp_path / "new" / "unlabeled.tsv"
    ).read_bytes()


def to_bioc(source: Path, out: Path) -> Path:
    """Write a PubTator file of titles and mentions as BioC JSON."""
    document_by_id: dict[str, dict] = {}
    for line in source.read_text().splitlines():
        if "|t|" in line:
            document_id, text = line.split("|t|")
            document_by_id[document_id] = {"offset": 0, "text": text, "annotations": []}
        elif "|a|" in line:
            document_id, text = line.split("|a|")
            document_by_id[document_id]["text"] += f" {text}"
        elif line.count("\t") == 5:
            document_id, start, end, name, kind, ids = line.split("\t")
            location = {"offset": int(start), "length": int(end) - int(start)}
            annotation = {
                "infons": {"type": kind, "identifier": ids},
                "text": name,
                "locations": [location],
            }
            document_by_id[document_id]["annotations"].append(annotation)
    documents = [
        {"id": document_id, "passages": [passage]}
        for document_id, passage in document_by_id.items()
    ]
    out.write_text(json.dumps({"documents": documents}))
    return out


@pytest.mark.nightly
def test_ids_are_those_of_the_input_whatever_its_format(trained, tiny_documents, tmp_path) -> None:
    plain = tiny_documents.path.parent / "test.PubTator"
    written = "\\1MESH:\\2(Tax:9606)"
    prefixed = tmp_path / "prefixed.PubTator"
    prefixed.write_text(
        re.sub(r"^((?:[^\t\n]*\t){5})(.+)$", written, plain.read_text(), flags=re.MULTILINE)
    )
    inputs = {
        "plain": plain,
        "prefixed": prefixed,
        "bioc": to_bioc(prefixed, tmp_path / "bioc.json"),
    }
    tables = {}
    for name, path in inputs.items():
        find(trained, path, tmp_path / f"{name}.tsv")
        tables[name] = table(tmp_path / f"{name}.tsv")
    assert len(tables["plain"]) > 10
    assert tables["bioc"] == tables["prefixed"]
    expected = [
        one | {f"{end}_id": f"MESH:{one[f'{end}_id']}(Tax:9606)" for end in ("head", "tail")}
        for one in tables["plain"]
    ]
    assert tables["prefixed"] == expected
    gene_lines = [line.split("\t") for line in plain.read_text().splitlines() if "Gene" in line]
    mentioned = {(cells[0], cells[5]) for cells in gene_lines}
    for one in tables["plain"]:
        for end in ("head", "tail"):
            is_gene = one[f"{end}_type"] == "Gene"
            assert ((one["id"], one[f"{end}_id"]) in mentioned) == is_gene


def test_pairs_of_types_that_training_never_related_are_not_requested(
    trained, tiny_documents, tmp_path
) -> None:
    model = load_relation_model(trained)
    types = {kind for pair in model.candidate_types for kind in pair}
    strange = pubtator(
        tmp_path / "one.PubTator.gz", ("1", "Mars:Planet:1 and Venus:Planet:2 meet", [])
    )
    assert "Planet" not in types
    assert find(trained, strange, tmp_path / "none.tsv") == 0
    assert table(tmp_path / "none.tsv") == []


def test_what_cannot_be_decided_or_read_is_refused_and_an_older_table_stays(
    trained, tmp_path
) -> None:
    out = tmp_path / "found.tsv"
    out.write_text("older")
    copy = shutil.copytree(trained, tmp_path / "copy")
    record = copy / "relation.json"
    settings = read_record(record, "export settings")
    write_record(record, "export settings", settings | {"knn_settings": None})
    with pytest.raises(
        ConfigError, match="its run had no validation documents.*want a model of a run with some"
    ):
        find(copy, tmp_path / "any", out)
    (tmp_path / "docred.json").write_text(json.dumps(DOCRED))
    with pytest.raises(ConfigError, match="was trained on .*, and the input h.*want the same kind"):
        find(trained, tmp_path / "docred.json", out)
    with pytest.raises(DataError, match="nothing.PubTator: does not exist"):
        find(trained, tmp_path / "nothing.PubTator", out)
    assert out.read_text() == "older"


def test_entities_that_are_not_read_have_no_relations(trained, tmp_path) -> None:
    """With a bias for which every pair that is asked has a relation."""
    model = load_relation_model(trained)
    knn = KnnSettings(1, 1.0)
    bias_C = model.classifier.head.bias_C
    if bias_C is None:
        knn = LINEAR
        bias_C = model.classifier.head.classifier.bias
    with torch.no_grad():
        bias_C[1] = 100.0
    (one, two), *_ = sorted(model.candidate_types)
    words = f"A:{one}:1 meets B:{two}:2 and {'so on ' * 2000} C:{two}:3"
    source = pubtator(tmp_path / "long.PubTator", ("1", words, []))
    store = prepare_unlabeled(tmp_path / "store", [source])
    (found,) = predict_documents(model, knn, DocumentBlock(store, [0]))
    assert {(each["head_id"], each["tail_id"]) for each in found.value} == {("1", "2")}


def test_documents_that_are_skipped_are_said_with_the_first_of_them(
    trained, tiny_documents, tmp_path
) -> None:
    text = (tiny_documents.path.parent / "test.PubTator").read_text()
    source = tmp_path / "twice.PubTator"
    source.write_text(f"{text.rstrip()}\n\n{text}")
    said: list[str] = []
    out = tmp_path / "found.tsv"
    predict_file(read_predictor(trained), [source], out, max_bad_share=0.6, say=said.append)
    (line,) = [line for line in said if line.startswith("skipped: ")]
    assert re.fullmatch(r"skipped: duplicate document.*: \d+, first twice.PubTator:\d+.*", line)


def test_a_model_with_directed_relations_predicts_for_docred_documents_in_memory(tmp_path) -> None:
    documents = [
        {
            "title": f"{number}",
            "sents": [["Ann" if number % 2 else "Bob", "owns", f"shop{number}", "."]],
            "vertexSet": [
                [
                    {
                        "name": "Ann" if number % 2 else "Bob",
                        "sent_id": 0,
                        "pos": [0, 1],
                        "type": "PER",
                    }
                ],
                [{"name": f"shop{number}", "sent_id": 0, "pos": [2, 3], "type": "ORG"}],
            ],
            "labels": [{"h": 0, "t": 1, "r": "owns", "evidence": [0]}],
        }
        for number in range(24)
    ]
    parts = {"train": documents[:16], "dev": documents[16:20], "test": documents[20:]}
    for name, part in parts.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(part))
    store = prepare_documents(
        tmp_path / "store",
        [tmp_path / "train.json"],
        dev=[tmp_path / "dev.json"],
        test=[tmp_path / "test.json"],
    )
    config = tiny_config("relation_finetune", **{"plan.global_batch_rows": 4})
    folder = relation_extraction.build(config, store.path).export(tmp_path / "export", {})
    model = raybio.load(folder)
    find(folder, tmp_path / "test.json", tmp_path / "found.tsv")
    in_memory = [row for rows in model.predict(parts["test"]) for row in rows]
    assert [row["relation"] for row in in_memory] == [
        row["relation"] for row in table(tmp_path / "found.tsv")
    ]
    with pytest.raises(DataError, match="want a document of DocRED's JSON"):
        model.predict(["a"])
    # The inputs of the card.
    code = re.search(r"^inputs = (.*)$", (folder / "README.md").read_text(), re.MULTILINE)
    assert code and len(model.predict(json.loads(code[1]))) == 1


@pytest.mark.nightly
@pytest.mark.slow
def test_the_command_takes_a_runs_folder_and_patterns(trained, tiny_documents, tmp_path) -> None:
    job = ROOT / "jobs" / "predict.py"
    source = tiny_documents.path.parent / "tes*.PubTator"
    done = run(tmp_path, job, trained, "--input", source, "--out", "found.tsv")
    assert done.returncode == 0, done.stderr
    assert f"found.tsv: {len(table(tmp_path / 'found.tsv')):,} relations" in done.stdout
    refused = run(tmp_path, job, tmp_path / "modle", "--input", source, "--out", "y.tsv")
    assert refused.returncode == 2
    assert "there is no modle in" in refused.stderr


def test_documents_come_back_as_pubtator_and_bioc_with_their_ids_and_offsets(
    trained, tiny_documents, tmp_path
) -> None:
    source = tiny_documents.path.parent / "test.PubTator"
    find(trained, source, tmp_path / "found.tsv")
    expected = {
        (
            one["id"],
            one["head_id"] or id_of_name(one["head"]),
            one["tail_id"] or id_of_name(one["tail"]),
            one["relation"],
        )
        for one in table(tmp_path / "found.tsv")
    }
    before = {raw.document_id: raw for raw in read_documents(source, Quarantine())}
    sources = {"pubtator": source, "bioc": to_bioc(source, tmp_path / "bioc.json")}
    for name, path in sources.items():
        for suffix in (".PubTator", ".json"):
            out = tmp_path / "found" / f"{name}{suffix}"
            assert find(trained, path, out) == len(expected)
            quarantine = Quarantine()
            after = [*read_documents(out, quarantine)]
            assert quarantine.count_by_reason == {}
            assert [raw.document_id for raw in after] == [*before]
            found = set()
            for raw in after:
                original = before[raw.document_id]
                assert (raw.text, raw.mentions) == (original.text, original.mentions)
                if name == "pubtator":
                    assert raw.passage_starts == original.passage_starts
                for label, head, tail in raw.relations:
                    found.add((raw.document_id, head, tail, label))
            assert found == expected
    lines = source.read_text().splitlines()
    written = (tmp_path / "found" / "pubtator.PubTator").read_text().rstrip("\n").splitlines()
    # All but the relations, which have four columns, is the input's, letter by letter.
    assert [line for line in written if line.count("\t") != 3] == [
        line for line in lines if line.count("\t") != 3
    ]
    # Nodes name the mentions of both ends.
    collection = json.loads((tmp_path / "found" / "pubtator.json").read_text())
    for document in collection["documents"]:
        annotations = [one for passage in document["passages"] for one in passage["annotations"]]
        by_id = {annotation["id"]: annotation for annotation in annotations}
        for relation in document["relations"]:
            for node, entity in zip(relation["nodes"], ("entity1", "entity2"), strict=True):
                annotation = by_id[node["refid"]]
                written_id = annotation["infons"].get("identifier") or id_of_name(
                    annotation["text"]
                )
                assert written_id == relation["infons"][entity]
    in_memory = raybio.load(trained).predict(json.loads(sources["bioc"].read_text())["documents"])
    assert sum(map(len, in_memory)) == len(expected)
    with pytest.raises(DataError, match="input 1: its id '1' is there twice"):
        raybio.load(trained).predict([{"passages": []}, {"id": "1", "passages": []}])
    with pytest.raises(DataError, match="input 1: its id '1' is there twice"):
        raybio.load(trained).predict([{"id": "1", "passages": []}, {"id": "1 ", "passages": []}])
    good = json.loads(sources["bioc"].read_text())["documents"][0]
    moved = json.loads(json.dumps(good)) | {"id": "moved"}
    moved["passages"][0]["annotations"][0]["locations"][0]["offset"] += 1
    for wrong, message in (
        ({"id": "c", "passages": "Aspirin"}, "^input 1, field 'passages': 'Aspirin', want a list"),
        (moved, "not the text at its offsets: 1, first input 1 .*Repair the input.$"),
    ):
        with pytest.raises(DataError, match=message):
            raybio.load(trained).predict([good, wrong])
    with pytest.raises(DataError, match="input 0: got str 'a'.* want a document of BioC JSON"):
        raybio.load(trained).predict(["a"])


def test_messages_on_documents_in_memory_name_no_temporary_path(tmp_path, monkeypatch) -> None:
    (tmp_path / "my dir").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "my dir"))
    predictor = RelationPredictor(tmp_path / "model", is_directed=False)
    good = {"id": "a", "passages": []}
    for documents, message in (
        ([good, {"id": "b", "passages": "Aspirin"}], "^input 1, field 'passages': 'Aspirin'"),
        ([good], "document without text: 1, first input 0 .*Repair the input.$"),
    ):
        with pytest.raises(DataError, match=message) as error, predictor.open_values(documents):
            pass
        assert "my dir" not in str(error.value)


def test_the_f1_of_found_relations_is_that_of_the_final_evaluation(
    trained, tiny_documents, tmp_path
) -> None:
    """All test pairs are candidates here, and a relation is a pair of entities with a label."""
    find(trained, tiny_documents.path.parent / "test.PubTator", tmp_path / "found.tsv")
    found = {
        (one["id"], frozenset(((one["head_start"]), (one["tail_start"]))), one["relation"])
        for one in table(tmp_path / "found.tsv")
    }
    gold = set()
    for row in tiny_documents.split_rows("test").tolist():
        mention_C, entity_C = tiny_documents.links(row)
        start_M, _ = tiny_documents.mentions(row)
        first = [
            str(start_M[mention_C[entity_C == entity].min()]) for entity in range(max(entity_C) + 1)
        ]
        for head, tail, label in zip(*tiny_documents.relations(row), strict=True):
            name = tiny_documents.relation_names[label]
            gold.add((tiny_documents.document_id(row), frozenset((first[head], first[tail])), name))
    f1 = 2 * len(found & gold) / (len(found) + len(gold))
    final = json.loads((trained.parent / "final.json").read_text())
    assert f1 == pytest.approx(final["f1"]["value"], abs=1e-6)
