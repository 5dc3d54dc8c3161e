import numpy as np
import pytest
import torch

from raybio.methods.sppt.loss import (
    margin_contrastive,
    multi_similarity_global,
    multi_similarity_per_anchor,
)
from raybio.methods.sppt.objective import StructurePreserving
from raybio.methods.sppt.proteins.config import Config
from raybio.training.collective import SingleProcess
from tests import oracles

SETTINGS = {"positive_weight": 2.0, "negative_weight": 40.0, "threshold": 0.5}


def multi_similarity(embedding, linked, *, ignore_NN=None, **settings):
    """The mean over the anchors that count; the diagonal is never a pair."""
    ignored = torch.eye(len(embedding), dtype=torch.bool)
    if ignore_NN is not None:
        ignored |= ignore_NN
    loss, is_counted = multi_similarity_per_anchor(
        embedding, embedding, linked, ignored, **settings
    )
    return loss.sum() / is_counted.sum().clamp(min=1)


def problem(num=14, width=5, seed=0, density=0.3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.randn(num, width, generator=generator, dtype=torch.float64).to(dtype)
    upper = (torch.rand(num, num, generator=generator) < density).triu(1)
    ignored = (torch.rand(num, num, generator=generator) < 0.1).triu(1)
    return embedding, upper | upper.T, ignored | ignored.T


@pytest.mark.parametrize("mining_margin", [None, 0.1, 0.0, 10.0])
@pytest.mark.parametrize("density", [0.05, 0.3, 0.9])
@pytest.mark.parametrize("weights", [(2.0, 40.0, 0.5), (1.0, 1.0, 0.1), (2.0, 2.0, 0.1)])
def test_multi_similarity_equals_the_loop(mining_margin, density, weights):
    embedding, linked, ignored = problem(density=density)
    settings = dict(zip(SETTINGS, weights, strict=True)) | {"mining_margin": mining_margin}
    expected, per_anchor = oracles.multi_similarity(embedding, linked, ignore=ignored, **settings)
    assert multi_similarity(
        embedding, linked, ignore_NN=ignored, **settings
    ).item() == pytest.approx(expected, abs=1e-10)
    single = multi_similarity(embedding.float(), linked, ignore_NN=ignored, **settings).item()
    assert single == pytest.approx(expected, abs=1e-5)
    loss, is_counted = multi_similarity_per_anchor(
        embedding, embedding, linked, ignored | torch.eye(14, dtype=torch.bool), **settings
    )
    assert is_counted.tolist() == [value is not None for value in per_anchor]
    assert loss.tolist() == pytest.approx([value or 0.0 for value in per_anchor], abs=1e-10)


def test_a_margin_of_two_or_more_filters_nothing():
    embedding, linked, _ = problem()
    plain = multi_similarity(embedding, linked, **SETTINGS)
    assert torch.equal(plain, multi_similarity(embedding, linked, mining_margin=2.1, **SETTINGS))


def test_the_gradient_is_the_numeric_one():
    embedding, linked, ignored = problem(num=6)
    embedding.requires_grad_()
    for settings in (SETTINGS, SETTINGS | {"mining_margin": 0.3}):
        assert torch.autograd.gradcheck(
            lambda x, s=settings: multi_similarity(x, linked, ignore_NN=ignored, **s), (embedding,)
        )
    assert torch.autograd.gradcheck(
        lambda x: multi_similarity_global(x, linked, **SETTINGS), (embedding,)
    )


def test_the_order_of_the_batch_and_the_length_of_embeddings_do_not_matter():
    embedding, linked, ignored = problem()
    order = torch.randperm(14, generator=torch.Generator().manual_seed(1))
    scale = torch.rand(14, 1, dtype=torch.float64) * 100 + 1e-3
    plain = multi_similarity(embedding, linked, ignore_NN=ignored, mining_margin=0.1, **SETTINGS)
    moved = multi_similarity(
        (scale * embedding)[order],
        linked[order][:, order],
        ignore_NN=ignored[order][:, order],
        mining_margin=0.1,
        **SETTINGS,
    )
    assert moved.item() == pytest.approx(plain.item(), abs=1e-10)


@pytest.mark.parametrize("shares", [[7, 7], [3, 11], [14, 0], [5, 5, 4]])
def test_rows_divided_over_workers_give_the_loss_and_gradient_of_the_whole_batch(shares):
    whole, linked, ignored = problem()
    whole.requires_grad_()
    multi_similarity(whole, linked, ignore_NN=ignored, mining_margin=0.1, **SETTINGS).backward()
    parts = whole.detach().clone().requires_grad_()
    ignored = ignored | torch.eye(14, dtype=torch.bool)
    losses, counts, start = [], [], 0
    for share in shares:
        mine = slice(start, start + share)
        loss, is_counted = multi_similarity_per_anchor(
            parts[mine], parts, linked[mine], ignored[mine], mining_margin=0.1, **SETTINGS
        )
        losses.append(loss.sum())
        counts.append(is_counted.sum())
        start += share
    (sum(losses) / sum(counts)).backward()
    assert torch.allclose(parts.grad, whole.grad, atol=1e-12)


@pytest.mark.parametrize(
    "linked", [torch.zeros(4, 4, dtype=torch.bool), torch.ones(4, 4, dtype=torch.bool)]
)
def test_without_a_countable_anchor_the_loss_is_zero_with_a_zero_gradient(linked):
    embedding = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    loss = multi_similarity(embedding, linked, mining_margin=0.1, **SETTINGS)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(embedding.grad, torch.zeros(4, 3))


def test_extreme_weights_zero_vectors_and_duplicates_stay_finite():
    embedding, linked, _ = problem(dtype=torch.float32)
    embedding[0], embedding[1], embedding[2], embedding[3] = 0.0, 1e-25, 1e25, embedding[4]
    embedding.requires_grad_()
    loss = multi_similarity(
        embedding, linked, positive_weight=1e4, negative_weight=1e4, threshold=-1.0
    )
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(embedding.grad).all()
    assert loss.item() > 1


def test_half_precision_and_autocast_do_not_round_the_scores():
    embedding, linked, _ = problem(dtype=torch.bfloat16)
    expected = multi_similarity(embedding.float(), linked, **SETTINGS)
    assert torch.equal(multi_similarity(embedding, linked, **SETTINGS), expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(multi_similarity(embedding.float(), linked, **SETTINGS), expected)


@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_the_global_form_equals_the_loop(density):
    embedding, linked, ignored = problem(density=density)
    for settings in (SETTINGS, {"positive_weight": 1.0, "negative_weight": 1.0, "threshold": 0.1}):
        expected = oracles.multi_similarity_global(embedding, linked, ignore=ignored, **settings)
        found = multi_similarity_global(embedding, linked, ignore_NN=ignored, **settings)
        assert found.item() == pytest.approx(expected, abs=1e-9)


def test_weights_that_are_not_positive_are_refused():
    embedding, linked, _ = problem()
    with pytest.raises(ValueError, match="want both > 0"):
        multi_similarity(embedding, linked, positive_weight=0.0, negative_weight=1.0, threshold=0.5)


@pytest.mark.parametrize("margins", [(0.0, 10.0), (0.5, 1.0), (3.0, 0.0)])
def test_margin_contrastive_equals_the_loop(margins):
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(3, 9, 4))
    expected = oracles.margin_contrastive(*arrays, *margins)
    found = margin_contrastive(
        *torch.tensor(arrays), positive_margin=margins[0], negative_margin=margins[1]
    )
    assert found.item() == pytest.approx(expected, abs=1e-12)


def test_margin_contrastive_ignores_shifts_of_all_embeddings():
    arrays = torch.randn(3, 9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    margins = {"positive_margin": 0.1, "negative_margin": 4.0}
    shifted = margin_contrastive(*(arrays + torch.tensor([5.0, -3.0, 0.5, 0.0])), **margins)
    assert shifted.item() == pytest.approx(margin_contrastive(*arrays, **margins).item(), abs=1e-12)


def test_margin_contrastive_has_a_finite_gradient_at_distance_zero():
    anchor = torch.ones(3, 4, requires_grad=True)
    margin_contrastive(
        anchor, anchor.detach(), anchor.detach() + 1e-30, positive_margin=0.0, negative_margin=10.0
    ).backward()
    assert torch.isfinite(anchor.grad).all()


def test_a_worker_without_anchors_reports_the_terms_of_the_others():
    """Terms of all workers are summed as one tensor: with other names the sum would hang."""
    config = Config().objective.model_copy(update={"loss": "margin_contrastive"})
    objective = StructurePreserving(config, num_positives_per_anchor=1)
    found = [
        objective._margin_contrastive(torch.randn(rows, 4), None, SingleProcess())
        for rows in (6, 0)
    ]
    assert found[0][1].keys() == found[1][1].keys() == {"spml_chance"}
    assert float(found[1][0]) == float(found[1][1]["spml_chance"]) == 0
