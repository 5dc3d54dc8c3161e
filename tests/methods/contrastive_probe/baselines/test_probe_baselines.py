"""Baselines on a small benchmark in MedLAMA's layout, with models of known accuracy."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, BertForMaskedLM

from raybio.core.errors import ConfigError
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.text import build_text_encoder
from raybio.methods.contrastive_probe.baselines.evaluate import RewiredEncoder, evaluate_baselines
from raybio.methods.contrastive_probe.baselines.generative import load_answer_generator
from raybio.methods.contrastive_probe.baselines.masked_lm import load_masked_lm
from raybio.methods.contrastive_probe.baselines.queries import read_baseline_queries
from raybio.methods.contrastive_probe.benchmark.medlama import read_medlama
from raybio.methods.contrastive_probe.config import BASELINE_METHODS, DecodeConfig, ProbeConfig
from raybio.methods.contrastive_probe.probe import probe_models
from tests import oracles
from tests.encoders.tiny_text import embed, save_tiny
from tests.methods.contrastive_probe.baselines.test_generative import save_generative
from tests.methods.contrastive_probe.benchmark.test_biolama import ASPIRIN, source
from tests.methods.known_answers import sure_of, write_benchmark

WITHOUT_HYBRID = BASELINE_METHODS[:3]


@pytest.fixture
def benchmark_folder(tmp_path):
    return write_benchmark(tmp_path / "benchmark")


@pytest.fixture
def always_risk(tmp_path):
    return sure_of("risk", tmp_path / "risk")


@pytest.mark.parametrize("decode", ["independent", "order", "confidence"])
def test_a_model_that_always_predicts_one_name_is_correct_where_it_is_an_answer(
    benchmark_folder, always_risk, decode
):
    config = DecodeConfig(decode=decode, beam=2, max_masks=2)
    average, x_factr = evaluate_baselines(
        [always_risk],
        WITHOUT_HYBRID,
        read_baseline_queries(benchmark_folder, "full"),
        decode=config,
    )
    assert average.ks == (1, 5, 10)
    assert x_factr.ks == (1,)
    for result in (average, x_factr):
        np.testing.assert_allclose(result.outcome.by_relation(1), [1 / 3, 2 / 4])
        assert result.outcome.macro(1) == pytest.approx(5 / 12)
        assert result.outcome.micro(1) == pytest.approx(3 / 7)
    # Half of the pieces of "risk factors" are "risk": only "risk" itself comes before it.
    assert average.outcome.first_hit_Q[4] == 1


def test_an_unknown_token_is_no_correct_answer(tmp_path):
    (tmp_path / "benchmark").mkdir()
    queries = read_baseline_queries(
        write_benchmark(
            tmp_path / "benchmark", {"may_treat": [("life", ["Ω"]), ("cost", ["Ω", "risk"])]}
        ),
        "full",
    )
    model = sure_of("[UNK]", tmp_path / "unknown")
    (result,) = evaluate_baselines([model], ["x-factr"], queries, decode=DecodeConfig(max_masks=1))
    assert (result.outcome.first_hit_Q > 0).all()
    assert "50.0% of the queries have an answer of 1 to 1 tokens" in result.remark


def test_masks_take_at_most_half_of_the_tokens_of_a_model(benchmark_folder, always_risk, tmp_path):
    queries = read_baseline_queries(benchmark_folder, "full", queries_per_relation=1)
    most = DecodeConfig(decode="independent", max_masks=32)
    (found,) = evaluate_baselines([always_risk], ["x-factr"], queries, decode=most)
    assert "100.0% of the queries have an answer of 1 to 32 tokens" in found.remark
    with pytest.raises(ConfigError, match="max_masks"):
        DecodeConfig.from_mapping({"max_masks": 33})
    short = sure_of("risk", tmp_path / "short", max_position_embeddings=9)
    with pytest.raises(ConfigError, match="reads 9 tokens, and max_masks is 5; want 4 at most"):
        evaluate_baselines([short], ["x-factr"], queries, decode=DecodeConfig())
    assert evaluate_baselines([short], ["x-factr"], queries, decode=DecodeConfig(max_masks=4))


def test_restricted_candidates_are_the_answers_of_the_relation(benchmark_folder, always_risk):
    queries = read_baseline_queries(benchmark_folder, "full")
    (free,) = evaluate_baselines([always_risk], ["mask-average"], queries, decode=DecodeConfig())
    (kept,) = evaluate_baselines(
        [always_risk], ["mask-average"], queries, decode=DecodeConfig(), restrict=True
    )
    assert (kept.outcome.first_hit_Q <= free.outcome.first_hit_Q).all()
    assert (
        kept.outcome.first_hit_Q.max() < 4 < free.outcome.first_hit_Q.max()
    )  # neither relation has more than four answers
    assert "answers of the query's relation" in kept.remark


def test_progress_is_logged_for_the_queries_and_not_for_the_examples(
    benchmark_folder, always_risk, rewired
):
    queries = read_baseline_queries(benchmark_folder, "full")
    messages = []
    settings = {"decode": DecodeConfig(), "log": messages.append}
    evaluate_baselines([always_risk], ["mask-average"], queries, **settings)
    evaluate_baselines(
        [always_risk], ["hybrid"], queries, rewired=RewiredEncoder(rewired), **settings
    )
    logged = [line for line in messages if "query" in line]
    assert logged == [f"{always_risk}: mask average, query 0 of 7"] * 2


def test_a_sample_of_queries_equals_that_of_training_and_keeps_all_names(
    benchmark_folder,
):
    queries = read_baseline_queries(benchmark_folder, "full", queries_per_relation=2)
    complete = read_medlama(benchmark_folder)
    assert queries.benchmark.names == complete.names
    sampled = complete.sample(2, seed=0)
    for benchmark in (queries.benchmark, queries.default):
        assert benchmark.head_Q.tolist() == sampled.head_Q.tolist() and len(sampled.head_Q) == 4
    assert queries.default.prompts != queries.benchmark.prompts
    starts = sampled.indptr_Q1
    expected = [sampled.answer_P[starts[query] : starts[query + 1]].tolist() for query in range(4)]
    assert [gold.tolist() for gold in queries.gold()] == expected


def first_ranks(score_QC, gold):
    """Return the rank of the best gold name of each query, by a loop."""
    ranks = []
    for score_C, right in zip(score_QC, gold, strict=True):
        order = sorted(
            range(len(score_C)), key=lambda name, score_C=score_C: (-score_C[name], name)
        )
        ranks.append(min(order.index(name) for name in right))
    return ranks


@pytest.fixture
def rewired(tmp_path):
    return save_tiny(tmp_path / "rewired", "electra")


def test_a_hybrid_and_its_parts_rank_names_as_loops_do(benchmark_folder, always_risk, rewired):
    queries = read_baseline_queries(benchmark_folder, "full")
    weight = 0.3
    three = evaluate_baselines(
        [always_risk],
        ["hybrid"],
        queries,
        decode=DecodeConfig(),
        rewired=RewiredEncoder(rewired, None, weight),
    )
    names = queries.benchmark.names
    texts = queries.benchmark.queries("[MASK]")
    encoder = build_text_encoder(
        TextEncoderConfig(source=rewired, pooling="cls", max_length=50), seed=0
    )
    name_vectors = [embed(encoder, [name])[0] for name in names]
    language_model = load_masked_lm(always_risk)
    pieces = language_model.name_tokens(names)
    scores = {"mask": [], "encoder": [], "hybrid": []}
    for query in texts:
        log_prob_V = (
            language_model.at_masks(language_model.cloze_tokens([query], 64))[0].double().tolist()
        )
        mask = [np.mean([log_prob_V[piece] for piece in one]) for one in pieces]
        near = [-oracles.distance(embed(encoder, [query])[0], vector) for vector in name_vectors]
        single = [name for name in range(len(names)) if len(pieces[name]) == 1]
        of_mask = [mask[name] for name in single]
        of_encoder = [near[name] for name in single]
        mixed = list(near)
        for name in single:
            standard = (mask[name] - np.mean(of_mask)) / np.std(of_mask)
            mixed[name] = (1 - weight) * near[name] + weight * (
                np.mean(of_encoder) + np.std(of_encoder) * standard
            )
        for one, values in zip(scores.values(), (mask, near, mixed), strict=True):
            one.append(values)
    assert 1 < len(single) < len(names)
    gold = [right.tolist() for right in queries.gold()]
    for baseline, score_QC in zip(three, scores.values(), strict=True):
        assert baseline.outcome.first_hit_Q.tolist() == first_ranks(score_QC, gold)
        assert baseline.is_single_Q.tolist() == [
            any(len(pieces[name]) == 1 for name in right) for right in gold
        ]
        for row, shown in zip(queries.example_rows(), baseline.examples, strict=True):
            assert list(shown) == [
                names[name]
                for name in sorted(range(len(names)), key=lambda n: -score_QC[row][n])[:5]
            ]
    assert len({tuple(first_ranks(score_QC, gold)) for score_QC in scores.values()}) == 3
    assert [one.method for one in three] == [
        "mask average",
        "encoder alone, cls pooling",
        "hybrid, weight 0.3",
    ]
    assert three[2].model == f"{always_risk} and rewired"


@pytest.mark.parametrize("restrict", [False, True])
def test_a_hybrid_of_weight_0_equals_the_encoder_alone_and_the_probe(
    benchmark_folder, always_risk, rewired, restrict
):
    queries = read_baseline_queries(benchmark_folder, "full", queries_per_relation=2)
    settings = {
        "decode": DecodeConfig(),
        "restrict": restrict,
        "rewired": RewiredEncoder(rewired, "mean", 0.0),
    }
    _, alone, hybrid = evaluate_baselines([always_risk], ["hybrid"], queries, **settings)
    config = ProbeConfig(candidates="relation" if restrict else "all")
    (probed,) = probe_models([rewired], {"full": queries.benchmark}, config, pooling="mean")["full"]
    for one in (alone, hybrid):
        for k in one.ks:
            np.testing.assert_array_equal(one.outcome.hits(k), probed.outcome.hits(k))


def test_a_hybrid_without_one_of_its_parts_is_refused(benchmark_folder, always_risk, rewired):
    queries = read_baseline_queries(benchmark_folder, "full")
    for methods, encoder in ((["hybrid"], None), (["mask-average"], RewiredEncoder(rewired))):
        with pytest.raises(ConfigError, match="want both or neither"):
            evaluate_baselines(
                [always_risk], methods, queries, decode=DecodeConfig(), rewired=encoder
            )


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_a_generated_answer_to_the_default_prompt_is_found_at_its_rank(tmp_path, kind):
    folder = save_generative(tmp_path / kind, kind)
    generator = load_answer_generator(str(folder))
    (answers,) = generator.answers([f"aspirin may treat {generator.mask_token}"])
    generated = next(answer for answer in answers if answer)
    (tmp_path / "benchmark").mkdir()
    write_benchmark(
        tmp_path / "benchmark",
        {"may_treat": [("aspirin", [generated.upper()]), ("fever", ["nothing"])]},
    )
    queries = read_baseline_queries(tmp_path / "benchmark", "full")
    folded, exact = evaluate_baselines(
        [str(folder)], WITHOUT_HYBRID, queries, decode=DecodeConfig()
    )
    assert folded.outcome.first_hit_Q[0] == answers.index(generated)
    assert folded.outcome.first_hit_Q[1] >= 10
    assert (exact.outcome.first_hit_Q >= 10).all()
    assert queries.example_rows() == [0, 1]
    assert folded.examples[0] == exact.examples[0] == answers[:5]
    assert exact.remark == "default prompts; compared letter by letter"


def test_queries_of_biolama_have_the_manual_prompts_since_its_relations_are_codes(tmp_path):
    folder = source(tmp_path, ASPIRIN)
    queries = read_baseline_queries(folder, "full", queries_per_relation=1)
    assert queries.default.queries("<mask>") == ["aspirin is used for <mask> ."]


@pytest.mark.parametrize("methods", [["mask-average"], ["x-factr"]])
def test_a_language_model_of_nan_is_refused_with_its_name(benchmark_folder, tmp_path, methods):
    folder = sure_of("risk", tmp_path / "diverged")
    model = BertForMaskedLM.from_pretrained(folder)
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.weight.fill_(torch.nan)
    model.save_pretrained(folder)
    queries = read_baseline_queries(benchmark_folder, "full")
    with pytest.raises(ConfigError, match=f"model '{folder}': its logits are not finite"):
        evaluate_baselines([folder], methods, queries, decode=DecodeConfig())


@pytest.mark.parametrize("methods", [["mask-average"], ["x-factr"]])
def test_a_language_model_with_a_logit_of_inf_is_refused_with_its_name(
    benchmark_folder, tmp_path, methods
):
    folder = sure_of("risk", tmp_path / "overflowed")
    model = BertForMaskedLM.from_pretrained(folder)
    queries = read_baseline_queries(benchmark_folder, "full")
    with torch.no_grad():
        model.cls.predictions.bias[7] = -torch.inf
    model.save_pretrained(folder)
    assert evaluate_baselines([folder], methods, queries, decode=DecodeConfig())
    with torch.no_grad():
        model.cls.predictions.bias[7] = torch.inf
    model.save_pretrained(folder)
    with pytest.raises(ConfigError, match=f"model '{folder}': its logits are not finite"):
        evaluate_baselines([folder], methods, queries, decode=DecodeConfig())


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_an_encoder_decoder_without_finite_logits_is_refused_with_its_name(
    benchmark_folder, tmp_path, kind, value
):
    folder = str(save_generative(tmp_path / kind, kind))
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    with torch.no_grad():
        model.get_output_embeddings().weight[7].fill_(value)
    model.save_pretrained(folder)
    queries = read_baseline_queries(benchmark_folder, "full", queries_per_relation=1)
    with pytest.raises(ConfigError, match=f"model '{folder}': its logits are not finite"):
        evaluate_baselines([folder], ["generative"], queries, decode=DecodeConfig())


def test_a_model_that_supports_no_method_is_refused_at_once(benchmark_folder, always_risk):
    messages = []
    with pytest.raises(
        ConfigError, match="supports mask-average, x-factr or hybrid; got generative"
    ):
        evaluate_baselines(
            [always_risk],
            ["generative"],
            read_baseline_queries(benchmark_folder, "full"),
            decode=DecodeConfig(),
            log=messages.append,
        )
    assert messages == []


def test_a_model_that_is_missing_or_lacks_its_head_is_refused_at_once(
    benchmark_folder, always_risk, rewired, tmp_path
):
    for other, message in (
        (rewired, "no complete language-model head"),
        (str(tmp_path / "none"), "no such folder"),
    ):
        messages = []
        with pytest.raises(ConfigError, match=message):
            evaluate_baselines(
                [always_risk, other],
                WITHOUT_HYBRID,
                read_baseline_queries(benchmark_folder, "full"),
                decode=DecodeConfig(),
                log=messages.append,
            )
        assert messages == []
