"""Baselines of the probe on a small benchmark in MedLAMA's layout, with models of which the right figures are known."""

import csv
import json

import numpy as np
import pytest
import torch
from transformers import BertForMaskedLM
from typer.testing import CliRunner

from raybio.data.probe_benchmark import read_medlama
from raybio.encoders.masked_lm import load_masked_lm
from raybio.encoders.seq2seq import load_answer_writer
from raybio.encoders.text import TextEncoderConfig, build_text_encoder
from raybio.errors import ConfigError
from raybio.evaluation.probe import ProbeConfig
from raybio.evaluation.probe_config import DecodeConfig
from raybio.systems.probe import probe
from raybio.systems.probe_baselines import METHODS, Rewired, ask, baselines
from tests import oracles
from tests.encoders.test_seq2seq import model_of, tokenizer_of
from tests.encoders.tiny_text import embed, save_tiny, tiny_model, tiny_tokenizer

ALONE = METHODS[:3]
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


def sure_of(token, folder, **sizes):
    """A masked language model that is sure of one token, whatever it is asked."""
    tokenizer = tiny_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = tiny_model("bert", len(tokenizer)).config
        config.update(sizes)
        model = BertForMaskedLM(config)
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
    average, x_factr = baselines([always_risk], ALONE, ask(benchmark_folder, "full"), decode=config)
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


def test_the_masks_leave_half_of_what_a_model_reads_to_the_query(benchmark_folder, always_risk, tmp_path):
    asked = ask(benchmark_folder, "full", queries_per_relation=1)
    most = DecodeConfig(decode="independent", max_masks=32)
    (found,) = baselines([always_risk], ["x-factr"], asked, decode=most)
    assert "100.0% of the queries have an answer of 1 to 32 tokens" in found.remark
    with pytest.raises(ConfigError, match="max_masks"):
        DecodeConfig.from_mapping({"max_masks": 33})
    short = sure_of("risk", tmp_path / "short", max_position_embeddings=9)
    with pytest.raises(ConfigError, match="reads 9 tokens, and max_masks is 5; want 4 at most"):
        baselines([short], ["x-factr"], asked, decode=DecodeConfig())
    assert baselines([short], ["x-factr"], asked, decode=DecodeConfig(max_masks=4))


def test_restricted_to_the_answers_of_its_relation_a_name_competes_with_them_alone(benchmark_folder, always_risk):
    asked = ask(benchmark_folder, "full")
    (free,) = baselines([always_risk], ["mask-average"], asked, decode=DecodeConfig())
    (kept,) = baselines([always_risk], ["mask-average"], asked, decode=DecodeConfig(), restrict=True)
    assert (kept.outcome.first_hit_Q <= free.outcome.first_hit_Q).all()
    assert (
        kept.outcome.first_hit_Q.max() < 4 < free.outcome.first_hit_Q.max()
    )  # neither relation has more than four answers
    assert "answers of the query's relation" in kept.remark


def test_progress_is_told_of_the_queries_in_order_and_not_of_the_examples(benchmark_folder, always_risk, rewired):
    asked, said = ask(benchmark_folder, "full"), []
    settings = {"decode": DecodeConfig(), "say": said.append}
    baselines([always_risk], ["mask-average"], asked, **settings)
    baselines([always_risk], ["hybrid"], asked, rewired=Rewired(rewired), **settings)
    told = [line for line in said if "query" in line]
    assert told == [f"{always_risk}: mask average, query 0 of 7"] * 2


def test_some_queries_of_each_relation_are_those_that_training_draws_among_all_names(benchmark_folder):
    asked, whole = ask(benchmark_folder, "full", queries_per_relation=2), read_medlama(benchmark_folder)
    assert asked.benchmark.names == whole.names
    drawn = whole.sample(2, seed=0)
    for benchmark in (asked.benchmark, asked.default):
        assert benchmark.head_Q.tolist() == drawn.head_Q.tolist() and len(drawn.head_Q) == 4
    assert asked.default.prompts != asked.benchmark.prompts
    starts = drawn.indptr_Q1
    expected = [drawn.answer_P[starts[query] : starts[query + 1]].tolist() for query in range(4)]
    assert [gold.tolist() for gold in asked.gold()] == expected


def first_places(score_QC, gold):
    """Of the best right name of each query, by a loop."""
    places = []
    for score_C, right in zip(score_QC, gold, strict=True):
        order = sorted(range(len(score_C)), key=lambda name, score_C=score_C: (-score_C[name], name))
        places.append(min(order.index(name) for name in right))
    return places


@pytest.fixture
def rewired(tmp_path):
    return save_tiny(tmp_path / "rewired", "electra")


