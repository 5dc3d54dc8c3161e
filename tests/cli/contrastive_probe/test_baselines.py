"""The command ``baselines``: its report, and the options that it refuses."""

import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from raybio.cli.contrastive_probe.baselines import baselines
from raybio.core.errors import ConfigError
from raybio.methods.contrastive_probe.accuracy import evaluate_predictions
from raybio.methods.contrastive_probe.benchmark.medlama import read_medlama
from raybio.methods.contrastive_probe.config import ProbeConfig
from raybio.methods.contrastive_probe.published import paper_prompts
from raybio.methods.contrastive_probe.rivals import predict_by_rivals
from tests.encoders.tiny_text import save_tiny
from tests.methods.known_answers import sure_of, write_benchmark


@pytest.fixture
def benchmark_folder(tmp_path):
    return write_benchmark(tmp_path / "benchmark")


@pytest.fixture
def always_risk(tmp_path):
    return sure_of("risk", tmp_path / "risk")


@pytest.fixture
def rewired(tmp_path):
    return save_tiny(tmp_path / "rewired", "electra")


def run(*arguments):
    app = typer.Typer()
    app.command()(baselines)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_report_has_our_rows_and_those_of_rivals_and_says_what_was_skipped(
    benchmark_folder, always_risk, tmp_path
):
    out = tmp_path / "report"
    arguments = ["--model", always_risk, "--benchmark", benchmark_folder, "--out", out, "--beam", 2]
    arguments += ["--queries-per-relation", 2, "--seed", 3]
    done = run(
        *arguments,
        "--methods",
        "mask-average,x-factr,generative",
        "--decode",
        "order",
        "--refine",
        "order",
    )
    assert done.exit_code == 0, done.output
    text = (out / "baselines.md").read_text()
    assert "A random sample of 2 queries of each relation**" in text
    # The benchmark is not MedLAMA.
    assert "ublished" not in text
    data = json.loads((out / "baselines.json").read_text())
    chance = data["chance"]
    assert 0 < chance["micro_acc_at_1"] < chance["micro_acc_at_10"] <= 1
    assert f"| chance | names in random order | {100 * chance['micro_acc_at_1']:.2f} |" in text
    sample = read_medlama(benchmark_folder).sample(2, seed=0)
    for name, predicted_QK in predict_by_rivals(sample, ProbeConfig()).items():
        outcome = evaluate_predictions(sample, predicted_QK, "name")
        row = data["rivals"][name]
        assert row["1"]["micro"]["value"] == outcome.micro(1)
        assert row["10"]["macro"] == outcome.macro(10)
        assert f"| {name} | none | {100 * outcome.micro(1):.2f} [" in text
    assert list(data["rivals"]) == ["character 2-4-grams", "oracle prior"]
    assert f"not supported by the model: {always_risk}: generative" in done.output
    assert data["settings"]["skipped"] == [f"{always_risk}: generative"]
    assert data["settings"]["methods"] == ["mask-average", "x-factr", "generative"]
    assert data["settings"]["seed"] == 3
    assert [row["method"] for row in data["results"]] == ["mask average", "X-FACTR, order + order"]
    for shown in data["examples"]:
        mask_average, (x_factr,) = shown["predictions"]
        assert len(mask_average) == 5 and mask_average[0] == x_factr == "risk"
        assert ("**risk**" in text.split(shown["query"])[1][:200]) == ("risk" in shown["answers"])
    assert any("risk" in shown["answers"] for shown in data["examples"])
    drawn = read_medlama(benchmark_folder).sample(2, seed=0)
    answers = np.split(drawn.answer_P, drawn.indptr_Q1[1:-1])
    is_right = [drawn.names.index("risk") in right for right in answers]
    expected = {"may_treat": np.mean(is_right[:2]), "occurs_after": np.mean(is_right[2:])}
    assert data["results"][1]["accuracy"]["1"]["by_relation"] == expected
    assert data["num_queries"] == {"may_treat": 2, "occurs_after": 2}
    assert list(data["results"][1]["accuracy"]) == ["1"]  # one answer: no acc@10
    assert list(data["results"][1]["by_length"]) == ["1"]


def test_baselines_are_compared_by_length_of_the_answers(
    benchmark_folder, always_risk, rewired, tmp_path
):
    """Figure 3 of the paper."""
    out = tmp_path / "report"
    arguments = ["--model", always_risk, "--benchmark", benchmark_folder, "--out", out]
    done = run(*arguments, "--methods", "hybrid,x-factr", "--rewired", rewired)
    assert done.exit_code == 0, done.output
    data = json.loads((out / "baselines.json").read_text())
    bins = [one["by_length"]["1"] for one in data["results"]]
    assert len(bins) == 4
    benchmark = read_medlama(benchmark_folder)
    answers = [
        [benchmark.names[name] for name in gold]
        for gold in np.split(benchmark.answer_P, benchmark.indptr_Q1[1:-1])
    ]
    length = np.array([np.mean([len(name) for name in names]) for names in answers])
    for part in bins[0]:
        here = (length >= part["first"]) & (length < (part["end"] or np.inf))
        assert part["num_queries"] == here.sum()
        assert part["accuracy"] == np.mean(
            ["risk" in names for names, is_here in zip(answers, here, strict=True) if is_here]
        )
    first = bins[0][0]
    span = f"{first['first']} to {first['end'] - 1}"
    row = f"| {span} | {first['num_queries']} | {100 * first['accuracy']:.2f} | "
    assert row in (out / "baselines.md").read_text().split("## acc@1 by length of the answers")[1]
    assert sorted(path.name for path in (out / "plots").iterdir()) == [
        "lengths_acc1.png",
        "lengths_acc10.png",
    ]


