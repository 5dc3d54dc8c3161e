"""Warnings about collapsed embeddings."""

import logging
import math
from pathlib import Path

import pytest
import torch

from raybio.core.config import override_all
from raybio.methods import METHODS
from raybio.methods.biostransformers.store import ArticleStore
from raybio.ops.embedding_geometry import EFFECTIVE_RANK, MEAN_COSINE
from raybio.training.collapse import CollapseWatch
from raybio.training.loop import fit
from raybio.training.settings import TrainingConfig
from tests.methods.conformance_cases import tiny_config

SPREAD = {MEAN_COSINE: 0.5, EFFECTIVE_RANK: 20.0}
COLLAPSED = {MEAN_COSINE: 0.999995, EFFECTIVE_RANK: 15.0}
ON_A_LINE = {MEAN_COSINE: 0.2, EFFECTIVE_RANK: 1.2}
CHANCE = math.log(63)


def watch(
    max_steps: int = 1000, *, is_pretrained: bool = True, is_supervised: bool = False
) -> CollapseWatch:
    settings = {"schedule.max_steps": max_steps, "optim.num_warmup_steps": 50}
    config = override_all(TrainingConfig(), settings)
    return CollapseWatch(config, is_pretrained=is_pretrained, is_supervised=is_supervised)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]


@pytest.mark.parametrize("metrics", [COLLAPSED, ON_A_LINE])
def test_collapsed_embeddings_are_warned_about_once(
    caplog: pytest.LogCaptureFixture, metrics: dict[str, float]
) -> None:
    watched = watch()
    for step in (0, 100, 200):
        watched.observe_evaluation(step, metrics)
    (only,) = warned(caplog)
    assert only.startswith("step 0: the embeddings have collapsed: mean cosine")


def test_an_encoder_that_collapses_in_training_is_advised_a_lower_rate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = watch()
    watched.observe_evaluation(0, SPREAD)
    watched.observe_evaluation(100, COLLAPSED)
    for step in range(1, 1001):
        watched.observe_step(step, {"ranking_loss": CHANCE, "ranking_chance": CHANCE})
    collapsed, at_chance = warned(caplog)
    assert collapsed.endswith("encoder.pooling, or lower optim.peak_lr (now 0.0003)")
    assert at_chance.endswith("encoder.pooling, or lower optim.peak_lr")
    caplog.clear()
    watch().observe_evaluation(0, COLLAPSED)
    (of_source,) = warned(caplog)
    assert of_source.endswith("Check encoder.source and encoder.pooling")


def test_a_healthy_encoder_is_not_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    watched = watch()
    for step in range(1, 1001):
        watched.observe_step(step, {"ranking_loss": CHANCE * 0.97, "ranking_chance": CHANCE})
    watched.observe_evaluation(0, SPREAD)
    watched.observe_evaluation(100, {"val/link_mrr": 0.1})
    watch(is_supervised=True).observe_evaluation(0, ON_A_LINE)
    assert warned(caplog) == []


def test_first_tokens_of_random_weights_are_warned_about_only_when_training_leaves_them_equal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = watch(is_pretrained=False)
    watched.observe_evaluation(0, COLLAPSED)
    assert warned(caplog) == []
    watched.observe_evaluation(100, COLLAPSED)
    (never_spread,) = warned(caplog)
    # Its steps may have been too small.
    assert never_spread.endswith("Check encoder.source and encoder.pooling")


@pytest.mark.parametrize(("max_steps", "expected"), [(1000, 250), (100, 100)])
def test_a_loss_that_stays_at_chance_is_warned_about_once_and_after_the_warm_up(
    caplog: pytest.LogCaptureFixture, max_steps: int, expected: int
) -> None:
    watched = watch(max_steps)
    watched.observe_evaluation(0, SPREAD)
    steps = []
    for step in range(1, max_steps + 1):
        before = len(warned(caplog))
        watched.observe_step(step, {"ranking_loss": 4.143, "ranking_chance": CHANCE, "loss": 4.143})
        steps += [step] * (len(warned(caplog)) - before)
    assert steps == [expected]
    (only,) = warned(caplog)
    assert "ranking_loss 4.143 is at chance (4.143, the loss of equal embeddings)" in only
    assert "(mean cosine 0.5, effective rank 20.00 at step 0)" in only


def test_a_loss_that_swings_around_chance_is_not_at_chance(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watched = watch()
    for step in range(1, 1001):
        watched.observe_step(
            step, {"ranking_loss": CHANCE * (1 + 0.03 * (-1) ** step), "ranking_chance": CHANCE}
        )
    assert warned(caplog) == []


def collapsed_source(config: TrainingConfig, store: ArticleStore, folder: Path) -> str:
    """Export a collapsed encoder, whose embeddings differ in the fifth digit."""
    system = METHODS["biostransformers"].build(config, store.path)
    with torch.no_grad():
        norm = system.model.model.encoder.layer[-1].output.LayerNorm
        norm.weight.mul_(1e-2)
        norm.bias.copy_(torch.randn(len(norm.bias), generator=torch.Generator().manual_seed(0)))
    return str(system.export(folder, {"name": "collapsed"}))


def test_training_a_collapsed_encoder_is_warned_about_at_step_0_and_at_chance(
    tiny_articles: ArticleStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {
        "schedule.evaluate_every_steps": 3,
        "optim.peak_lr": 1e-9,
        "objective.symmetric": False,
        "objective.learn_temperature": False,
    }
    config = tiny_config("biostransformers", **settings)
    source = collapsed_source(config, tiny_articles, tmp_path / "export")
    config = override_all(config, {"encoder.source": source})
    reports = list(fit(METHODS["biostransformers"].build(config, tiny_articles.path), config))
    assert reports[0].metrics[MEAN_COSINE] > 0.9999
    assert reports[0].metrics.keys() >= {MEAN_COSINE, EFFECTIVE_RANK}
    last = reports[-1].metrics
    assert last["ranking_loss"] == pytest.approx(last["ranking_chance"], rel=1e-3)
    spread, loss = warned(caplog)
    assert spread.startswith("step 0: the embeddings have collapsed: mean cosine 0.9999")
    assert loss.startswith("ranking_loss ")
