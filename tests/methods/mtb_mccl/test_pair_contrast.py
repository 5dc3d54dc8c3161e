import pytest
import torch
import torch.nn.functional as F

from raybio.methods.mtb_mccl.pair_contrast import (
    LabeledRows,
    PairRows,
    matching_the_blanks,
    supervised_contrast,
)
from raybio.training.collective import SingleProcess
from tests import relation_oracles

NUM = 14


def problem(num=NUM, width=5, seed=0, dtype=torch.float64):
    """Return rows with recurring entity pairs (one has two types), classes and label sets."""
    generator = torch.Generator().manual_seed(seed)
    pair = torch.randn(num, width, generator=generator, dtype=torch.float64).to(dtype)
    entity_pair = torch.randint(-1, 5, (num,), generator=generator)
    kind = torch.where(torch.arange(num) == 2, 7, entity_pair.clamp(min=0) % 3)
    label = torch.randint(0, 4, (num,), generator=generator)
    labels = torch.rand(num, 4, generator=generator) < 0.3
    return pair, entity_pair, kind, label, labels


def by_name(name, entity_pair, kind, label, labels):
    """Return the loss of rows, their ids or labels, and the oracle's positives and negatives."""

    def same_pair(i, j):
        return entity_pair[i] == entity_pair[j] and entity_pair[i] >= 0

    def of_rows(loss, kind_of_rows, **settings):
        def of(*rows, others=None, **rest):
            others = None if others is None else kind_of_rows(*others)
            return loss(kind_of_rows(*rows), others=others, **settings, **rest)

        return of

    return {
        "matching_the_blanks": (
            of_rows(matching_the_blanks, PairRows),
            (entity_pair, kind),
            same_pair,
            lambda i, j: not same_pair(i, j) and kind[i] != kind[j],
        ),
        "all_types": (
            of_rows(matching_the_blanks, PairRows, type_filter=False),
            (entity_pair, kind),
            same_pair,
            lambda i, j: not same_pair(i, j),
        ),
        "supervised": (
            of_rows(supervised_contrast, LabeledRows),
            (label,),
            lambda i, j: label[i] == label[j],
            lambda i, j: label[i] != label[j],
        ),
        "multi_label": (
            of_rows(supervised_contrast, LabeledRows),
            (labels,),
            lambda i, j: bool((labels[i] & labels[j]).any()),
            lambda i, j: not (labels[i] & labels[j]).any(),
        ),
    }[name]


LOSSES = pytest.mark.parametrize(
    "name", ["matching_the_blanks", "all_types", "supervised", "multi_label"]
)