def test_a_benchmark_with_the_relations_of_medlama_has_the_published_rows(always_risk, tmp_path):
    queries = {relation: [("asthma", ["risk"])] for relation in paper_prompts()}
    folder = write_benchmark(tmp_path / "medlama", queries)
    done = run("--model", always_risk, "--benchmark", folder, "--methods", "mask-average")
    assert done.exit_code == 0, done.output
    assert "| mask average | BioBERT (published) | 0.28 |  | 3.03 |" in done.output
    assert "Table 3, on MedLAMA's full set" in done.output


def test_a_source_of_biolama_has_its_own_published_rows(always_risk, tmp_path):
    record = {"sub_label": "asthma", "sub_uri": "a", "obj_labels": ["risk"], "obj_uris": ["b"]}
    (tmp_path / "CTD" / "triples_processed" / "CD1").mkdir(parents=True)
    (tmp_path / "CTD" / "prompts").mkdir()
    (tmp_path / "CTD" / "triples_processed" / "CD1" / "test.jsonl").write_text(json.dumps(record))
    prompt = {"relation": "CD1", "template": "[X] has [Y] ."}
    (tmp_path / "CTD" / "prompts" / "manual.jsonl").write_text(json.dumps(prompt))
    done = run("--model", always_risk, "--benchmark", tmp_path / "CTD", "--methods", "mask-average")
    assert done.exit_code == 0, done.output
    assert "Table 7, on BioLAMA's CTD" in done.output
    assert "| mask predict | Bio-LM (published) | 1.17 | 7.30 |  |" in done.output
    assert "Table 3" not in done.output
    (tmp_path / "CTD").rename(tmp_path / "other")
    done = run(
        "--model", always_risk, "--benchmark", tmp_path / "other", "--methods", "mask-average"
    )
    assert done.exit_code == 0, done.output
    assert "published" not in done.output.lower()


def test_without_a_folder_the_report_is_printed_and_nothing_is_written(
    benchmark_folder, always_risk, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    done = run("--model", always_risk, "--benchmark", benchmark_folder, "--methods", "mask-average")
    assert done.exit_code == 0, done.output
    assert f"| mask average | {always_risk} | " in done.output
    assert "skipped: []" in done.output
    assert sorted(tmp_path.rglob("*")) == before


def test_the_report_of_a_hybrid_separates_queries_with_answers_of_one_token(
    benchmark_folder, always_risk, rewired, tmp_path
):
    arguments = [
        "--model",
        always_risk,
        "--benchmark",
        benchmark_folder,
        "--out",
        tmp_path / "report",
    ]
    done = run(*arguments, "--methods", "hybrid", "--rewired", rewired, "--weight", 1)
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "report" / "baselines.json").read_text())
    for one in data["results"]:
        assert sum(part["num_queries"] for part in one["by_tokens"].values()) == 7
        whole = sum(part["num_queries"] * part["acc@10"] for part in one["by_tokens"].values()) / 7
        assert whole == pytest.approx(one["accuracy"]["10"]["micro"]["value"])
    alone = data["results"][0]["by_tokens"]
    # "risk factors" and no other answer is two tokens; "risk" is right for three of the others.
    assert alone["one token"] == {
        "num_queries": 6,
        "acc@1": 0.5,
        "acc@5": pytest.approx(5 / 6),
        "acc@10": 1.0,
    }
    assert alone["others"]["acc@1"] == 0
    assert "| hybrid, weight 1 | " in done.output and " | one token | 6 | " in done.output
    assert data["settings"]["rewired"] == rewired


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "mask"], "--methods mask: want some of"),
        (["--methods", "hybrid"], "hybrid wants --rewired"),
        (["--rewired", "folder"], "--rewired folder: only --methods hybrid uses an encoder"),
        (["--beam", "0"], "beam"),
        (["--weight", "0.5"], "--weight: only for hybrid"),
        (["--pooling", "cls"], "--pooling: only for hybrid"),
        (
            ["--methods", "mask-average", "--beam", "5", "--max-masks", "5"],
            "--beam, --max-masks: only for x-factr",
        ),
        (
            ["--methods", "generative", "--rescore"],
            "--rescore: only for x-factr, and --methods is generative",
        ),
        (["--methods", "x-factr", "--restrict"], "--restrict: only for mask-average or hybrid"),
    ],
)
def test_a_wrong_option_is_refused_by_name(benchmark_folder, tmp_path, arguments, message):
    done = run(
        "--model", "m", "--benchmark", benchmark_folder, "--out", tmp_path / "out", *arguments
    )
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)
