import faiss
import numpy as np
import pytest
import torch

from raybio.methods.relation_graphs.annotations.word_pairs import WordPairs
from raybio.methods.relation_graphs.classifiers import nearest_pairs as search
from raybio.methods.relation_graphs.classifiers import pair_distances
from raybio.methods.relation_graphs.classifiers.nearest_pairs import nearest_pairs
from tests import word_oracles


def words_of(row, lengths) -> WordPairs:
    indptr = torch.cat(
        [torch.zeros(1, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int64).cumsum(0)]
    )
    return WordPairs(torch.as_tensor(row)[: int(indptr[-1])], indptr)


LENGTHS = ([3, 1, 5, 0, 2, 4], [4, 2, 0, 1, 7, 3, 5, 2, 1])
KINDS = (
    "gauss",
    "clusters",
    "far_clusters",
    "tight_clusters",
    "few_words",
    "one_giant",
    "nearly_equal",
    "equal",
)


def rows_of(kind: str, num: int, width: int, rng: np.random.Generator) -> np.ndarray:
    noise = rng.standard_normal((num, width))
    row = {
        "gauss": noise,
        "clusters": np.eye(5, width)[rng.integers(0, 5, num)] + 0.05 * noise,
        "far_clusters": 100 + np.eye(5, width)[rng.integers(0, 5, num)] + 1e-3 * noise,
        # Neighboring numbers in float32: a product of the matrices in double precision can hardly
        # tell them apart.
        "tight_clusters": rng.standard_normal((5, width))[rng.integers(0, 5, num)] + 1e-7 * noise,
        "few_words": rng.integers(0, 2, (num, width)),
        "one_giant": np.where(np.arange(num)[:, None] == 7, 1e6, 1) * noise,
        "nearly_equal": 1 + 1e-6 * noise,
        "equal": np.full((num, width), 0.1),
    }[kind]
    return row.astype(np.float32)


def problem(
    kind: str, width: int = 6, seed: int = 0, lengths=LENGTHS
) -> tuple[WordPairs, WordPairs]:
    rng = np.random.default_rng(seed)
    num_query, num_reference = map(sum, lengths)
    row = rows_of(kind, num_query + num_reference, width, rng)
    return words_of(row[:num_query], lengths[0]), words_of(row[num_query:], lengths[1])


def by_loop(query, reference, k, both_orders):
    rows = word_oracles.nearest_pairs(
        query.row_WD.numpy(),
        query.indptr_S1.tolist(),
        reference.row_WD.numpy(),
        reference.indptr_S1.tolist(),
        k,
        both_orders,
    )
    columns = np.array(rows).transpose(2, 0, 1)
    return torch.tensor(columns[0], dtype=torch.float32), *torch.tensor(
        columns[1:], dtype=torch.int64
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("k", "both_orders"), [(1, False), (3, True), (5, False), (9, False), (9, True), (500, True)]
)
def test_the_nearest_pairs_are_those_of_the_loop_to_the_last_bit(kind, k, both_orders):
    query, reference = problem(kind)
    found, expected = (
        nearest_pairs(query, reference, k=k, both_orders=both_orders),
        by_loop(query, reference, k, both_orders),
    )
    assert found[0].dtype == torch.float32
    assert found[0].shape == (query.num_pairs, min(k, reference.num_pairs))
    assert torch.equal(found[1], expected[1])
    assert torch.equal(found[2], expected[2])
    # Numpy sums the squares in another order.
    torch.testing.assert_close(found[0], expected[0], rtol=3e-7, atol=0)


@pytest.mark.parametrize("kind", ["gauss", "clusters"])
@pytest.mark.parametrize("both_orders", [False, True])
def test_they_are_those_that_faiss_finds_among_the_chains(kind, both_orders):
    rng = np.random.default_rng(1)
    query, reference = problem(kind, 32, 1, ([9, 2, 17, 30, 8], rng.integers(0, 25, 150).tolist()))
    chain = [
        torch.cat([one.row_WD[word] for word in one.pairs()], dim=1).numpy()
        for one in (query, reference)
    ]
    index = faiss.IndexFlatL2(64)
    index.add(chain[1])
    if both_orders:
        index.add(np.roll(chain[1], 32, axis=1))
    theirs_distance, theirs = index.search(chain[0], 10)
    # A pair may be near in both orders; its nearer one counts.
    place = np.array(
        [np.sort(np.unique(row % reference.num_pairs, return_index=True)[1])[:5] for row in theirs]
    )
    distance, *word = nearest_pairs(query, reference, k=5, both_orders=both_orders)
    expected = np.take_along_axis(theirs_distance, place, axis=1)
    torch.testing.assert_close(distance, torch.from_numpy(expected), rtol=1e-4, atol=1e-5)
    number = torch.from_numpy(np.take_along_axis(theirs, place, axis=1) % reference.num_pairs)
    same = [ours == its[number] for ours, its in zip(word, reference.pairs(), strict=True)]
    assert (same[0] & same[1]).float().mean() > 0.99


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("most_words", "entries", "columns"), [(1, 1, 1), (4, 30, 7), (9, 200, 1000)]
)
def test_neither_the_size_of_blocks_nor_what_is_looked_at_together_matters(
    monkeypatch, kind, most_words, entries, columns
):
    query, reference = problem(kind)
    expected = nearest_pairs(query, reference, k=4, both_orders=True)
    monkeypatch.setattr(search, "_MOST_WORDS", most_words)
    monkeypatch.setattr(search, "_ENTRIES_AT_ONCE", entries)
    monkeypatch.setattr(pair_distances, "_COLUMNS_AT_ONCE", columns)
    found = nearest_pairs(query, reference, k=4, both_orders=True)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_the_order_of_sentences_does_not_matter():
    query, reference = problem("gauss")
    distance, first, second = nearest_pairs(query, reference, k=4)
    order = np.random.default_rng(0).permutation(len(LENGTHS[1]))
    word = np.concatenate([np.arange(*reference.indptr_S1[s : s + 2].tolist()) for s in order])
    shuffled = words_of(reference.row_WD[word], [LENGTHS[1][s] for s in order])
    found, found_first, found_second = nearest_pairs(query, shuffled, k=4)
    assert torch.equal(found, distance)
    assert torch.equal(torch.from_numpy(word)[found_first], first)
    assert torch.equal(torch.from_numpy(word)[found_second], second)
    parts = [words_of(query.row_WD[:9], [3, 1, 5]), words_of(query.row_WD[9:], [0, 2, 4])]
    assert torch.equal(
        torch.cat([nearest_pairs(part, reference, k=4)[0] for part in parts]), distance
    )


