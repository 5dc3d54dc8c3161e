import pytest
import torch

from raybio.methods.mtb_mccl.mccl.adaptive_threshold import above_threshold, adaptive_threshold
from tests import relation_oracles


def problem(num=30, relations=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(num, relations, generator=generator, dtype=torch.float64)
    label = torch.rand(num, relations, generator=generator) < 0.3
    return logits, label


@pytest.mark.parametrize("na_index", [0, 3, 5])
@pytest.mark.parametrize("absent", [[], [1], [1, 3], [0, 3, 5], [0, 1, 2, 3, 4, 5]])
def test_the_loss_equals_the_loop_whatever_classes_are_absent(na_index, absent):
    logits, label = problem()
    logits[:, absent] = -torch.inf
    expected = relation_oracles.adaptive_threshold(logits.tolist(), label.tolist(), na_index)
    assert adaptive_threshold(logits, label, na_index=na_index).tolist() == pytest.approx(
        expected, abs=1e-10
    )
    single = adaptive_threshold(logits.float(), label, na_index=na_index)
    assert single.tolist() == pytest.approx(expected, abs=1e-5)


def test_nas_own_column_of_labels_is_not_read():
    logits, label = problem()
    flipped = label.clone()
    flipped[:, 2] = ~label[:, 2]
    assert torch.equal(
        adaptive_threshold(logits, label, na_index=2),
        adaptive_threshold(logits, flipped, na_index=2),
    )


def test_a_pair_of_no_relation_costs_only_what_presses_down():
    logits = torch.zeros(1, 4)
    loss = adaptive_threshold(logits, torch.zeros(1, 4, dtype=torch.bool), na_index=0)
    assert loss.item() == pytest.approx(torch.tensor(4.0).log().item())


def test_the_gradient_is_the_numeric_one_and_absent_classes_get_none():
    logits, label = problem(8)
    logits[:, 1] = -torch.inf
    label[0], label[1] = False, True
    there = [0, 2, 3, 4, 5]

    def loss(finite):
        every = logits.clone()
        every[:, there] = finite
        return adaptive_threshold(every, label, na_index=3)

    assert torch.autograd.gradcheck(loss, (logits[:, there].clone().requires_grad_(),))
    whole = logits.clone().requires_grad_()
    adaptive_threshold(whole, label, na_index=3).sum().backward()
    assert torch.isfinite(whole.grad).all()
    assert (whole.grad[:, 1] == 0).all()


def test_rows_of_absent_classes_alone_and_no_rows_stay_finite():
    logits = torch.full((2, 3), -torch.inf, requires_grad=True)
    loss = adaptive_threshold(logits, torch.ones(2, 3, dtype=torch.bool), na_index=0)
    loss.sum().backward()
    assert torch.equal(loss, torch.zeros(2))
    assert torch.equal(logits.grad, torch.zeros(2, 3))
    assert adaptive_threshold(logits[:0], torch.ones(0, 3, dtype=torch.bool), na_index=0).shape == (
        0,
    )


def test_large_logits_do_not_overflow():
    logits = torch.tensor([[0.0, 300.0, -300.0]], requires_grad=True)
    loss = adaptive_threshold(logits, torch.tensor([[False, False, True]]), na_index=0)
    loss.backward()
    assert loss.item() == pytest.approx(600.0)
    assert logits.grad.flatten().tolist() == pytest.approx([0.0, 1.0, -1.0])


def test_what_is_above_na_is_predicted_and_never_na():
    logits, _ = problem()
    logits[:, 1] = -torch.inf
    logits[3, 4] = logits[3, 2]  # as high is not above
    found = above_threshold(logits, na_index=2)
    expected = [[float(one) > float(row[2]) for one in row] for row in logits]
    assert found.tolist() == expected
    assert not found[:, [1, 2]].any()
    assert not found[3, 4]
    assert found.any()
    assert not found.all(1).any()


def test_training_on_the_loss_predicts_the_labels():
    _, label = problem()
    label[:, 0] = False
    logits = torch.zeros(30, 6, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.3)
    for _ in range(50):
        optimizer.zero_grad()
        adaptive_threshold(logits, label, na_index=0).mean().backward()
        optimizer.step()
    assert torch.equal(above_threshold(logits, na_index=0), label)


def test_wrong_arguments_are_refused():
    logits, label = problem()
    with pytest.raises(ValueError, match="na_index is 6"):
        adaptive_threshold(logits, label, na_index=6)
    with pytest.raises(ValueError, match="na_index is -1"):
        above_threshold(logits, na_index=-1)
    with pytest.raises(ValueError, match="want torch.bool"):
        adaptive_threshold(logits, label.float(), na_index=0)
    with pytest.raises(ValueError, match=r"shape \(29, 6\)"):
        adaptive_threshold(logits, label[1:], na_index=0)
