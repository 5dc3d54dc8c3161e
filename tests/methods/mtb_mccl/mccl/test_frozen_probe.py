"""Three classifiers on frozen pairs, against other computations, and the command that fits them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

from raybio.cli.evaluate import app
from raybio.core.errors import ConfigError, StoreError
from raybio.core.published import published
from raybio.core.records import read_record
from raybio.encoders.export_files import EXPORT_FILES
from raybio.methods import METHODS
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.frozen_encoder import load_frozen
from raybio.methods.mtb_mccl.mccl import rivals
from raybio.methods.mtb_mccl.mccl.config import KnnSettings
from raybio.methods.mtb_mccl.mccl.frozen_classifiers import (
    L2,
    centroid_classifier,
    softmax_classifier,
)
from raybio.methods.mtb_mccl.mccl.frozen_probe import KNN_SETTINGS, FrozenProbe
from raybio.methods.mtb_mccl.mccl.labeled_pairs import LabeledPairs
from raybio.methods.mtb_mccl.mccl.probe_report import probe_data, probe_markdown
from raybio.methods.mtb_mccl.mtb import system as mtb_system
from raybio.training.collective import SingleProcess
from raybio.training.loop import fit
from tests.methods.conformance_cases import tiny_config
from tests.methods.mtb_mccl.mccl.test_classifier import known


@pytest.fixture(scope="module")
def trained(tiny_documents: DocumentStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of an MTB run of a few steps."""
    config = tiny_config(
        "mtb_pretrain", **{"schedule.max_steps": 40, "encoder.max_document_tokens": 123}
    )
    system = mtb_system.build(config, tiny_documents.path)
    list(fit(system, config))
    return system.export(tmp_path_factory.mktemp("mtb") / "model", {})


def evaluate(*arguments: object):
    return CliRunner().invoke(
        app, [str(argument) for argument in arguments], catch_exceptions=False
    )


@pytest.mark.parametrize("l2", L2)
def test_softmax_predicts_as_scikit_learns_logistic_regression(l2: float) -> None:
    train, queries = known(90, 4, 0), known(50, 4, 1)
    with torch.no_grad():
        classifier = softmax_classifier(train, False, l2)
        (score_PC,) = classifier.scores(queries.pairs.embedding_PD, (KnnSettings(1, 0.0),)).values()
    scaler = StandardScaler().fit(train.pairs.embedding_PD)
    theirs = LogisticRegression(C=1 / (l2 * 90), tol=1e-8, max_iter=10_000)
    theirs.fit(scaler.transform(train.pairs.embedding_PD), train.label_PC.argmax(1))
    expected = theirs.predict_proba(scaler.transform(queries.pairs.embedding_PD))
    np.testing.assert_allclose(torch.softmax(score_PC, 1), expected, atol=5e-3)
    gold_P = queries.label_PC.argmax(1)
    accuracy = float((score_PC.argmax(1).numpy() == gold_P).mean())
    by_theirs = theirs.predict(scaler.transform(queries.pairs.embedding_PD))
    assert accuracy == pytest.approx((by_theirs == gold_P).mean(), abs=1e-6)


@pytest.mark.parametrize("is_multi_label", [False, True])
def test_the_nearest_centroid_decides_and_a_class_without_members_is_never_found(
    is_multi_label: bool,
) -> None:
    train, queries = known(40, 4, 0, 1 + is_multi_label), known(25, 4, 1, 1 + is_multi_label)
    train.label_PC[:, 2] = False
    train.label_PC[:, 0] |= ~train.label_PC.any(1)
    classifier = centroid_classifier(train, is_multi_label)
    score_PC = classifier.scores(queries.pairs.embedding_PD, (KnnSettings(1, 0.0),))[
        KnnSettings(1, 0.0)
    ]
    unit_PD = torch.nn.functional.normalize(train.pairs.embedding_PD, dim=1).numpy()
    for query, scores, found in zip(
        queries.pairs.embedding_PD.numpy(), score_PC, classifier.predicted(score_PC), strict=True
    ):
        expected = []
        for label in range(4):
            members = unit_PD[train.label_PC[:, label]]
            centroid = members.mean(0) if len(members) else None
            length = 1.0 if centroid is None else np.linalg.norm(centroid) * np.linalg.norm(query)
            expected.append(-np.inf if centroid is None else float(query @ centroid / length))
        np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-5)
        above = {r for r in range(1, 4) if expected[r] > expected[0]}
        assert set(np.flatnonzero(found).tolist()) == (
            above if is_multi_label else {int(np.argmax(expected))} - {0}
        )


def test_several_labels_are_compared_with_na_by_adaptive_thresholding() -> None:
    train = known(60, 4, 0, 2)
    classifier = softmax_classifier(train, True, 1e-4)
    with torch.no_grad():
        (score_PC,) = classifier.scores(train.pairs.embedding_PD, (KnnSettings(1, 0.0),)).values()
    found_PC = classifier.predicted(score_PC)
    gold_PC = train.label_PC & (np.arange(4) > 0)
    assert (found_PC == gold_PC).mean() > (
        gold_PC == 0
    ).mean() + 0.02  # better than finding nothing
    assert (found_PC == (score_PC > score_PC[:, :1]).numpy()).all()


