"""What stands in place of L_rel: binary classification of pairs, and MCCL over entity pairs."""

import pytest
import torch
import torch.nn.functional as F

from raybio.methods.mtb_mccl.mccl.loss import multi_center_logits
from raybio.methods.mtb_mccl.mtb.multi_center import multi_center_contrast
from raybio.methods.mtb_mccl.mtb.pair_equality import pair_equality
from raybio.methods.mtb_mccl.pair_contrast import PairRows
from raybio.training.collective import SingleProcess
from tests import relation_oracles

NUM = 14
TEMPERATURES = {"weight_temperature": 0.2, "logit_temperature": 0.3}


def problem(num=NUM, width=5, seed=0, dtype=torch.float64):
    """Return rows with recurring entity pairs; one row has another type, which is noise."""
    generator = torch.Generator().manual_seed(seed)
    pair = torch.randn(num, width, generator=generator, dtype=torch.float64).to(dtype)
    entity_pair = torch.randint(-1, 5, (num,), generator=generator)
    kind = torch.where(torch.arange(num) == 2, 7, entity_pair.clamp(min=0) % 3)
    return pair, entity_pair, kind


def relations(entity_pair, kind, type_filter):
    def is_positive(i, j):
        return entity_pair[i] == entity_pair[j] and entity_pair[i] >= 0

    def is_negative(i, j):
        return not is_positive(i, j) and (not type_filter or kind[i] != kind[j])

    return is_positive, is_negative


def binary(pair, entity_pair, kind, **rest):
    """(total, number) of either side, end to end."""
    positive, negative = pair_equality(PairRows(pair, entity_pair, kind), **rest)
    return [*positive, *negative]


def centers(pair, entity_pair, kind, **rest):
    rows = PairRows(pair, entity_pair, kind)
    return list(multi_center_contrast(rows, **TEMPERATURES | rest))


FORMS = pytest.mark.parametrize("form", [binary, centers])


