"""Relations extracted from files equal the predictions on a store."""

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from raybio.core.errors import ConfigError, DataError
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mccl import system as relation_extraction
from raybio.methods.mtb_mccl.mccl.classifier import predict_classes
from raybio.methods.mtb_mccl.mccl.labeled_pairs import LabeledPairs
from raybio.methods.mtb_mccl.mccl.predict import ExtractedRelation, extract_relations
from raybio.methods.mtb_mccl.mccl.trained_model import load_relation_model
from raybio.training.loop import fit
from tests.jobs.test_sppt_job import run
from tests.methods.conformance_cases import tiny_config
from tests.methods.mtb_mccl.documents.test_formats import DOCRED
from tests.methods.mtb_mccl.documents.test_prepare import pubtator
from tests.paths import ROOT


@pytest.fixture(scope="module", params=["mccl", "ce"])
def trained(request, tiny_documents: DocumentStore, tmp_path_factory) -> Path:
    changes = {
        "schedule.max_steps": 40,
        "plan.global_batch_rows": 16,
        "objective.kind": request.param,
    }
    config = tiny_config("relation_finetune", **changes)
    system = relation_extraction.build(config, tiny_documents.path)
    list(fit(system, config))
    return system.export(tmp_path_factory.mktemp("export") / "model", {})


def table(path: Path) -> list[ExtractedRelation]:
    with path.open(newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file, dialect="excel-tab")
    assert tuple(header) == ExtractedRelation._fields
    return [ExtractedRelation(*line[:-1], float(line[-1])) for line in lines]


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
    queries = model.frozen.embed_gold(LabeledPairs(tiny_documents, "test", 1.0, seed=0))
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
        assert extract_relations(trained, [file], out) == len(expected) > 10
        found = table(out)
        assert {(one.document, one.head_id, one.tail_id, one.relation) for one in found} == expected
        for one in found:
            assert (
                f"\t{one.head}\t" in source.read_text() and f"\t{one.tail}\t" in source.read_text()
            )
            assert one.pair == "unordered"
            assert np.isfinite(one.score)
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
        extract_relations(trained, [path], tmp_path / f"{name}.tsv")
        tables[name] = table(tmp_path / f"{name}.tsv")
    assert len(tables["plain"]) > 10
    assert tables["bioc"] == tables["prefixed"]
    expected = [
        one._replace(
            head_id=f"MESH:{one.head_id}(Tax:9606)", tail_id=f"MESH:{one.tail_id}(Tax:9606)"
        )
        for one in tables["plain"]
    ]
    assert tables["prefixed"] == expected
    gene_lines = [line.split("\t") for line in plain.read_text().splitlines() if "Gene" in line]
    mentioned = {(cells[0], cells[5]) for cells in gene_lines}
    for one in tables["plain"]:
        for entity_id, kind in ((one.head_id, one.head_type), (one.tail_id, one.tail_type)):
            assert ((one.document, entity_id) in mentioned) == (kind == "Gene")


def test_pairs_of_types_that_training_never_related_are_not_requested(
    trained, tiny_documents, tmp_path
) -> None:
    model = load_relation_model(trained)
    types = {kind for pair in model.candidate_types for kind in pair}
    strange = pubtator(
        tmp_path / "one.PubTator.gz", ("1", "Mars:Planet:1 and Venus:Planet:2 meet", [])
    )
    assert "Planet" not in types
    assert extract_relations(trained, [strange], tmp_path / "none.tsv") == 0
    assert table(tmp_path / "none.tsv") == []


def test_what_cannot_be_decided_or_read_is_refused_and_an_older_table_stays(
    trained, tmp_path
) -> None:
    out = tmp_path / "found.tsv"
    out.write_text("older")
    copy = shutil.copytree(trained, tmp_path / "copy")
    settings = json.loads((copy / "relation.json").read_text())
    (copy / "relation.json").write_text(json.dumps(settings | {"knn_settings": None}))
    with pytest.raises(
        ConfigError, match="its run had no validation documents.*want a model of a run with some"
    ):
        extract_relations(copy, [tmp_path / "any"], out)
    (tmp_path / "docred.json").write_text(json.dumps(DOCRED))
    with pytest.raises(ConfigError, match="was trained on .*, and --input h.*want the same kind"):
        extract_relations(trained, [tmp_path / "docred.json"], out)
    with pytest.raises(DataError, match="nothing.PubTator: does not exist"):
        extract_relations(trained, [tmp_path / "nothing.PubTator"], out)
    assert out.read_text() == "older"


@pytest.mark.slow
def test_the_command_takes_a_runs_folder_and_patterns(trained, tiny_documents, tmp_path) -> None:
    job, source = (
        ROOT / "jobs" / "extract_relations.py",
        tiny_documents.path.parent / "tes*.PubTator",
    )
    done = run(tmp_path, job, "--model", trained, "--input", source, "--out", "found.tsv")
    assert done.returncode == 0, done.stderr
    assert f"found.tsv: {len(table(tmp_path / 'found.tsv')):,} relations" in done.stdout
    refused = run(tmp_path, job, "--model", tmp_path / "modle", "--input", source, "--out", "y")
    assert refused.returncode == 2
    assert "there is no modle in" in refused.stderr