def test_a_pair_of_the_reference_finds_itself_first_and_turned_round_in_both_orders():
    _, reference = problem("gauss")
    first, second = reference.pairs()
    distance, found_first, found_second = nearest_pairs(reference, reference, k=1)
    assert (distance == 0).all()
    assert torch.equal(found_first[:, 0], first)
    assert torch.equal(found_second[:, 0], second)
    turned = WordPairs(reference.row_WD[[3, 2, 1, 0]], torch.tensor([0, 4]))
    queries = nearest_pairs(turned, reference, k=1, both_orders=True)
    assert (queries[0] == 0).all()
    assert (nearest_pairs(turned, reference, k=1)[0] > 0).all()


def test_the_gradient_half_precision_and_vectors_that_were_not_moved_are_no_matter():
    query, reference = problem("gauss")
    half = [
        WordPairs(one.row_WD.half().requires_grad_(), one.indptr_S1) for one in (query, reference)
    ]
    whole = [WordPairs(one.row_WD.detach().float(), one.indptr_S1) for one in half]
    found, expected = nearest_pairs(*half, k=3), nearest_pairs(*whole, k=3)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert not found[0].requires_grad
    doubled = [WordPairs(one.row_WD.double() + 2.0**20, one.indptr_S1) for one in whole]
    assert all(
        torch.equal(one, other)
        for one, other in zip(nearest_pairs(*doubled, k=3), expected, strict=True)
    )


def test_nearly_all_sentences_are_left_out(monkeypatch):
    rng = np.random.default_rng(2)
    query, reference = problem("clusters", 32, 2, ([20, 20], rng.integers(10, 30, 400).tolist()))
    num_compared = []
    exact_distances = search._exact_distances

    def counted(query_WD, reference_WD, query_X2, word_X2, both_orders):
        """Count the pairs that are compared exactly."""
        num_compared.append(len(query_X2))
        return exact_distances(query_WD, reference_WD, query_X2, word_X2, both_orders)

    monkeypatch.setattr(search, "_exact_distances", counted)
    nearest_pairs(query, reference, k=5)
    assert sum(num_compared) < 40 * query.num_pairs
    assert reference.num_pairs > 50_000


def test_no_query_pair_has_no_neighbors():
    _, reference = problem("gauss")
    for lengths in ([], [1, 0, 1]):
        found = nearest_pairs(words_of(reference.row_WD, lengths), reference, k=2)
        assert [tuple(one.shape) for one in found] == [(0, 2)] * 3


def test_pairs_are_those_of_the_loop():
    for words in problem("gauss"):
        expected = word_oracles.pairs(words.indptr_S1.tolist())
        assert torch.stack(words.pairs(), dim=1).tolist() == [list(pair) for pair in expected]
        assert words.num_pairs == len(expected)
        ends = [
            len(word_oracles.pairs(words.indptr_S1[: end + 1].tolist()))
            for end in range(len(words.indptr_S1))
        ]
        assert words.pair_indptr_S1.tolist() == ends


def test_wrong_arguments_are_refused():
    query, reference = problem("gauss")
    with pytest.raises(ValueError, match="k is 0 among"):
        nearest_pairs(query, reference, k=0)
    with pytest.raises(ValueError, match="among 0 reference pairs"):
        nearest_pairs(query, words_of(reference.row_WD, [1, 1]), k=1)
    with pytest.raises(ValueError, match="query words are 6 wide, reference words 5"):
        nearest_pairs(query, WordPairs(reference.row_WD[:, :5], reference.indptr_S1), k=1)
    with pytest.raises(ValueError, match="15 of 15 query words hold NaN"):
        nearest_pairs(WordPairs(query.row_WD * torch.nan, query.indptr_S1), reference, k=1)
    with pytest.raises(ValueError, match="want from 0 to 15, never back"):
        WordPairs(query.row_WD, torch.tensor([0, 9, 5, 15]))
    with pytest.raises(ValueError, match="want from 0 to 15"):
        WordPairs(query.row_WD, torch.tensor([0, 9]))
    with pytest.raises(ValueError, match=r"indptr is torch.int32"):
        WordPairs(query.row_WD, torch.tensor([0, 15], dtype=torch.int32))