def test_a_hybrid_and_what_stands_beside_it_rank_names_as_loops_do(benchmark_folder, always_risk, rewired):
    asked, weight = ask(benchmark_folder, "full"), 0.3
    three = baselines([always_risk], ["hybrid"], asked, decode=DecodeConfig(), rewired=Rewired(rewired, None, weight))
    names, queries = asked.benchmark.names, asked.benchmark.queries("[MASK]")
    encoder = build_text_encoder(TextEncoderConfig(source=rewired, pooling="cls", max_length=50), seed=0)
    name_vectors = [embed(encoder, [name])[0] for name in names]
    language_model = load_masked_lm(always_risk)
    pieces = language_model.name_tokens(names)
    scores = {"mask": [], "encoder": [], "hybrid": []}
    for query in queries:
        log_prob_V = language_model.at_masks(language_model.cloze_tokens([query], 64))[0].double().tolist()
        mask = [np.mean([log_prob_V[piece] for piece in one]) for one in pieces]
        near = [-oracles.distance(embed(encoder, [query])[0], vector) for vector in name_vectors]
        single = [name for name in range(len(names)) if len(pieces[name]) == 1]
        said, seen = [mask[name] for name in single], [near[name] for name in single]
        mixed = list(near)
        for name in single:
            standard = (mask[name] - np.mean(said)) / np.std(said)
            mixed[name] = (1 - weight) * near[name] + weight * (np.mean(seen) + np.std(seen) * standard)
        for one, values in zip(scores.values(), (mask, near, mixed), strict=True):
            one.append(values)
    assert 1 < len(single) < len(names)
    gold = [right.tolist() for right in asked.gold()]
    for baseline, score_QC in zip(three, scores.values(), strict=True):
        assert baseline.outcome.first_hit_Q.tolist() == first_places(score_QC, gold)
        assert baseline.is_single_Q.tolist() == [any(len(pieces[name]) == 1 for name in right) for right in gold]
        for row, shown in zip(asked.example_rows(), baseline.examples, strict=True):
            assert list(shown) == [
                names[name] for name in sorted(range(len(names)), key=lambda n: -score_QC[row][n])[:5]
            ]  # noqa: B023
    assert len({tuple(first_places(score_QC, gold)) for score_QC in scores.values()}) == 3
    assert [one.method for one in three] == ["mask average", "encoder alone, cls pooling", "hybrid, weight 0.3"]
    assert three[2].model == f"{always_risk} and rewired"


@pytest.mark.parametrize("restrict", [False, True])
def test_a_hybrid_of_weight_0_is_the_encoder_alone_which_is_the_probe(benchmark_folder, always_risk, rewired, restrict):
    asked = ask(benchmark_folder, "full", queries_per_relation=2)
    settings = {"decode": DecodeConfig(), "restrict": restrict, "rewired": Rewired(rewired, "mean", 0.0)}
    _, alone, hybrid = baselines([always_risk], ["hybrid"], asked, **settings)
    config = ProbeConfig(candidates="relation" if restrict else "all")
    (probed,) = probe([rewired], {"full": asked.benchmark}, config, pooling="mean")["full"]
    for one in (alone, hybrid):
        for k in one.ks:
            np.testing.assert_array_equal(one.outcome.hits(k), probed.outcome.hits(k))


def test_a_hybrid_of_one_alone_is_refused(benchmark_folder, always_risk, rewired):
    asked = ask(benchmark_folder, "full")
    for methods, encoder in ((["hybrid"], None), (["mask-average"], Rewired(rewired))):
        with pytest.raises(ConfigError, match="want both or neither"):
            baselines([always_risk], methods, asked, decode=DecodeConfig(), rewired=encoder)


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
    folded, exact = baselines([str(folder)], ALONE, asked, decode=DecodeConfig())
    assert folded.outcome.first_hit_Q[0] == answers.index(written)
    assert folded.outcome.first_hit_Q[1] >= 10
    assert (exact.outcome.first_hit_Q >= 10).all()
    assert asked.example_rows() == [0, 1]
    assert folded.examples[0] == exact.examples[0] == answers[:5]


def test_a_model_that_can_be_asked_by_none_of_the_methods_is_refused_before_anything_is_asked(
    benchmark_folder, always_risk
):
    said = []
    with pytest.raises(ConfigError, match="can be asked by mask-average, x-factr or hybrid; got generative"):
        baselines([always_risk], ["generative"], ask(benchmark_folder, "full"), decode=DecodeConfig(), say=said.append)
    assert said == []


def test_a_model_that_lacks_its_head_or_is_not_there_is_refused_before_another_is_asked(
    benchmark_folder, always_risk, rewired, tmp_path
):
    for other, message in ((rewired, "no complete language-model head"), (str(tmp_path / "none"), "no such folder")):
        said = []
        with pytest.raises(ConfigError, match=message):
            baselines(
                [always_risk, other], ALONE, ask(benchmark_folder, "full"), decode=DecodeConfig(), say=said.append
            )
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
    arguments = ["--model", always_risk, "--benchmark", benchmark_folder, "--out", out, "--beam", 2]
    arguments += ["--queries-per-relation", 2, "--seed", 3]
    done = run(*arguments, "--methods", "mask-average,x-factr,generative", "--decode", "order", "--refine", "order")
    assert done.exit_code == 0, done.output
    text = (out / "baselines.md").read_text()
    assert "Only 2 queries of each relation were asked**, drawn by chance" in text
    assert "| mask average | BioBERT (published) | 0.28 |  | 3.03 |" in text
    data = json.loads((out / "baselines.json").read_text())
    assert f"{always_risk}: generative left out" in done.output
    assert data["settings"]["left out"] == [f"{always_risk}: generative"]
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


