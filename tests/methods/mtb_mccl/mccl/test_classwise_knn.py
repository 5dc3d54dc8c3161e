import itertools

import pytest
import torch

from raybio.methods.mtb_mccl.mccl import classwise_knn as module
from raybio.methods.mtb_mccl.mccl.classwise_knn import (
    ClassNeighbors,
    ReferenceSet,
    class_centroids,
    classwise_means,
)
from tests import relation_oracles
from tests.ops.threads import in_threads


def problem(num_queries=9, num_members=40, width=4, classes=5, seed=0):
    """Return queries and multi-label rows; the first class has two members, the last none."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(num_queries, width, generator=generator, dtype=torch.float64)
    reference = torch.randn(num_members, width, generator=generator, dtype=torch.float64)
    label = torch.rand(num_members, classes, generator=generator) < 0.4
    label[:, -1] = False
    label[:, 0] = torch.arange(num_members) % 23 == 5
    return query, reference, label


def classwise_knn(query_QD, reference_ND, label_NR, *, k, collective=None):
    return classwise_means(query_QD, reference_ND, label_NR, ks=(k,), collective=collective)[k]


@pytest.mark.parametrize("k", [1, 3, 20, 100])
@pytest.mark.parametrize("at_once", [1, 21, 1 << 20])
def test_means_equal_the_loop(monkeypatch, k, at_once):
    monkeypatch.setattr(module, "scores_at_once", lambda device: at_once)
    monkeypatch.setattr(module, "_MAX_QUERIES", 4)
    monkeypatch.setattr(module, "_QUERIES_AT_ONCE", 3)
    query, reference, label = problem()
    expected = torch.tensor(
        relation_oracles.classwise_knn(query, reference, label, k), dtype=torch.float64
    )
    found = classwise_knn(query, reference, label, k=k)
    assert torch.allclose(found, expected, atol=1e-12)
    assert (found[:, -1] == -torch.inf).all()
    assert torch.allclose(
        classwise_knn(query.float(), reference.float(), label, k=k).double(), expected, atol=1e-5
    )


@pytest.mark.parametrize("bounds", [[0, 20, 40], [0, 3, 3, 40], [0, 1, 39, 40]])
def test_parts_of_a_reference_set_merge_into_the_whole(bounds):
    query, reference, label = problem()
    whole = ReferenceSet.of(reference, label).nearest(query, 3)
    parts = [
        ReferenceSet.of(reference[start:end], label[start:end]).nearest(query, 3)
        for start, end in itertools.pairwise(bounds)
    ]
    merged = parts[0].merge(*parts[1:])
    assert torch.allclose(merged.cosine_QRK, whole.cosine_QRK, atol=1e-14)
    one_by_one = parts[-1]
    for part in parts[:-1]:
        one_by_one = one_by_one.merge(part)
    assert torch.equal(one_by_one.cosine_QRK, merged.cosine_QRK)
    assert torch.equal(parts[0].merge().cosine_QRK, parts[0].cosine_QRK)


@pytest.mark.parametrize("shares", [[40], [13, 27], [40, 0], [5, 30, 5]])
@pytest.mark.parametrize("num_queries", [0, 9])
def test_workers_with_a_part_each_get_the_means_of_the_whole_reference_set(
    monkeypatch, shares, num_queries
):
    monkeypatch.setattr(module, "_MAX_QUERIES", 4)
    query, reference, label = problem(num_queries)
    references, labels = reference.split(shares), label.split(shares)
    expected = classwise_knn(query, reference, label, k=3)
    found = in_threads(
        len(shares),
        lambda c: classwise_knn(query, references[c.rank], labels[c.rank], k=3, collective=c),
    )
    for means in found:
        assert means.shape == (num_queries, 5)
        assert torch.allclose(means, expected, atol=1e-14)


def test_duplicates_count_separately_and_vector_length_does_not_matter():
    query = torch.tensor([[1.0, 0.0]])
    reference = torch.tensor([[2.0, 0.0], [5.0, 0.0], [0.0, 1.0]])
    label = torch.ones(3, 1, dtype=torch.bool)
    assert classwise_knn(query, reference, label, k=2).item() == pytest.approx(1)
    assert classwise_knn(query, reference, label, k=3).item() == pytest.approx(2 / 3)


def test_an_empty_reference_set_gives_minus_infinity():
    query, reference, label = problem()
    assert (classwise_knn(query, reference[:0], label[:0], k=3) == -torch.inf).all()
    assert (ClassNeighbors(torch.full((2, 3, 4), -torch.inf)).mean() == -torch.inf).all()


def test_no_gradient_is_kept():
    query, reference, label = problem()
    assert not classwise_knn(
        query.requires_grad_(), reference.requires_grad_(), label, k=2
    ).requires_grad


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k is 0"),
        ({"reference_ND": torch.zeros(40, 3)}, "queries are 4 wide, reference rows 3"),
        ({"label_NR": torch.zeros(39, 5, dtype=torch.bool)}, "each of the 40 rows"),
        ({"label_NR": torch.zeros(40, 5)}, "want torch.bool"),
        ({"query_QD": torch.full((9, 4), torch.nan)}, "9 of 9 queries hold NaN or Inf"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    query, reference, label = problem()
    with pytest.raises(ValueError, match=message):
        classwise_knn(
            **{"query_QD": query, "reference_ND": reference, "label_NR": label, "k": 3} | change
        )


def test_centroids_equal_the_loop_and_do_not_depend_on_row_lengths():
    _, reference, label = problem()
    expected = torch.tensor(relation_oracles.class_centroids(reference, label), dtype=torch.float64)
    found = class_centroids(reference, label)
    assert torch.allclose(found, expected, atol=1e-12)
    assert (found[-1] == 0).all()
    length = torch.arange(1.0, 1 + len(reference), dtype=torch.float64)[:, None]
    assert torch.allclose(class_centroids(reference * length, label), found, atol=1e-12)


def test_several_k_at_once_equal_each_k_alone(monkeypatch):
    monkeypatch.setattr(module, "_MAX_QUERIES", 4)
    generator = torch.Generator().manual_seed(0)
    query, reference = (
        torch.randn(11, 5, generator=generator),
        torch.randn(30, 5, generator=generator),
    )
    label = torch.rand(30, 3, generator=generator) < 0.5
    found = classwise_means(query, reference, label, ks=(3, 1, 20))
    assert list(found) == [3, 1, 20]
    for k, mean_QR in found.items():
        torch.testing.assert_close(
            mean_QR, ReferenceSet.of(reference, label).nearest(query, k).mean()
        )
