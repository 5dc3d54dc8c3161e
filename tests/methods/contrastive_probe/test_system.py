from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raybio.core.config import override_all
from raybio.core.digest import weights_digest
from raybio.core.errors import ConfigError
from raybio.encoders.sentence_folder import write_sentence_files
from raybio.methods.contrastive_probe.config import Config, ProbeConfig
from raybio.methods.contrastive_probe.prepare import prepare_sentences
from raybio.methods.contrastive_probe.probe import probe_models
from raybio.methods.contrastive_probe.store import ClozeStore, commit_sentences
from raybio.methods.contrastive_probe.system import build, check
from raybio.methods.contrastive_probe.text_embedder import TextEmbedder
from raybio.ops.embedding_geometry import EFFECTIVE_RANK, MEAN_COSINE
from raybio.store.writer import Draft
from raybio.training.collective import SingleProcess
from raybio.training.loop import fit
from tests import oracles
from tests.encoders.tiny_text import embed, save_tiny
from tests.methods.conformance_cases import tiny_config

NAME = "contrastive_probe"


def test_every_saved_step_is_probed_and_the_final_report_has_each_relation(
    tiny_sentences: ClozeStore,
) -> None:
    config = tiny_config(NAME, **{"schedule.evaluate_every_steps": 2, "schedule.max_steps": 4})
    system = build(config, tiny_sentences.path)
    probed = [report for report in fit(system, config) if report.is_evaluation]
    assert [report.step for report in probed] == [0, 2, 4]
    final = system.final_evaluate(system.model, SingleProcess())
    for k in (1, 5, 10):
        by_relation = [
            row[f"acc_at_{k}"] for row in final.details["relations"]["trained"]["full"].values()
        ]
        assert final.scores["trained"]["full"][f"acc_at_{k}"]["value"] == pytest.approx(
            np.mean(by_relation)
        )
        assert probed[-1].metrics[f"val/acc_at_{k}"] == pytest.approx(np.mean(by_relation))
        if k != 5:
            logged = [
                value
                for key, value in probed[-1].metrics.items()
                if key.startswith(f"val/acc_at_{k}/")
            ]
            assert logged == pytest.approx(by_relation)
    assert list(final.details["relations"]["trained"]["full"]) == list(
        tiny_sentences.benchmarks["full"].relations
    )


def test_a_sample_of_the_queries_is_the_same_in_every_evaluation(
    tiny_sentences: ClozeStore,
) -> None:
    config = tiny_config(NAME, **{"evaluation.queries_per_relation": 3})
    system = build(config, tiny_sentences.path)
    first = system.evaluate(system.model, SingleProcess())
    assert system.evaluate(system.model, SingleProcess()) == first
    assert (first["val/acc_at_10"] * 4 * 3) == pytest.approx(round(first["val/acc_at_10"] * 4 * 3))


@pytest.mark.parametrize(
    ("metric", "sample", "setting"),
    [
        ("val/acc_at_10", "12 of {all} full queries", "queries_per_relation"),
        ("val/acc_at_10/may_treat", "12 of {all} full queries", "queries_per_relation"),
        ("val/agreement_at_10", "8 of {all} full queries", "agreement_queries_per_relation"),
        ("val/held_out_mrr", None, None),
        (None, None, None),
    ],
)
def test_the_queries_that_chose_the_step_of_the_weights_are_counted(
    metric: str | None, sample: str | None, setting: str | None, tiny_sentences: ClozeStore
) -> None:
    settings = {
        "schedule.evaluate_every_steps": 2,
        "schedule.early_stopping_metric": metric,
        "plan.num_held_out_sentences": 25,
        "evaluation.queries_per_relation": 3,
        "evaluation.agreement_queries_per_relation": 2,
    }
    system = build(tiny_config(NAME, **settings), tiny_sentences.path)
    evaluator = system.final_evaluate.__self__
    if sample is None:
        assert evaluator.remarks() == ()
        return
    queries = sample.format(all=len(tiny_sentences.benchmarks["full"].relation_Q))
    (remark,) = evaluator.remarks()
    assert remark == f"the step of the weights was chosen on {queries} (evaluation.{setting})"
    whole = settings | {
        "evaluation.queries_per_relation": None,
        "evaluation.agreement_queries_per_relation": 10**6,
    }
    of_all = build(tiny_config(NAME, **whole), tiny_sentences.path)
    assert of_all.final_evaluate.__self__.remarks() == ()


