import pytest
import torch
import torch.nn.functional as F

from raybio.ops.contrastive import info_nce
from tests import oracles


def problem(num=9, num_candidates=13, width=5, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    anchor = torch.randn(num, width, generator=generator, dtype=torch.float64).to(dtype)
    candidate = torch.randn(num_candidates, width, generator=generator, dtype=torch.float64).to(
        dtype
    )
    positive = torch.randint(0, num_candidates, (num,), generator=generator)
    ignore = torch.rand(num, num_candidates, generator=generator) < 0.3
    return anchor, candidate, positive, ignore


@pytest.mark.parametrize("block_rows", [None, 1, 4, 100])
@pytest.mark.parametrize("temperature", [0.01, 0.07, 1.0])
@pytest.mark.parametrize("is_masked", [False, True])
def test_info_nce_equals_the_loop(block_rows, temperature, is_masked):
    anchor, candidate, positive, ignore = problem()
    ignore = ignore if is_masked else None
    expected = oracles.info_nce(anchor, candidate, positive.tolist(), temperature, ignore)
    result = info_nce(
        anchor,
        candidate,
        positive,
        temperature=temperature,
        ignore_NM=ignore,
        block_rows=block_rows,
    )
    assert result.item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("block_rows", [None, 7])
def test_loss_and_gradients_equal_cross_entropy(block_rows):
    anchor, candidate, positive, ignore = problem(60, 50, 16, torch.float32)
    ignore[torch.arange(60), positive] = False
    results = []
    for blocked in (False, True):
        q, k = anchor.clone().requires_grad_(), candidate.clone().requires_grad_()
        temperature = torch.tensor(0.05, requires_grad=True)
        if blocked:
            loss = info_nce(
                q, k, positive, temperature=temperature, ignore_NM=ignore, block_rows=block_rows
            )
        else:
            score = F.normalize(q, dim=1) @ F.normalize(k, dim=1).T / temperature
            loss = F.cross_entropy(score.masked_fill(ignore, -torch.inf), positive)
        (3 * loss).backward()
        results.append((loss, q.grad, k.grad, temperature.grad))
    for plain, tiled in zip(*results, strict=True):
        assert torch.allclose(plain, tiled, rtol=1e-5, atol=1e-6)


def test_the_gradient_is_the_numeric_one():
    anchor, candidate, positive, ignore = problem()
    assert torch.autograd.gradcheck(
        lambda q, k: info_nce(q, k, positive, temperature=0.2, ignore_NM=ignore, block_rows=2),
        (anchor.requires_grad_(), candidate.requires_grad_()),
    )


def test_each_side_may_require_a_gradient_or_not():
    anchor, candidate, positive, _ = problem()
    both = [anchor.clone().requires_grad_(), candidate.clone().requires_grad_()]
    info_nce(*both, positive, temperature=0.1).backward()
    for side in (0, 1):
        alone = [anchor.clone(), candidate.clone()]
        alone[side].requires_grad_()
        info_nce(*alone, positive, temperature=0.1).backward()
        assert torch.allclose(alone[side].grad, both[side].grad)
    assert not info_nce(anchor, candidate, positive, temperature=0.1).requires_grad


def test_shared_candidates_give_the_sum_of_both_gradients():
    anchor, _, _, _ = problem()
    shared = anchor.clone().requires_grad_()
    index = torch.arange(9).roll(1)
    info_nce(shared, shared, index, temperature=0.3, block_rows=2).backward()
    plain = anchor.clone().requires_grad_()
    unit = F.normalize(plain, dim=1)
    F.cross_entropy(unit @ unit.T / 0.3, index).backward()
    assert torch.allclose(shared.grad, plain.grad)


def test_the_order_of_candidates_and_the_length_of_embeddings_do_not_matter():
    anchor, candidate, positive, ignore = problem()
    order = torch.randperm(13, generator=torch.Generator().manual_seed(1))
    plain = info_nce(anchor, candidate, positive, temperature=0.1, ignore_NM=ignore)
    moved = info_nce(
        7 * anchor,
        0.01 * candidate[order],
        order.argsort()[positive],
        temperature=0.1,
        ignore_NM=ignore[:, order],
    )
    assert moved.item() == pytest.approx(plain.item(), abs=1e-12)


def test_copies_of_the_positive_cost_a_logarithm():
    anchor = torch.eye(3)[:1]
    loss = info_nce(anchor, anchor.expand(4, 3), torch.tensor([2]), temperature=0.05)
    assert loss.item() == pytest.approx(torch.tensor(4.0).log().item(), abs=1e-6)


def test_all_but_the_positive_ignored_costs_nothing():
    anchor, candidate, positive, ignore = problem(dtype=torch.float32)
    anchor.requires_grad_()
    loss = info_nce(
        anchor, candidate, positive, temperature=0.05, ignore_NM=torch.ones_like(ignore)
    )
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert anchor.grad.abs().max() < 1e-5


def test_tiny_temperatures_and_zero_vectors_stay_finite():
    anchor, candidate, positive, _ = problem(dtype=torch.float32)
    anchor[0], candidate[0] = 0.0, 0.0
    anchor.requires_grad_()
    loss = info_nce(anchor, candidate, positive, temperature=1e-6)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(anchor.grad).all()


def test_no_anchor_gives_zero_with_a_gradient():
    candidate = torch.ones(3, 2, requires_grad=True)
    loss = info_nce(torch.ones(0, 2), candidate, torch.zeros(0, dtype=torch.int64), temperature=0.1)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(candidate.grad, torch.zeros(3, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"positive_index_N": torch.full((9,), 13)}, r"want \[0, 13\)"),
        ({"positive_index_N": torch.zeros(8, dtype=torch.int64)}, "shape"),
        ({"ignore_NM": torch.zeros(13, 9, dtype=torch.bool)}, "shape"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    anchor, candidate, positive, _ = problem()
    with pytest.raises(ValueError, match=message):
        info_nce(anchor, candidate, **{"positive_index_N": positive, "temperature": 0.1} | change)