def test_baselines_stand_side_by_side_by_length_of_the_answers(benchmark_folder, always_risk, rewired, tmp_path):
    """As in the paper's Figure 3: language models fall with longer answers, rewired encoders do not."""
    out = tmp_path / "report"
    arguments = ["--model", always_risk, "--benchmark", benchmark_folder, "--out", out]
    done = run(*arguments, "--methods", "hybrid,x-factr", "--rewired", rewired)
    assert done.exit_code == 0, done.output
    data = json.loads((out / "baselines.json").read_text())
    bins = [one["by_length"]["1"] for one in data["results"]]
    assert len(bins) == 4
    asked = read_medlama(benchmark_folder)
    answers = [[asked.names[one] for one in right] for right in np.split(asked.answer_P, asked.indptr_Q1[1:-1])]
    length = np.array([np.mean([len(name) for name in names]) for names in answers])
    for part in bins[0]:
        here = (length >= part["first"]) & (length < (part["end"] or np.inf))
        assert part["num_queries"] == here.sum()
        assert part["accuracy"] == np.mean(
            ["risk" in names for names, is_here in zip(answers, here, strict=True) if is_here]
        )
    first = bins[0][0]
    row = f"| {first['first']} to {first['end'] - 1} | {first['num_queries']} | {100 * first['accuracy']:.2f} | "
    assert row in (out / "baselines.md").read_text().split("## acc@1 by length of the answers")[1]
    assert sorted(path.name for path in (out / "plots").iterdir()) == ["lengths_acc1.png", "lengths_acc10.png"]


def test_a_source_of_biolama_has_its_own_published_rows_beside_it(always_risk, tmp_path):
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


def test_without_a_folder_the_report_is_printed_and_nothing_is_written(
    benchmark_folder, always_risk, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    done = run("--model", always_risk, "--benchmark", benchmark_folder, "--methods", "mask-average")
    assert done.exit_code == 0, done.output
    assert f"| mask average | {always_risk} | " in done.output
    assert "left out: []" in done.output
    assert sorted(tmp_path.rglob("*")) == before


def test_the_report_of_a_hybrid_tells_queries_with_answers_of_one_token_from_others(
    benchmark_folder, always_risk, rewired, tmp_path
):
    arguments = ["--model", always_risk, "--benchmark", benchmark_folder, "--out", tmp_path / "report"]
    done = run(*arguments, "--methods", "hybrid", "--rewired", rewired, "--weight", 1)
    assert done.exit_code == 0, done.output
    data = json.loads((tmp_path / "report" / "baselines.json").read_text())
    for one in data["results"]:
        assert sum(part["num_queries"] for part in one["by_tokens"].values()) == 7
        whole = sum(part["num_queries"] * part["acc@10"] for part in one["by_tokens"].values()) / 7
        assert whole == pytest.approx(one["accuracy"]["10"]["micro"]["value"])
    alone = data["results"][0]["by_tokens"]
    # "risk factors" and no other answer is two tokens; "risk" is right for three of the others.
    assert alone["one token"] == {"num_queries": 6, "acc@1": 0.5, "acc@5": pytest.approx(5 / 6), "acc@10": 1.0}
    assert alone["others"]["acc@1"] == 0
    assert "| hybrid, weight 1 | " in done.output and " | one token | 6 | " in done.output
    assert data["settings"]["rewired"] == rewired


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "mask"], "--methods mask: want some of"),
        (["--methods", "hybrid"], "hybrid wants --rewired"),
        (["--rewired", "folder"], "--rewired folder: only --methods hybrid mixes an encoder in"),
        (["--methods", "hybrid", "--rewired", "folder", "--pooling", "max"], "--pooling max: want cls or mean"),
        (["--subset", "easy"], "--subset easy: want full or hard"),
        (["--decode", "left"], "decode"),
        (["--beam", "0"], "beam"),
        (["--weight", "0.5"], "--weight: for hybrid alone"),
        (["--pooling", "cls"], "--pooling: for hybrid alone"),
        (["--methods", "mask-average", "--beam", "5", "--max-masks", "5"], "--beam, --max-masks: for x-factr alone"),
        (["--methods", "generative", "--rescore"], "--rescore: for x-factr alone, and --methods is generative"),
        (["--methods", "x-factr", "--restrict"], "--restrict: for mask-average or hybrid alone"),
    ],
)
def test_a_wrong_option_is_refused_by_name(benchmark_folder, tmp_path, arguments, message):
    done = run("--model", "m", "--benchmark", benchmark_folder, "--out", tmp_path / "out", *arguments)
    assert isinstance(done.exception, ConfigError)
    assert message in str(done.exception)