def test_retrieval_of_held_out_answers_equals_the_loop_with_the_distance_of_the_probe(
    tiny_sentences: ClozeStore,
) -> None:
    for metric, score in (
        ("euclidean", lambda a, b: -oracles.distance(a, b)),
        ("cosine", oracles.cosine),
    ):
        config = tiny_config(
            NAME, **{"plan.num_held_out_sentences": 25, "evaluation.metric": metric}
        )
        system = build(config, tiny_sentences.path)
        found = system.evaluate(system.model, SingleProcess())
        queries, answers = system.collate.held_out
        distinct = sorted(set(answers))
        query_HD, answer_CD = (embed(system.model, texts) for texts in (queries, distinct))
        scores = np.round([[score(query, answer) for answer in answer_CD] for query in query_HD], 6)
        gold = [[distinct.index(answer)] for answer in answers]
        ranks = oracles.gold_ranks(scores, gold)
        assert found["val/held_out_recall_at_1"] == pytest.approx(ranks.count(0) / 25)
        assert found["val/held_out_mrr"] == pytest.approx(
            oracles.mean_reciprocal_rank(scores, gold)
        )


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_agreement_compares_the_prompts_of_the_benchmark_with_default_prompts(
    metric: str, tiny_sentences: ClozeStore
) -> None:
    settings = {
        "evaluation.agreement_queries_per_relation": 5,
        "evaluation.metric": metric,
        # One token of a name is read, so that heads are cut equally.
        "evaluation.max_name_tokens": 3,
    }
    config = tiny_config(NAME, **settings)
    system = build(config, tiny_sentences.path)
    found = system.evaluate(system.model, SingleProcess())
    benchmark = tiny_sentences.benchmarks["full"].sample(5, seed=0)

    def nearest(query_QD: np.ndarray, candidate_CD: np.ndarray, k: int) -> list[list[int]]:
        if metric == "cosine":
            query_QD, candidate_CD = (
                one / np.linalg.norm(one, axis=1, keepdims=True) for one in (query_QD, candidate_CD)
            )
        return oracles.nearest(query_QD, candidate_CD, k)

    name_CD = TextEmbedder(system.model)(benchmark.names, 3).numpy()
    assert (name_CD != embed(system.model, benchmark.names)).any()
    near = []
    for words in (
        [one.split("[Y]")[0] for one in benchmark.prompts],
        [f"[X] {r.replace('_', ' ')}" for r in benchmark.relations],
    ):
        heads = zip(benchmark.relation_Q, benchmark.head_Q, strict=True)
        queries = [
            words[r].strip().replace("[X]", benchmark.names[head]) + " [MASK] ."
            for r, head in heads
        ]
        near.append(nearest(embed(system.model, queries), name_CD, 10))
    near.append(nearest(name_CD[benchmark.head_Q], name_CD, len(benchmark.names) // 10))
    assert len(near[2][0]) > 1
    agreement = [
        oracles.agreement(np.flatnonzero(benchmark.relation_Q == r).tolist(), *near)
        for r in range(4)
    ]
    logged = [found[f"val/agreement_at_10/{relation}"] for relation in benchmark.relations]
    assert logged == pytest.approx(agreement, abs=1e-6)
    assert found["val/agreement_at_10"] == pytest.approx(np.mean(agreement), abs=1e-6)
    # The names that answer a relation's queries are gold, so agreement ignores them.
    restricted = settings | {"evaluation.candidates": "relation"}
    restricted_metrics = build(tiny_config(NAME, **restricted), tiny_sentences.path).evaluate(
        system.model, SingleProcess()
    )
    assert {key: value for key, value in restricted_metrics.items() if "agreement" in key} == {
        key: value for key, value in found.items() if "agreement" in key
    }
    without = build(
        tiny_config(NAME, **{"evaluation.agreement_queries_per_relation": 0}), tiny_sentences.path
    )
    assert not any("agreement" in key for key in without.evaluate(without.model, SingleProcess()))


def test_a_longer_run_passes_through_the_weights_of_a_shorter_one(
    tiny_sentences: ClozeStore,
) -> None:
    """The learning rate is constant, so that a checkpoint step may be chosen afterwards."""

    def weights_at_step_3(max_steps: int) -> str:
        config = tiny_config(NAME, **{"schedule.max_steps": max_steps})
        system = build(config, tiny_sentences.path)
        next(report for report in fit(system, config) if report.step == 3)
        return weights_digest(system.model.named_parameters())

    assert weights_at_step_3(3) == weights_at_step_3(6)


def test_without_a_benchmark_a_store_is_trained_on_and_not_evaluated(tmp_path: Path) -> None:
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(f"number {row} is followed by {row + 1}" for row in range(30)))
    store = prepare_sentences(tmp_path / "store", [path])
    config = tiny_config(NAME, **{"schedule.evaluate_every_steps": 2})
    system = build(config, store.path)
    assert system.evaluate is None
    assert system.final_evaluate is None
    assert [report.step for report in fit(system, config)][-1] == 6
    config = tiny_config(NAME, **{"plan.num_held_out_sentences": 5})
    system = build(config, store.path)
    found = system.evaluate(system.model, SingleProcess())
    assert found.keys() == {
        "val/held_out_recall_at_1",
        "val/held_out_mrr",
        MEAN_COSINE,
        EFFECTIVE_RANK,
    }
    assert system.final_evaluate is None


def test_both_query_sets_can_be_probed_during_training(
    tiny_sentences: ClozeStore, tmp_path: Path
) -> None:
    """As in Figures 4 and 9 of the paper."""
    full, sets = (
        tiny_sentences.benchmarks["full"],
        {"some": [f"number {row} is odd" for row in range(30)]},
    )
    parts: dict[str, Any] = {
        "sets": sets,
        "count_by_word": tiny_sentences.count_by_word,
        "provenance": {},
    }
    benchmarks = {"full": full, "hard": full.sample(3, seed=2)}
    with Draft(tmp_path / "store", force=False) as draft:
        store = commit_sentences(draft, benchmarks=benchmarks, **parts)
    config = tiny_config(NAME, **{"evaluation.query_set": "both"})
    system = build(config, store.path)
    found = system.evaluate(system.model, SingleProcess())
    for prefix, query_set in (("val/", "full"), ("val/hard_", "hard")):
        benchmark = benchmarks[query_set]
        near = oracles.nearest(
            embed(system.model, benchmark.queries("[MASK]")),
            embed(system.model, benchmark.names),
            10,
        )
        answers = np.split(benchmark.answer_P, benchmark.indptr_Q1[1:-1])
        is_right = np.array(
            [bool(set(names) & set(right)) for names, right in zip(near, answers, strict=True)]
        )
        by_relation = [is_right[benchmark.relation_Q == relation].mean() for relation in range(4)]
        assert found[f"{prefix}acc_at_10"] == pytest.approx(np.mean(by_relation))
        assert found[f"{prefix}micro_acc_at_10"] == pytest.approx(is_right.mean())
        # Without the other set, the hard queries have the same metric names.
        config = tiny_config(NAME, **{"evaluation.query_set": query_set})
        alone = build(config, store.path).evaluate(system.model, SingleProcess())
        assert {name: found[name] for name in alone if "acc_at" in name} == {
            name: value for name, value in alone.items() if "acc_at" in name
        }
    assert found["val/acc_at_10"] != found["val/hard_acc_at_10"]
    settings = {
        "schedule.evaluate_every_steps": 2,
        "schedule.keep_best": "val/hard_acc_at_10",
        "evaluation.query_set": "both",
        "evaluation.queries_per_relation": 2,
    }
    sampled = build(tiny_config(NAME, **settings), store.path)
    (remark,) = sampled.final_evaluate.__self__.remarks()
    assert "8 of 12 hard queries (evaluation.queries_per_relation)" in remark


def test_a_query_set_that_the_store_lacks_is_refused_at_once(tiny_sentences: ClozeStore) -> None:
    for wanted in ("hard", "both"):
        config = tiny_config(NAME, **{"evaluation.query_set": wanted})
        for refuse in (
            partial(check, config, tiny_sentences),
            partial(build, config, tiny_sentences.path),
        ):
            with pytest.raises(
                ConfigError, match=rf"evaluation.query_set is {wanted}, and .* has only the full"
            ):
                refuse()


@pytest.mark.parametrize(
    "setting", ["cloze.max_tokens", "evaluation.max_query_tokens", "evaluation.max_name_tokens"]
)
def test_texts_longer_than_what_the_encoder_reads_are_refused_at_once(
    setting: str, tiny_sentences: ClozeStore
) -> None:
    config = tiny_config(NAME, **{setting: 33})
    for refuse in (
        lambda: check(config, tiny_sentences),
        lambda: build(config, tiny_sentences.path),
    ):
        with pytest.raises(ConfigError, match=f"{setting} is 33, and encoder.max_length is 32"):
            refuse()
    check(tiny_config(NAME, **{setting: 33, "encoder.max_length": "auto"}), tiny_sentences)


def test_a_query_of_any_length_keeps_its_mask(tmp_path: Path) -> None:
    """Cut at its end, as in the authors' code, a long query would lose its mask."""
    path = tmp_path / "sentences.txt"
    path.write_text(
        "\n".join(" ".join([f"number {row} is followed by", *["and"] * 80]) for row in range(30))
    )
    config = tiny_config(NAME, **{"cloze.mask_ratio": 0.1, "plan.num_held_out_sentences": 5})
    system = build(config, prepare_sentences(tmp_path / "store", [path]).path)
    arrays = system.collate(0, 0, 1)
    rows = np.split(arrays["token_T"], arrays["indptr_R1"][1:-1])
    num, mask_id = len(rows) // 2, system.model.tokenizer.mask_token_id
    assert [row.tolist().count(mask_id) for row in rows] == [1] * num + [0] * num
    assert {len(row) for row in rows[:num]} == {32}
    # Also in the middle of a text, as in queries of a benchmark.
    embedder = TextEmbedder(system.model)
    long = " ".join(["number"] * 40)
    mask = system.model.tokenizer.mask_token
    with_mask, without, elsewhere = embedder(
        [f"{long} {mask} {long}", f"{long} {long}", f"{mask} {long} {long}"], 32
    )
    assert not torch.equal(with_mask, without)
    assert not torch.equal(with_mask, elsewhere)


def test_a_run_and_the_probe_of_its_export_have_the_same_scores(
    tiny_sentences: ClozeStore, tmp_path: Path
) -> None:
    """Also if the source's folder says that embeddings have length 1, unlike the protocol."""
    source = save_tiny(tmp_path / "source")
    write_sentence_files(
        tmp_path / "source", width=32, pooling="mean", max_tokens=50, is_normalized=True
    )
    config = override_all(
        Config(), {"encoder.source": source, "encoder.pooling": "mean", "plan.global_batch_rows": 8}
    )
    system = build(config, tiny_sentences.path)
    assert not system.model.is_normalized
    system.export(tmp_path / "export", {"name": "tiny"})
    scores = system.final_evaluate(system.model, SingleProcess()).scores["trained"]["full"]
    benchmarks = {"full": tiny_sentences.benchmarks["full"]}
    (probed,) = probe_models([str(tmp_path / "export")], benchmarks, ProbeConfig(), pooling="mean")[
        "full"
    ]
    for k in (1, 5, 10):
        assert scores[f"acc_at_{k}"]["value"] == probed.outcome.macro(k)