@LOSSES
@pytest.mark.parametrize("block_rows", [None, 1, 3])
@pytest.mark.parametrize("temperature", [0.05, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_sums_and_counts_equal_the_loop(name, block_rows, temperature, seed):
    pair, *known = problem(seed=seed)
    loss, codes, positive, negative = by_name(name, *known)
    by_anchor = name in ("supervised", "multi_label")
    total, number = relation_oracles.contrast(
        pair, positive, negative, temperature, by_anchor=by_anchor
    )
    found = loss(pair, *codes, temperature=temperature, block_rows=block_rows)
    assert number > 0
    assert found.num_terms.item() == number
    assert found.total.item() == pytest.approx(total, rel=1e-10)
    assert found.share(SingleProcess()).item() == pytest.approx(total / number, rel=1e-10)
    single = loss(pair.float(), *codes, temperature=temperature)
    assert single.total.item() == pytest.approx(total, rel=1e-5)


@LOSSES
def test_the_gradient_is_the_numeric_one(name):
    pair, *known = problem(width=3)
    loss, codes, _, _ = by_name(name, *known)
    temperature = torch.tensor(0.3, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda x, tau: loss(x, *codes, temperature=tau, block_rows=4).total,
        (pair.requires_grad_(), temperature.requires_grad_()),
    )


@LOSSES
@pytest.mark.parametrize("shares", [[7, 7], [3, 10, 1], [14, 0]])
def test_rows_divided_over_workers_add_up_to_one_worker_with_the_whole_batch(name, shares):
    whole, *known = problem()
    whole.requires_grad_()
    loss, codes, _, _ = by_name(name, *known)
    expected = loss(whole, *codes, temperature=0.1)
    (gradient,) = torch.autograd.grad(expected.share(SingleProcess()), whole)
    parts, start = [], 0
    for share in shares:
        mine = slice(start, start + share)
        local = (rows[mine] for rows in (whole, *codes))
        parts.append(loss(*local, temperature=0.1, others=(whole, *codes), offset=start))
        start += share
    num_terms = sum(part.num_terms for part in parts)
    assert num_terms == expected.num_terms
    mean = sum(part.total / num_terms for part in parts)
    assert mean.item() == pytest.approx(expected.share(SingleProcess()).item(), rel=1e-12)
    assert torch.allclose(torch.autograd.grad(mean, whole)[0], gradient, atol=1e-12)


@LOSSES
def test_the_order_of_rows_and_the_length_of_embeddings_do_not_matter(name):
    pair, *known = problem()
    loss, codes, _, _ = by_name(name, *known)
    order = torch.randperm(NUM, generator=torch.Generator().manual_seed(1))
    moved = loss(3 * pair[order], *(code[order] for code in codes), temperature=0.1)
    assert moved.total.item() == pytest.approx(
        loss(pair, *codes, temperature=0.1).total.item(), rel=1e-12
    )


@LOSSES
@pytest.mark.parametrize("num", [0, 1, 5])
def test_without_positives_the_loss_is_zero_with_a_graph(name, num):
    pair = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    alone = torch.arange(num)
    loss, codes, _, _ = by_name(name, alone, alone, alone, torch.eye(5, dtype=torch.bool)[:num])
    found = loss(pair[:num], *codes, temperature=0.1)
    found.share(SingleProcess()).backward()
    assert found.total.item() == 0
    assert found.num_terms.item() == 0
    assert torch.equal(pair.grad, torch.zeros(5, 3))


@LOSSES
def test_without_negatives_terms_count_and_are_zero(name):
    pair = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    same = torch.zeros(5, dtype=torch.int64)
    loss, codes, _, _ = by_name(name, same, same, same, torch.ones(5, 2, dtype=torch.bool))
    found = loss(pair, *codes, temperature=0.1)
    found.share(SingleProcess()).backward()
    assert found.total.item() == 0
    assert found.num_terms.item() == (5 if name in ("supervised", "multi_label") else 20)
    assert torch.equal(pair.grad, torch.zeros(5, 3))


def test_an_id_of_minus_one_is_a_negative_of_others_and_a_positive_of_none():
    pair, _, _, _, _ = problem(4)
    entity_pair, kind = torch.tensor([0, 0, -1, -1]), torch.tensor([1, 1, 2, 1])
    found = matching_the_blanks(PairRows(pair, entity_pair, kind), temperature=0.5)
    score = F.normalize(pair, dim=1) @ F.normalize(pair, dim=1).T / 0.5
    expected = sum(
        F.softplus(score[i, 2] - score[i, 1 - i]) for i in (0, 1)
    )  # row 3 is of the anchors' type
    assert found.num_terms.item() == 2
    assert found.total.item() == pytest.approx(expected.item())


def test_sets_of_one_label_each_are_classes():
    pair, _, _, label, _ = problem()
    one = supervised_contrast(LabeledRows(pair, label), temperature=0.1)
    several = supervised_contrast(LabeledRows(pair, F.one_hot(label).bool()), temperature=0.1)
    assert several.total.item() == pytest.approx(one.total.item(), rel=1e-12)
    assert several.num_terms == one.num_terms


@LOSSES
def test_duplicates_zero_vectors_and_tiny_temperatures_stay_finite(name):
    pair, *known = problem(dtype=torch.float32)
    pair[3], pair[4] = 0.0, pair[5]
    pair.requires_grad_()
    loss, codes, _, _ = by_name(name, *known)
    found = loss(pair, *codes, temperature=1e-4)
    found.total.backward()
    assert torch.isfinite(found.total)
    assert torch.isfinite(pair.grad).all()


@LOSSES
def test_half_precision_is_computed_in_single(name):
    pair, *known = problem(dtype=torch.bfloat16)
    loss, codes, _, _ = by_name(name, *known)
    expected = loss(pair.float(), *codes, temperature=0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loss(pair, *codes, temperature=0.1).total, expected.total)


def test_tensors_without_requires_grad_get_no_gradient():
    pair, entity_pair, kind, _, _ = problem()
    anchors = PairRows(pair, entity_pair, kind)
    assert not matching_the_blanks(anchors, temperature=0.1).total.requires_grad
    other = pair.clone().requires_grad_()
    others = PairRows(other, entity_pair, kind)
    matching_the_blanks(anchors, temperature=0.1, others=others).total.backward()
    assert other.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"anchors": PairRows(*problem()[:2], torch.zeros(13))}, "want one each"),
        ({"offset": 3}, r"want it in \[0, 0\]"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    pair, entity_pair, kind, _, _ = problem()
    arguments = {"anchors": PairRows(pair, entity_pair, kind), "temperature": 0.1}
    with pytest.raises(ValueError, match=message):
        matching_the_blanks(**arguments | change)


def test_anchors_that_are_not_the_rows_from_the_offset_on_are_refused():
    pair, _, _, label, _ = problem()
    anchors = LabeledRows(pair[:7], label[:7])
    with pytest.raises(ValueError, match="differ from those of the candidates from row 0 on"):
        supervised_contrast(anchors, temperature=0.1, others=LabeledRows(pair, label.flip(0)))
