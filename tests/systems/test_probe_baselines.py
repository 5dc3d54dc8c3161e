"""Baselines of the probe on a small benchmark in MedLAMA's layout, with models of which the right figures are known."""

import csv
import json

import numpy as np
import pytest
import torch
from transformers import BertForMaskedLM
from typer.testing import CliRunner

from raybio.encoders.seq2seq import load_answer_writer
from raybio.errors import ConfigError
from raybio.evaluation.mask_prediction import DecodeConfig
from raybio.systems.probe_baselines import METHODS, ask, baselines
from tests.encoders.test_seq2seq import model_of, tokenizer_of
from tests.encoders.tiny_text import tiny_model, tiny_tokenizer

COLUMNS = ["head_cui", "head_name", "rel", "tail_names", "tail_cuis"]
QUERIES = {
    "may_treat": [("asthma", ["life"]), ("COVID-19", ["risk", "cost"]), ("infection", ["cohort"])],
    "occurs_after": [("life", ["risk"]), ("cost", ["risk factors"]), ("cohort", ["years"]), ("years", ["risk"])],
}


def write_benchmark(folder, queries=QUERIES):
    for relation, rows in queries.items():
        with (folder / f"{relation}_{len(rows)}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for head, answers in rows:
                cuis = [f"C{number}" for number in range(len(answers))]
                writer.writerow(["C9", head, relation, " || ".join(answers), " || ".join(cuis)])
    return folder


@pytest.fixture
def benchmark_folder(tmp_path):
    folder = tmp_path / "benchmark"
    folder.mkdir()
    return write_benchmark(folder)


def sure_of(token, folder):
    """A masked language model that is sure of one token, whatever it is asked."""
    tokenizer = tiny_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = BertForMaskedLM(tiny_model("bert", len(tokenizer)).config)
    with torch.no_grad():
        model.cls.predictions.bias[tokenizer.convert_tokens_to_ids(token)] = 100.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def always_risk(tmp_path):
    return sure_of("risk", tmp_path / "risk")


@pytest.mark.parametrize("decode", ["independent", "order", "confidence"])
def test_a_model_that_always_says_one_name_is_right_where_that_is_an_answer(benchmark_folder, always_risk, decode):
    config = DecodeConfig(decode=decode, beam=2, max_masks=2)
    average, x_factr = baselines([always_risk], METHODS, ask(benchmark_folder, "full"), decode=config)
    assert average.ks == (1, 5, 10)
    assert x_factr.ks == (1,)
    for result in (average, x_factr):
        np.testing.assert_allclose(result.outcome.by_relation(1), [1 / 3, 2 / 4])
        assert result.outcome.macro(1) == pytest.approx(5 / 12)
        assert result.outcome.micro(1) == pytest.approx(3 / 7)
    # Half of the pieces of "risk factors" are "risk": only "risk" itself comes before it.
    assert average.outcome.first_hit_Q[4] == 1


def test_an_unknown_token_is_no_right_answer_to_a_name_of_unknown_letters(tmp_path):
    (tmp_path / "benchmark").mkdir()
    asked = ask(
        write_benchmark(tmp_path / "benchmark", {"may_treat": [("life", ["Ω"]), ("cost", ["Ω", "risk"])]}), "full"
    )
    model = sure_of("[UNK]", tmp_path / "unknown")
    (result,) = baselines([model], ["x-factr"], asked, decode=DecodeConfig(max_masks=1))
    assert (result.outcome.first_hit_Q > 0).all()
    assert "50.0% of the queries have an answer of 1 to 1 tokens" in result.remark


def test_restricted_to_the_answers_of_its_relation_a_name_competes_with_them_alone(benchmark_folder, always_risk):
    asked = ask(benchmark_folder, "full")
    (free,) = baselines([always_risk], ["mask-average"], asked, decode=DecodeConfig())
    (kept,) = baselines([always_risk], ["mask-average"], asked, decode=DecodeConfig(), restrict=True)
    assert (kept.outcome.first_hit_Q <= free.outcome.first_hit_Q).all()
    assert (
        kept.outcome.first_hit_Q.max() < 4 < free.outcome.first_hit_Q.max()
    )  # neither relation has more than four answers
    assert "answers of the query's relation" in kept.remark


def test_a_limit_asks_the_first_queries_of_each_relation_among_all_names(benchmark_folder):
    asked = ask(benchmark_folder, "full", limit=2)
    assert asked.row_Q.tolist() == [0, 1, 3, 4]
    assert len(asked.benchmark.names) == len(ask(benchmark_folder, "full").benchmark.names)
    assert [asked.benchmark.names[numbers[0]] for numbers in asked.gold()] == ["life", "cost", "risk", "risk factors"]


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_a_written_answer_is_found_at_its_rank_with_the_relations_own_words_as_prompt(tmp_path, kind):
    folder = tmp_path / kind
    with torch.random.fork_rng():
        tokenizer = tokenizer_of(kind)
        model_of(kind, len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    writer = load_answer_writer(str(folder))
    (answers,) = writer.answers([f"aspirin may treat {writer.mask_token}"])
    written = next(answer for answer in answers if answer)
    (tmp_path / "benchmark").mkdir()
    write_benchmark(tmp_path / "benchmark", {"may_treat": [("aspirin", [written.upper()]), ("fever", ["nothing"])]})
    asked = ask(tmp_path / "benchmark", "full")
    folded, exact = baselines([str(folder)], METHODS, asked, decode=DecodeConfig())
    assert folded.outcome.first_hit_Q[0] == answers.index(written)
    assert folded.outcome.first_hit_Q[1] >= 10
    assert (exact.outcome.first_hit_Q >= 10).all()


def test_a_model_that_can_be_asked_by_none_of_the_methods_is_refused_before_anything_is_asked(
    benchmark_folder, always_risk
):
    said = []
    with pytest.raises(ConfigError, match="can be asked by mask-average or x-factr; got generative"):
        baselines([always_risk], ["generative"], ask(benchmark_folder, "full"), decode=DecodeConfig(), say=said.append)
    assert said == []


def run(*arguments):
    import typer

    from raybio.runtime.probing_baselines import baselines as command

    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_report_has_our_rows_beside_the_published_ones_and_says_what_was_left_out(
    benchmark_folder, always_risk, tmp_path
):
    out = tmp_path / "report"
    arguments = ["--model", always_risk, "--benchmark", benchmark_folder, "--out", out, "--limit", 2, "--beam", 2]
    done = run(*arguments, "--methods", "mask-average,x-factr", "--decode", "order", "--refine", "order")
    assert done.exit_code == 0, done.output
    text = (out / "baselines.md").read_text()
    assert "Only the first 2 queries of each relation" in text
    assert "| mask average | BioBERT (published) | 0.28 |  | 3.03 |" in text
    data = json.loads((out / "baselines.json").read_text())
    assert [row["method"] for row in data["results"]] == ["mask average", "x-factr, order + order"]
    assert data["results"][1]["accuracy"]["1"]["by_relation"] == {"may_treat": 0.5, "occurs_after": 0.5}
    assert data["num_queries"] == {"may_treat": 2, "occurs_after": 2}
    assert list(data["results"][1]["accuracy"]) == ["1"]  # one answer: no acc@10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "mask"], "--methods mask: want some of"),
        (["--subset", "easy"], "--subset easy: want full or hard"),
        (["--decode", "left"], "decode"),
        (["--beam", "0"], "beam"),
    ],
)
def test_a_wrong_option_is_refused_by_name(benchmark_folder, tmp_path, arguments, message):
    done = run("--model", "m", "--benchmark", benchmark_folder, "--out", tmp_path / "out", *arguments)
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)