@pytest.mark.nightly
def test_a_frozen_export_keeps_its_projection_and_its_length_and_a_plain_encoder_has_neither(
    trained, tmp_path
) -> None:
    own = load_frozen(str(trained))
    assert own.max_document_tokens == 123
    assert own.model.projection is not None
    assert not own.model.training
    plain = tmp_path / "plain"
    plain.mkdir()
    for file in trained.iterdir():
        is_of_export = file.name.startswith("relation") or file.name == EXPORT_FILES
        if file.is_file() and not is_of_export:
            (plain / file.name).write_bytes(file.read_bytes())
    other = load_frozen(str(plain))
    assert other.model.projection is None
    assert (other.model.width, other.max_document_tokens) == (3 * own.model.width, 1022)


@pytest.mark.nightly
def test_what_validation_chooses_is_evaluated_and_labels_may_be_few(
    trained, tiny_documents
) -> None:
    said: list[str] = []
    found = {
        one.name: one
        for one in FrozenProbe(str(trained), tiny_documents, say=said.append).results()
    }
    names = list(found)
    assert names[0].startswith("chance: every pair ")
    assert names[1:] == ["ridge on TF-IDF", *published("raybio.methods.mtb_mccl")["table_1"]]
    assert 0 < found[names[0]].test.values["f1"] < found["classwise kNN"].test.values["f1"]
    assert found["softmax"].setting in {f"L2 {l2:g}" for l2 in L2}
    assert found["classwise kNN"].setting in {f"k = {rule.num_neighbors}" for rule in KNN_SETTINGS}
    # Validation and test documents are the training ones under other numbers: the nearest neighbor
    # is the pair itself.
    assert found["classwise kNN"].test.values["f1"] == pytest.approx(1.0)
    assert found["softmax"].test.values["f1"] > found["nearest centroid"].test.values["f1"] > 0
    gold = found["softmax"].test.by_relation()["gold"].sum()
    few = {
        one.name: one
        for one in FrozenProbe(str(trained), tiny_documents, label_fraction=0.2, seed=3).results()
    }
    assert few["classwise kNN"].test.values["f1"] < 1
    assert few["softmax"].test.by_relation()["gold"].sum() == gold  # test pairs keep their labels
    assert few["softmax"].dev.by_relation()["gold"].sum() < gold
    pairs = LabeledPairs(tiny_documents, "train", 1.0, 0).num_pairs
    assert f"embedding {pairs:,} pairs of 24 train documents" in said


@pytest.mark.nightly
def test_the_rival_of_the_probe_is_that_of_fine_tuning_with_the_same_labels(
    trained, tiny_documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all training documents, and with some of them where their pairs are too many."""
    config = tiny_config("relation_finetune", **{"encoder.source": str(trained)})
    system = METHODS["relation_finetune"].build(config, tiny_documents.path)

    def rows() -> tuple[Any, Any]:
        report = system.final_evaluate(system.model, SingleProcess())
        probed = FrozenProbe(str(trained), tiny_documents).results()[1]
        own = {split: report.scores["ridge on TF-IDF"][split] for split in ("dev", "test")}
        assert probed.setting.startswith("penalty ")
        return probed, own

    by_number = []
    for max_pairs in (rivals.MAX_PAIRS, 20):
        monkeypatch.setattr(rivals.drawn_documents, "__defaults__", (max_pairs,))
        probed, own = rows()
        for split, scores in (("dev", probed.dev), ("test", probed.test)):
            assert scores.values["f1"] == pytest.approx(own[split]["f1"]["value"])
        by_number.append(probed.test.values["f1"])
    assert by_number[1] < by_number[0]


@pytest.mark.nightly
def test_the_command_prints_and_writes_the_table(trained, tiny_documents, tmp_path: Path) -> None:
    out = tmp_path / "new" / "probe.json"
    done = evaluate(
        "relation-probe", "--model", trained, "--store", tiny_documents.path, "--out", out
    )
    assert done.exit_code == 0
    written = read_record(out, "report")
    assert written is not None
    in_paper = published("raybio.methods.mtb_mccl")["table_1"]
    names = [one["name"] for one in written["classifiers"]]
    assert names[1:] == ["ridge on TF-IDF", *in_paper]
    assert probe_markdown(written) in done.output
    for one in written["classifiers"]:
        assert (
            f"| {one['name']} | {one['setting']} | {one['dev']['f1']:.2%} | "
            f"{one['test']['f1']['value']:.2%}" in (done.output)
        )
        assert one["test"]["f1"]["low"] <= one["test"]["f1"]["value"] <= one["test"]["f1"]["high"]
    assert "| 36.7% | 54.1% |" in done.output
    assert "sampled" not in done.output and "cut at" not in done.output
    again = probe_data(FrozenProbe(str(trained), tiny_documents).results(), written["settings"])
    assert json.loads(json.dumps(again)) == written


def test_a_label_fraction_out_of_range_is_refused(trained, tiny_documents) -> None:
    command = (
        "relation-probe",
        "--model",
        str(trained),
        "--store",
        str(tiny_documents.path),
        "--label-fraction",
        "0",
    )
    done = evaluate(*command)
    assert done.exit_code == 2
    assert "got 0, want a number above 0" in done.output


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"--model": "./nowhere"},
            ConfigError,
            "--model ./nowhere: no such folder; want the export/ of a run",
        ),
        (
            {"--model": "."},
            ConfigError,
            r"--model \.: has no config.json; want the export/ of a run",
        ),
        ({"--store": "nowhere"}, StoreError, "nowhere: does not exist"),
        ({"--out": "."}, ConfigError, r"--out \.: is a folder; want a file"),
    ],
)
def test_wrong_arguments_are_refused(
    change, error, message, trained, tiny_documents, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = {"--model": str(trained), "--store": str(tiny_documents.path)} | change
    with pytest.raises(error, match=message):
        evaluate("relation-probe", *(part for pair in arguments.items() for part in pair))
