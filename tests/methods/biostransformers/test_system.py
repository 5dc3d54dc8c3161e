import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from raybio.core.config import override
from raybio.core.errors import CheckpointError, ConfigError, DataError, StoreError
from raybio.core.interfaces import Collective
from raybio.methods.biostransformers import evaluate as evaluate_module
from raybio.methods.biostransformers.collector import ArticleCollector
from raybio.methods.biostransformers.config import ArticleConfig, Config, RankingConfig
from raybio.methods.biostransformers.demo import SIMULATED_LITERATURE, LiteratureConfig
from raybio.methods.biostransformers.formats.tables import Article, to_batch
from raybio.methods.biostransformers.loss import MultipleNegativesRanking
from raybio.methods.biostransformers.store import ArticleStore
from raybio.methods.biostransformers.system import build, check
from raybio.store.store import Store
from raybio.store.writer import Draft
from raybio.training.checkpoint import CheckpointStore
from raybio.training.collective import SingleProcess
from raybio.training.loop import fit
from tests.methods.conformance_cases import tiny_config
from tests.methods.test_conformance import assert_equal_gradients, gradients, walk
from tests.training.workers import run_workers

NAME = "biostransformers"


def test_the_loss_of_the_first_step_is_the_formula_of_the_paper_over_the_whole_batch(
    tiny_articles: ArticleStore,
) -> None:
    """-log softmax of scaled cosines at each text's own term, without the article's other terms."""
    config = tiny_config(NAME, **{"objective.symmetric": False, "plan.conflicts": "mask"})
    system = build(config, tiny_articles.path)
    batch = system.batch_type.from_arrays(system.collate(0, 0, 1))
    system.model.eval()
    with torch.no_grad():
        embedding = system.model(
            batch.pad(torch.arange(batch.num_rows), system.model.pad_id)
        ).embedding_RD
        report = system.objective.embedding_loss(embedding, batch, SingleProcess())
    texts, terms = (
        torch.nn.functional.normalize(part, dim=1).double() for part in embedding.chunk(2)
    )
    expected = []
    for i in range(len(texts)):
        own_terms = batch.term_E[batch.pair_E == i].tolist()
        allowed = [j for j in range(len(terms)) if j == i or int(batch.term_N[j]) not in own_terms]
        scores = torch.stack([20 * texts[i] @ terms[j] for j in allowed])
        expected.append(-torch.log_softmax(scores, 0)[allowed.index(i)])
    assert float(report.loss) == pytest.approx(float(torch.stack(expected).mean()), rel=1e-5)
    assert float(report.terms["ignored_pair_rate"]) > 0


def test_the_final_evaluation_can_draw_articles_and_says_so(
    tiny_articles: ArticleStore,
) -> None:
    whole = build(tiny_config(NAME), tiny_articles.path).final_evaluate.__self__
    assert whole.remarks() == []
    num_articles = whole.details()["num_query_articles"]
    settings = {"evaluation.num_articles_at_the_end": 3}
    sampled = build(tiny_config(NAME, **settings), tiny_articles.path).final_evaluate.__self__
    assert sampled.details()["num_query_articles"] == 3 < num_articles
    assert sampled.remarks() == [
        f"3 of {num_articles} validation articles were evaluated "
        "(evaluation.num_articles_at_the_end)"
    ]
    assert tiny_config(NAME).evaluation.num_articles_at_the_end == 20_000


