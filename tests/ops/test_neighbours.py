import pytest
import torch

from raybio.ops import neighbours
from raybio.ops.neighbours import (
    Neighbours,
    class_centroids,
    classwise_knn,
    majority_vote,
    nearest_members,
)
from tests import relation_oracles, word_oracles
from tests.ops.threads import in_threads


def problem(num_queries=9, num_members=40, width=4, classes=5, seed=0):
    """Queries, a bank with several labels a row, of which the last class has none and the first but two."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(num_queries, width, generator=generator, dtype=torch.float64)
    bank = torch.randn(num_members, width, generator=generator, dtype=torch.float64)
    label = torch.rand(num_members, classes, generator=generator) < 0.4
    label[:, -1] = False
    label[:, 0] = torch.arange(num_members) % 23 == 5
    return query, bank, label


@pytest.mark.parametrize("k", [1, 3, 20, 100])
@pytest.mark.parametrize("at_once", [1, 7, 1 << 20])
def test_means_equal_the_loop(monkeypatch, k, at_once):
    monkeypatch.setattr(neighbours, "_ENTRIES_AT_ONCE", {"cpu": at_once, "cuda": at_once})
    monkeypatch.setattr(neighbours, "_MOST_QUERIES", 4)
    query, bank, label = problem()
    expected = torch.tensor(
        relation_oracles.classwise_knn(query, bank, label, k), dtype=torch.float64
    )
    found = classwise_knn(query, bank, label, k=k)
    assert torch.allclose(found, expected, atol=1e-12)
    assert (found[:, -1] == -torch.inf).all()
    assert torch.allclose(
        classwise_knn(query.float(), bank.float(), label, k=k).double(), expected, atol=1e-5
    )


@pytest.mark.parametrize("bounds", [[0, 20, 40], [0, 3, 3, 40], [0, 1, 39, 40]])
def test_parts_of_a_bank_merge_into_the_whole(bounds):
    query, bank, label = problem()
    whole = nearest_members(query, bank, label, k=3)
    parts = [
        nearest_members(query, bank[start:end], label[start:end], k=3)
        for start, end in zip(bounds[:-1], bounds[1:], strict=True)
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
def test_workers_with_a_part_each_get_the_means_of_the_whole_bank(monkeypatch, shares, num_queries):
    monkeypatch.setattr(neighbours, "_MOST_QUERIES", 4)
    query, bank, label = problem(num_queries)
    banks, labels = bank.split(shares), label.split(shares)
    expected = classwise_knn(query, bank, label, k=3)
    found = in_threads(
        len(shares),
        lambda c: classwise_knn(query, banks[c.rank], labels[c.rank], k=3, collective=c),
    )
    for means in found:
        assert means.shape == (num_queries, 5)
        assert torch.allclose(means, expected, atol=1e-14)


def test_duplicates_count_each_and_the_length_of_vectors_does_not_matter():
    query = torch.tensor([[1.0, 0.0]])
    bank = torch.tensor([[2.0, 0.0], [5.0, 0.0], [0.0, 1.0]])
    label = torch.ones(3, 1, dtype=torch.bool)
    assert classwise_knn(query, bank, label, k=2).item() == pytest.approx(1)
    assert classwise_knn(query, bank, label, k=3).item() == pytest.approx(2 / 3)


def test_an_empty_bank_has_no_neighbours():
    query, bank, label = problem()
    assert (classwise_knn(query, bank[:0], label[:0], k=3) == -torch.inf).all()
    assert (Neighbours(torch.full((2, 3, 4), -torch.inf)).mean() == -torch.inf).all()


def test_no_gradient_is_kept():
    query, bank, label = problem()
    assert not classwise_knn(
        query.requires_grad_(), bank.requires_grad_(), label, k=2
    ).requires_grad


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 0}, "k is 0"),
        ({"bank_ND": torch.zeros(40, 3)}, "queries are 4 wide, the bank 3"),
        ({"label_NR": torch.zeros(39, 5, dtype=torch.bool)}, "each of the 40 rows"),
        ({"label_NR": torch.zeros(40, 5)}, "want torch.bool"),
        ({"query_QD": torch.full((9, 4), torch.nan)}, "9 of 9 queries hold NaN or Inf"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    query, bank, label = problem()
    with pytest.raises(ValueError, match=message):
        classwise_knn(**{"query_QD": query, "bank_ND": bank, "label_NR": label, "k": 3} | change)


def test_centroids_equal_the_loop_and_do_not_feel_the_length_of_rows():
    _, bank, label = problem()
    expected = torch.tensor(relation_oracles.class_centroids(bank, label), dtype=torch.float64)
    found = class_centroids(bank, label)
    assert torch.allclose(found, expected, atol=1e-12)
    assert (found[-1] == 0).all()
    length = torch.arange(1.0, 1 + len(bank), dtype=torch.float64)[:, None]
    assert torch.allclose(class_centroids(bank * length, label), found, atol=1e-12)


@pytest.mark.parametrize(("k", "num_classes"), [(1, 3), (5, 2), (7, 5), (4, 3)])
def test_the_majority_is_that_of_the_loop(k, num_classes):
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(0, num_classes, (200, k), generator=generator)
    assert majority_vote(label, num_classes).tolist() == word_oracles.majority_vote(
        label.tolist(), num_classes
    )


def test_of_classes_with_equally_many_votes_that_of_the_nearest_member_wins():
    label = torch.tensor([[2, 0, 0, 2], [1, 2, 2, 0], [2, 1, 0, 1]])
    assert majority_vote(label, 3).tolist() == [2, 2, 1]
    assert majority_vote(label[:0], 3).tolist() == []


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (torch.zeros(3, 0, dtype=torch.int64), "at least 1 each"),
        (torch.zeros(3, 2), "want torch.int64"),
        (torch.full((3, 2), 4), r"labels span \[4, 4\], want \[0, 3\)"),
    ],
)
def test_votes_of_no_class_are_refused(label, message):
    with pytest.raises(ValueError, match=message):
        majority_vote(label, 3)


def test_several_numbers_of_neighbours_are_what_each_gives_alone_block_by_block(monkeypatch):
    monkeypatch.setattr(neighbours, "_MOST_QUERIES", 4)
    generator = torch.Generator().manual_seed(0)
    query, bank = torch.randn(11, 5, generator=generator), torch.randn(30, 5, generator=generator)
    label = torch.rand(30, 3, generator=generator) < 0.5
    found = neighbours.classwise_means(query, bank, label, ks=(3, 1, 20))
    assert list(found) == [3, 1, 20]
    for k, mean_QR in found.items():
        torch.testing.assert_close(mean_QR, nearest_members(query, bank, label, k=k).mean())