@pytest.mark.parametrize("type_filter", [True, False])
@pytest.mark.parametrize("block_rows", [None, 1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_binary_form_equals_the_loop(type_filter, block_rows, seed):
    pair, entity_pair, kind = problem(seed=seed)
    expected = relation_oracles.pair_equality(pair, *relations(entity_pair, kind, type_filter))
    rows = PairRows(pair, entity_pair, kind)
    found = pair_equality(rows, type_filter=type_filter, block_rows=block_rows)
    for (total, number), side in zip(expected, found, strict=True):
        assert side.num_terms.item() == number > 0
        assert side.total.item() == pytest.approx(total, rel=1e-10)


@pytest.mark.parametrize("type_filter", [True, False])
@pytest.mark.parametrize("block_rows", [None, 1, 3])
@pytest.mark.parametrize("weight_temperature", [0.01, 0.2, 50.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_form_with_many_centers_equals_the_loop(
    type_filter, block_rows, weight_temperature, seed
):
    pair, entity_pair, kind = problem(seed=seed)
    total, number = relation_oracles.multi_center_contrast(
        pair,
        lambda j: int(entity_pair[j]) if entity_pair[j] >= 0 else -1 - j,
        *relations(entity_pair, kind, type_filter),
        weight_temperature,
        0.3,
    )
    settings = {
        "weight_temperature": weight_temperature,
        "logit_temperature": 0.3,
        "type_filter": type_filter,
    }
    rows = PairRows(pair, entity_pair, kind)
    found = multi_center_contrast(rows, block_rows=block_rows, **settings)
    assert found.num_terms.item() == number > 0
    assert found.total.item() == pytest.approx(total, rel=1e-10)
    single = multi_center_contrast(PairRows(pair.float(), entity_pair, kind), **settings)
    assert single.total.item() == pytest.approx(total, rel=1e-4)


def test_without_a_type_filter_the_form_with_many_centers_is_a_cross_entropy_of_mccl_logits():
    pair, entity_pair, kind = problem(40)
    entity_pair = entity_pair.clamp(min=0)
    inputs = [pair.clone().requires_grad_() for _ in range(2)]
    no_bias = torch.zeros(5, dtype=pair.dtype)
    logits = multi_center_logits(
        inputs[0], torch.arange(40), entity_pair, None, no_bias, **TEMPERATURES
    )
    expected = F.cross_entropy(logits, entity_pair)
    found = multi_center_contrast(
        PairRows(inputs[1], entity_pair, kind), type_filter=False, **TEMPERATURES
    ).share(SingleProcess())
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    gradients = [
        torch.autograd.grad(loss, pair)[0]
        for loss, pair in zip((expected, found), inputs, strict=True)
    ]
    assert torch.allclose(*gradients, atol=1e-12)


def test_the_half_of_both_means_is_a_balanced_binary_cross_entropy():
    pair, entity_pair, kind = problem()
    one = SingleProcess()
    positive, negative = pair_equality(PairRows(pair, entity_pair, kind), type_filter=False)
    is_same = (entity_pair[:, None] == entity_pair) & (entity_pair >= 0)
    queries = ~torch.eye(NUM, dtype=torch.bool)
    target, score = is_same[queries].double(), (pair @ pair.T)[queries]
    weight = torch.where(target > 0, 0.5 / target.sum(), 0.5 / (1 - target).sum())
    expected = F.binary_cross_entropy_with_logits(score, target, weight=weight, reduction="sum")
    assert ((positive.share(one) + negative.share(one)) / 2).item() == pytest.approx(
        expected.item(), rel=1e-12
    )


@FORMS
def test_the_gradient_is_the_numeric_one(form):
    pair, *known = problem(width=3)
    assert torch.autograd.gradcheck(
        lambda x: tuple(form(x, *known, block_rows=4)[::2]),
        (pair.requires_grad_(),),
    )


@FORMS
@pytest.mark.parametrize("shares", [[7, 7], [3, 10, 1], [14, 0]])
def test_rows_divided_over_workers_add_up_to_one_worker_with_the_whole_batch(form, shares):
    whole, *known = problem()
    whole.requires_grad_()
    expected = form(whole, *known)
    parts, start = [], 0
    for share in shares:
        mine = slice(start, start + share)
        others = {"others": PairRows(whole, *known), "offset": start}
        parts.append(form(whole[mine], *(code[mine] for code in known), **others))
        start += share
    sums = [sum(each) for each in zip(*parts, strict=True)]
    for number, (found, wanted) in enumerate(zip(sums, expected, strict=True)):
        assert found.item() == pytest.approx(wanted.item(), rel=1e-12)
        if number % 2 == 0:
            gradients = [
                torch.autograd.grad(one, whole, retain_graph=True)[0] for one in (found, wanted)
            ]
            assert torch.allclose(*gradients, atol=1e-12)


@FORMS
def test_the_order_of_rows_does_not_matter(form):
    pair, *known = problem()
    order = torch.randperm(NUM, generator=torch.Generator().manual_seed(1))
    moved = form(pair[order], *(code[order] for code in known))
    assert [one.item() for one in moved] == pytest.approx(
        [one.item() for one in form(pair, *known)], rel=1e-12
    )


def test_the_length_of_embeddings_counts_in_the_binary_form_alone():
    pair, *known = problem()
    assert binary(3 * pair, *known)[0].item() != pytest.approx(
        binary(pair, *known)[0].item(), rel=0.1
    )
    assert centers(3 * pair, *known)[0].item() == pytest.approx(
        centers(pair, *known)[0].item(), rel=1e-12
    )


@FORMS
@pytest.mark.parametrize("num", [0, 1, 5])
def test_without_positives_their_side_is_zero_with_a_graph(form, num):
    pair = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    alone = torch.arange(num)
    total, number, *_ = form(pair[:num], alone, alone)
    total.backward()
    assert total.item() == number.item() == 0
    assert torch.equal(pair.grad, torch.zeros(5, 3))


@FORMS
def test_duplicates_zero_vectors_and_long_ones_stay_finite(form):
    pair, *known = problem(dtype=torch.float32)
    pair[3], pair[4], pair[6] = 0.0, pair[5], 1e4
    pair.requires_grad_()
    for total in form(pair, *known)[::2]:
        (gradient,) = torch.autograd.grad(total, pair, retain_graph=True)
        assert torch.isfinite(total)
        assert torch.isfinite(gradient).all()


def test_tiny_weight_temperatures_are_exact_in_single_precision():
    pair, *known = problem(60, 16)
    settings = {"weight_temperature": 1e-4, "logit_temperature": 0.1}
    expected = multi_center_contrast(PairRows(pair, *known), **settings)
    single = pair.float().requires_grad_()
    found = multi_center_contrast(PairRows(single, *known), **settings)
    found.total.backward()
    assert found.total.item() == pytest.approx(expected.total.item(), rel=1e-4)
    assert torch.isfinite(single.grad).all()


@FORMS
def test_half_precision_is_computed_in_single(form):
    pair, *known = problem(dtype=torch.bfloat16)
    expected = form(pair.float(), *known)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(
            torch.equal(one, other) for one, other in zip(form(pair, *known), expected, strict=True)
        )


@FORMS
def test_no_more_than_a_block_of_scores_is_kept_for_the_backward_pass(form):
    pair, *known = problem(300)
    pair.requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda one: kept.append(one.numel()) or one, lambda one: one
    ):
        form(pair, *known, block_rows=10)
    assert max(kept) <= 300 * 5


@pytest.mark.parametrize("name", ["weight_temperature", "logit_temperature"])
def test_a_temperature_that_is_not_positive_is_refused(name):
    with pytest.raises(ValueError, match="temperature is 0.0, want a number > 0"):
        multi_center_contrast(PairRows(*problem()), **TEMPERATURES | {name: 0.0})


@FORMS
def test_rows_that_do_not_fit_together_are_refused(form):
    pair, entity_pair, kind = problem()
    with pytest.raises(ValueError, match="want one each"):
        form(pair, entity_pair, kind[:-1])