def test_a_rival_that_searches_a_sample_says_so(
    tiny_articles: ArticleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator = build(tiny_config(NAME), tiny_articles.path).final_evaluate.__self__
    every = tiny_articles.training_rows(evaluator.config.query_field, 10**6)
    monkeypatch.setattr(evaluate_module, "MAX_TRAINING_TEXTS", len(every))
    assert evaluator.remarks() == []
    monkeypatch.setattr(evaluate_module, "MAX_TRAINING_TEXTS", 3)
    assert evaluator.remarks() == ["nearest articles: of a sample of 3 training articles"]
    without = tiny_config(NAME, **{"evaluation.rivals": False})
    assert build(without, tiny_articles.path).final_evaluate.__self__.remarks() == []


def test_the_sample_that_chose_the_step_of_the_weights_is_named(
    tiny_articles: ArticleStore,
) -> None:
    settings = {
        "schedule.evaluate_every_steps": 2,
        "schedule.keep_best": "val/text_to_term_mrr",
        "evaluation.num_articles": 3,
    }
    chosen = build(tiny_config(NAME, **settings), tiny_articles.path).final_evaluate.__self__
    num_articles = chosen.details()["num_query_articles"]
    assert chosen.remarks() == [
        f"the step of the weights was chosen on 3 of {num_articles} validation articles "
        "(evaluation.num_articles)"
    ]
    unchosen = settings | {"schedule.keep_best": None}
    last = build(tiny_config(NAME, **unchosen), tiny_articles.path).final_evaluate.__self__
    assert last.remarks() == []


@pytest.mark.parametrize(
    ("conflicts", "symmetric"),
    [
        ("mask", True),
        pytest.param("drop", False, marks=pytest.mark.nightly),
        pytest.param("mask", False, marks=pytest.mark.nightly),
        pytest.param("reject", False, marks=pytest.mark.nightly),
        pytest.param("reject", True, marks=pytest.mark.nightly),
    ],
)
def test_two_workers_have_the_gradient_of_one(
    conflicts: str, symmetric: bool, tiny_articles: ArticleStore, tmp_path: Path
) -> None:
    settings = {
        "plan.conflicts": conflicts,
        "objective.symmetric": symmetric,
        "plan.global_batch_rows": 5 if conflicts == "drop" else 11,
    }
    alone = gradients(build(tiny_config(NAME, **settings), tiny_articles.path), SingleProcess(), 1)
    run_workers(
        partial(save_gradients, settings=settings, store=str(tiny_articles.path)), 2, tmp_path
    )
    for rank in range(2):
        assert_equal_gradients(load_file(tmp_path / f"{rank}.safetensors"), alone)


def test_a_run_that_drops_pairs_resumes_exactly(
    tiny_articles: ArticleStore, tmp_path: Path
) -> None:
    config = tiny_config(NAME, **{"plan.conflicts": "drop", "plan.global_batch_rows": 3})
    unbroken = walk(NAME, config, tiny_articles.path, tmp_path / "unbroken")
    left = CheckpointStore(tmp_path / "resumed")
    for report in fit(build(config, tiny_articles.path), config, checkpoints=left):
        if report.step == 3:
            break
    left.wait()
    again = walk(NAME, config, tiny_articles.path, tmp_path / "resumed")
    assert again.newest == unbroken.newest
    assert 1 not in {report.step for report in again.reports}
    steps = [report.metrics for report in unbroken.reports if report.step]
    assert sum(step["dropped_pairs_per_pair"] for step in steps) > 0
    assert all(step["ignored_pair_rate"] == 0 for step in steps)


def save_gradients(
    rank: int, collective: Collective, folder: Path, settings: dict, store: str
) -> None:
    system = build(tiny_config(NAME, **settings), store)
    found = gradients(system, collective, 1)
    save_file(found, folder / f"{rank}.safetensors")


def test_a_learned_temperature_moves_however_slow_the_encoder_and_is_not_exported(
    tiny_articles: ArticleStore, tmp_path: Path
) -> None:
    config = tiny_config(
        NAME, **{"optim.peak_lr": 1e-9, "optim.scalar_lr": 1e-2, "optim.schedule": "constant"}
    )
    system = build(config, tiny_articles.path)
    reports = [report.metrics for report in fit(system, config)]
    # Five updates come before the last report, each about as large as the learning rate.
    assert 0.01 < abs(math.log(reports[-1]["temperature"] / config.objective.temperature)) < 0.06
    folder = system.export(tmp_path / "export", {"name": "tiny"})
    assert "log_temperature" not in load_file(folder / "model.safetensors")


def test_a_learned_temperature_keeps_its_gradient_at_its_bound() -> None:
    generator = torch.Generator().manual_seed(0)
    log_temperature = torch.tensor(math.log(0.005), requires_grad=True)
    objective = MultipleNegativesRanking(RankingConfig(learn_temperature=True), log_temperature)
    numbers = torch.arange(4)
    batch = SimpleNamespace(
        term_N=numbers, pair_E=numbers, term_E=numbers, num_deferred=0, num_forced=0, num_dropped=0
    )
    embedding_RD = torch.randn(8, 3, generator=generator)
    report = objective.embedding_loss(embedding_RD, batch, SingleProcess())
    report.loss.backward()
    assert report.terms["temperature"] == pytest.approx(0.01)
    assert log_temperature.grad != 0
    assert log_temperature.item() == pytest.approx(math.log(0.01))
    with pytest.raises(ConfigError, match="temperature is 0.005, and a learned one stays at or"):
        tiny_config(NAME, **{"objective.temperature": 0.005})


def test_the_export_gives_the_embeddings_of_training_in_sentence_transformers(
    tiny_articles: ArticleStore, tmp_path: Path
) -> None:
    from sentence_transformers import SentenceTransformer

    system = build(tiny_config(NAME), tiny_articles.path)
    texts = tiny_articles.texts("title", np.arange(5))
    theirs = SentenceTransformer(
        str(system.export(tmp_path / "export", {"name": "tiny"})), device="cpu"
    ).encode(texts)
    token_T, indptr_R1 = system.collate.texts[0](np.arange(5))
    with torch.no_grad():
        for row in range(5):
            token = torch.from_numpy(token_T[indptr_R1[row] : indptr_R1[row + 1]].astype(np.int64))[
                None
            ]
            states = system.model.eval().model(input_ids=token).last_hidden_state
            np.testing.assert_allclose(theirs[row], states[0].mean(0).numpy(), atol=1e-5)


def test_a_store_of_proteins_is_refused(tiny_store: Store) -> None:
    with pytest.raises(
        StoreError, match="is a store of proteins, made by .*; want one of articles"
    ):
        build(tiny_config(NAME), tiny_store.path)


def test_another_tokenizer_is_refused_when_a_run_goes_on(
    tiny_articles: ArticleStore, tmp_path: Path
) -> None:
    config = tiny_config(NAME)
    list(fit(build(config, tiny_articles.path), config, checkpoints=CheckpointStore(tmp_path)))
    smaller = tiny_config(NAME, **{"encoder.vocabulary_size": 60})
    with pytest.raises(CheckpointError, match="vocabulary_size"):
        list(
            fit(build(smaller, tiny_articles.path), smaller, checkpoints=CheckpointStore(tmp_path))
        )


def test_the_simulated_literature_is_read_by_the_real_reader_and_is_the_same_each_time(
    tmp_path: Path,
) -> None:
    config = LiteratureConfig(num_articles=80, num_branches=3, topics_per_branch=4)
    one, two = (
        SIMULATED_LITERATURE.prepare(tmp_path / "one", config),
        SIMULATED_LITERATURE.prepare(tmp_path / "two", config),
    )
    assert one.digest == two.digest
    assert one.num_rows == 80
    assert one.manifest["counts"]["articles_with_abstract"] == 80
    assert {"Humans", "Female"} <= set(one.term_names.to_pylist())
    assert SIMULATED_LITERATURE.prepare(tmp_path / "one", config).digest == one.digest


def test_without_validation_articles_training_is_refused_or_goes_without_scores(
    tmp_path: Path,
) -> None:
    with Draft(tmp_path / "store") as draft:
        collector = ArticleCollector(draft.folder)
        collector.add(
            to_batch(
                [Article(number, f"w{number}", "", [f"T{number % 7}"]) for number in range(1, 30)]
            )
        )
        store = collector.commit(draft, ArticleConfig(validation_share=0), {})
    with pytest.raises(DataError, match="no validation article has a title and a term"):
        build(tiny_config(NAME, **{"schedule.evaluate_every_steps": 2}), store.path)
    with pytest.raises(DataError, match="no validation article has a title and a term"):
        check(tiny_config(NAME, **{"schedule.evaluate_every_steps": 2}), store)
    system = build(tiny_config(NAME), store.path)
    assert system.evaluate is None and system.final_evaluate is None


def test_texts_that_no_article_has_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with Draft(tmp_path / "store") as draft:
        collector = ArticleCollector(draft.folder)
        collector.add(
            to_batch(
                [Article(number, f"w{number}", "", [f"T{number % 7}"]) for number in range(1, 30)]
            )
        )
        store = collector.commit(draft, ArticleConfig(), {})
    config = tiny_config(NAME)
    check(config, store)
    with pytest.raises(ConfigError, match=r"are only (2.) training pairs: give --set plan.*=\1 or"):
        check(override(config, "plan.global_batch_rows", "30"), store)
    for setting, value in {"plan.fields": "title,abstract", "evaluation.field": "abstract"}.items():
        message = f"{setting}: got abstract, but no article of .* has one, want texts that are"
        for refuse in (check, lambda config, store: build(config, store.path)):
            with pytest.raises(ConfigError, match=message):
                refuse(override(config, setting, value), store)


def test_the_defaults_are_those_of_the_papers_code() -> None:
    config = Config()
    assert (config.plan.global_batch_rows, config.plan.conflicts, config.encoder.max_length) == (
        384,
        "reject",
        128,
    )
    assert (config.optim.peak_lr, config.optim.schedule, config.optim.num_warmup_steps) == (
        2e-5,
        "linear",
        500,
    )
    assert (
        config.objective.temperature,
        config.objective.symmetric,
        config.text.max_characters,
    ) == (0.05, False, 500)
