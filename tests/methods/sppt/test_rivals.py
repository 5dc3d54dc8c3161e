"""Rivals of link retrieval against loops over pairs."""

import itertools
import tracemalloc
from collections import Counter
from math import exp, log, sqrt

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.feature_extraction.text import TfidfVectorizer

from raybio.methods.sppt.evaluate import draw_link_queries
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.rivals import (
    DIGITS,
    NUM_NEAREST,
    RELATED,
    NgramVectors,
    Rival,
    _evidence,
    limits,
    link_rivals,
    near_compositions,
    ngram_tfidf,
    rank_by_rival,
    relatives,
    token_shares,
)
from raybio.training.collective import SingleProcess
from tests.methods.sppt.embedding_links import link_retrieval
from tests.ops.threads import in_threads

SEQUENCES = [
    "MKVLA",
    "MKVLG",
    "MKVIA",
    "WWRTY",
    "WWRTC",
    "GG",
    "MKVLAWWRTY",
    "PPDEFGH",
    "PPDEFGK",
    "AAAAAA",
    "MKVLA",
    "PPDEF",
]
GROUPS = np.array([0] * 6 + [1] * 6)
EVERY = np.arange(12)
LINKS = [(0, 3), (1, 3), (1, 4), (2, 5), (0, 5), (6, 7), (7, 10), (8, 9), (6, 11)]
HELD_OUT = [(0, 4), (2, 3), (8, 10), (6, 8)]


class Letters:
    """Reads a sequence as its letters between two special tokens."""

    mask_id = 0
    ordinary_ids = np.arange(65, 91)

    def __call__(self, row_R, chance_R=0.0):
        tokens = [[1, *map(ord, SEQUENCES[row]), 2] for row in np.asarray(row_R).tolist()]
        lengths = [len(row) for row in tokens]
        token_T = np.array(list(itertools.chain(*tokens)))
        return token_T, np.concatenate([[0], np.cumsum(lengths)]), token_T < 65


@pytest.fixture
def graph() -> Graph:
    return Graph.from_edges(np.array(LINKS), len(SEQUENCES), GROUPS)


@pytest.fixture
def queries(graph: Graph):
    return draw_link_queries(graph, np.array(HELD_OUT), 0)


def rival_of(name: str, queries, graph: Graph) -> Rival:
    rivals = link_rivals(
        queries, graph, Letters(), "3-mers", 3, composition=True, collective=SingleProcess()
    )
    return rivals[name]()


def scores_of(name: str, queries, graph: Graph) -> dict[tuple[int, int], float]:
    """Return the scores of all pairs of a group."""
    scores = {}
    for group in (0, 1):
        node_G = np.flatnonzero(group == GROUPS)
        score_GG = rival_of(name, queries, graph).in_group(node_G)(slice(0, len(node_G)))
        for row, column in itertools.permutations(range(len(node_G)), 2):
            scores[int(node_G[row]), int(node_G[column])] = float(score_GG[row, column])
    return scores


def linked(graph: Graph, node: int) -> set[int]:
    return {int(other) for other in graph.indices[graph.indptr[node] : graph.indptr[node + 1]]}


def three_mers(text: str) -> Counter:
    return Counter(text[start : start + 3] for start in range(len(text) - 2))


def cosines() -> np.ndarray:
    """TF-IDF by the formulas: (1 + log count) x (1 + log((1 + S) / (1 + rows with it)))."""
    counts = [three_mers(text) for text in SEQUENCES]
    num_rows = Counter(ngram for count in counts for ngram in count)
    idf = {ngram: 1 + log((1 + len(counts)) / (1 + num)) for ngram, num in num_rows.items()}
    vectors = [
        {ngram: (1 + log(times)) * idf[ngram] for ngram, times in count.items()} for count in counts
    ]
    found = np.zeros((len(SEQUENCES), len(SEQUENCES)))
    for left, right in itertools.product(range(len(SEQUENCES)), repeat=2):
        lengths = [sqrt(sum(x * x for x in vectors[side].values())) for side in (left, right)]
        if all(lengths):
            shared = vectors[left].keys() & vectors[right].keys()
            product = sum(vectors[left][ngram] * vectors[right][ngram] for ngram in shared)
            found[left, right] = product / lengths[0] / lengths[1]
    return found


def test_degree_ranks_candidates_by_their_training_links_and_pairs_by_those_of_both_ends(
    queries, graph: Graph
) -> None:
    for (anchor, candidate), score in scores_of("degree", queries, graph).items():
        assert score == (1 + len(linked(graph, anchor))) * len(linked(graph, candidate))


def test_common_neighbors_counts_the_nodes_that_both_are_linked_to(queries, graph: Graph) -> None:
    for (anchor, candidate), score in scores_of("common neighbors", queries, graph).items():
        assert score == len(linked(graph, anchor) & linked(graph, candidate))


def test_contents_are_compared_by_the_cosine_of_tf_idf_of_their_n_grams(
    queries, graph: Graph
) -> None:
    cosine_NN = cosines()
    for pair, score in scores_of("3-mers", queries, graph).items():
        assert score == pytest.approx(cosine_NN[pair])


def test_the_look_up_adds_links_between_relatives_and_never_the_link_itself(
    queries, graph: Graph
) -> None:
    related_NN = np.where(cosines() >= RELATED, cosines(), 0.0)
    np.fill_diagonal(related_NN, 1.0)
    directed = LINKS + [(right, left) for left, right in LINKS]
    for (anchor, candidate), score in scores_of("look-up", queries, graph).items():
        expected = sum(
            related_NN[anchor, left] * related_NN[right, candidate]
            for left, right in directed
            if {left, right} != {anchor, candidate}
        )
        assert score == pytest.approx(expected, abs=1e-12)


def composition_kernel(texts: list[str], num_nearest: int) -> np.ndarray:
    """The kernel by loops: nearest nodes, half the median of the farthest of them, Gaussian."""
    shares = [{letter: text.count(letter) / len(text) for letter in text} for text in texts]
    square_NN = np.zeros((len(texts), len(texts)))
    for left, right in itertools.product(range(len(texts)), repeat=2):
        for letter in set(texts[left]) | set(texts[right]):
            difference = shares[left].get(letter, 0.0) - shares[right].get(letter, 0.0)
            square_NN[left, right] += difference**2
    nearest = [sorted(range(len(texts)), key=lambda other: row[other]) for row in square_NN]
    nearest = [order[:num_nearest] for order in nearest]
    farthest = [sqrt(square_NN[row, order[-1]]) for row, order in enumerate(nearest)]
    width = float(np.median(farthest)) / 2
    kernel_NN = np.zeros_like(square_NN)
    for row, order in enumerate(nearest):
        for other in order:
            kernel_NN[row, other] = exp(-square_NN[row, other] / (2 * width**2))
    return kernel_NN


def test_composition_adds_links_between_like_compositions_and_never_the_link_itself(
    queries, graph: Graph
) -> None:
    kernel_NN = composition_kernel(SEQUENCES, NUM_NEAREST)
    directed = LINKS + [(right, left) for left, right in LINKS]
    for (anchor, candidate), score in scores_of("composition", queries, graph).items():
        expected = sum(
            kernel_NN[anchor, left] * kernel_NN[candidate, right]
            for left, right in directed
            if {left, right} != {anchor, candidate}
        )
        assert score == pytest.approx(expected, abs=1e-6)


def sampled_queries(graph: Graph):
    """Return queries of one drawn node of each group and its neighbors."""
    queries = draw_link_queries(graph, np.array(HELD_OUT), 1)
    assert len(queries.node_S) < len(SEQUENCES)
    return queries


def sampled_scores(name: str, graph: Graph) -> dict[tuple[int, int], float]:
    queries = sampled_queries(graph)
    scores = {}
    for group in (0, 1):
        row_G = np.flatnonzero(queries.group_S == group)
        score_GG = rival_of(name, queries, graph).in_group(row_G)(slice(0, len(row_G)))
        for row, column in itertools.permutations(range(len(row_G)), 2):
            pair = queries.node_S[row_G[row]], queries.node_S[row_G[column]]
            scores[int(pair[0]), int(pair[1])] = float(score_GG[row, column])
    return scores


def evidence(like_NN: np.ndarray, anchor: int, candidate: int, known=frozenset(range(12))) -> float:
    directed = LINKS + [(right, left) for left, right in LINKS]
    return sum(
        like_NN[anchor, left] * like_NN[candidate, right]
        for left, right in directed
        if {left, right} != {anchor, candidate} and {left, right} <= known
    )


def test_a_sample_is_scored_by_the_links_of_the_whole_graph(graph: Graph) -> None:
    related_NN = np.where(cosines() >= RELATED, cosines(), 0.0)
    np.fill_diagonal(related_NN, 1.0)
    known = frozenset(sampled_queries(graph).node_S.tolist())
    scores = sampled_scores("look-up", graph)
    every = {pair: evidence(related_NN, *pair) for pair in scores}
    assert scores == pytest.approx(every, abs=1e-12)
    assert any(evidence(related_NN, *pair, known) < every[pair] for pair in scores)
    of_all = scores_of("composition", draw_link_queries(graph, np.array(HELD_OUT), 0), graph)
    of_sample = sampled_scores("composition", graph)
    # The width of the kernel is that of the evaluated nodes.
    assert {pair for pair, score in of_sample.items() if score > 0} == {
        pair for pair, score in of_all.items() if score > 0 and pair in of_sample
    }
    assert limits(sampled_queries(graph), graph, composition=True) == []


def test_nodes_of_all_groups_are_compared_where_their_pairs_are_few_enough(
    monkeypatch: pytest.MonkeyPatch, queries, graph: Graph
) -> None:
    monkeypatch.setattr("raybio.methods.sppt.rivals.MAX_PAIRS_ACROSS_GROUPS", 12 * 12)
    related_NN = np.where(cosines() >= RELATED, cosines(), 0.0)
    np.fill_diagonal(related_NN, 1.0)
    for pair, score in scores_of("look-up", queries, graph).items():
        assert score == pytest.approx(evidence(related_NN, *pair), abs=1e-12)
    assert limits(queries, graph, composition=True) == []
    monkeypatch.setattr("raybio.methods.sppt.rivals.MAX_PAIRS_ACROSS_GROUPS", 12 * 12 - 1)
    related_NN[GROUPS[:, None] != GROUPS] = 0.0
    for pair, score in scores_of("look-up", queries, graph).items():
        assert score == pytest.approx(evidence(related_NN, *pair), abs=1e-12)
    assert limits(queries, graph, composition=True) == [
        "look-up and composition compare nodes of the same group only: of all 2 groups there are "
        "more than 143 pairs of nodes"
    ]


def test_too_many_pairs_leave_links_or_rivals_out_and_say_so(
    monkeypatch: pytest.MonkeyPatch, graph: Graph
) -> None:
    # Of these nodes the sample's texts are as like as they are among all.
    monkeypatch.setattr("raybio.methods.sppt.evaluate.QUERY_SEED", 3)
    queries = sampled_queries(graph)
    num_nodes = len(queries.node_S)
    num_pairs = int((np.bincount(queries.group_S) ** 2).sum())
    known = frozenset(queries.node_S.tolist())
    related_NN = np.where(cosines() >= RELATED, cosines(), 0.0)
    np.fill_diagonal(related_NN, 1.0)
    related_NN[GROUPS[:, None] != GROUPS] = 0.0
    monkeypatch.setattr("raybio.methods.sppt.rivals.MAX_COMPARED_PAIRS", num_pairs)
    monkeypatch.setattr("raybio.methods.sppt.rivals.MAX_PAIRS_ACROSS_GROUPS", num_pairs)
    for (anchor, candidate), score in sampled_scores("look-up", graph).items():
        # Likeness depends on the texts of the sample, and is that of all texts in which links count.
        assert (score > 0) == (evidence(related_NN, anchor, candidate, known) > 0)
    assert limits(queries, graph, composition=True) == [
        f"look-up and composition know the links among the {num_nodes} evaluated nodes only, of 12",
        "look-up and composition compare nodes of the same group only: of all 2 groups there are "
        f"more than {num_pairs} pairs of nodes",
    ]
    assert limits(queries, graph, composition=False) == [
        f"look-up knows the links among the {num_nodes} evaluated nodes only, of 12",
        "look-up compares nodes of the same group only: of all 2 groups there are more than "
        f"{num_pairs} pairs of nodes",
    ]
    monkeypatch.setattr("raybio.methods.sppt.rivals.MAX_COMPARED_PAIRS", num_pairs - 1)
    rivals = link_rivals(
        queries, graph, Letters(), "3-mers", 3, composition=True, collective=SingleProcess()
    )
    assert list(rivals) == ["degree", "common neighbors", "3-mers"]
    (remark,) = limits(queries, graph, composition=True)
    assert remark.startswith("no look-up or composition: they would compare more than ")
    (of_texts,) = limits(queries, graph, composition=False)
    assert of_texts.startswith("no look-up: it would compare more than ")


def test_blocks_of_rows_and_tiles_of_scores_change_nothing(
    monkeypatch: pytest.MonkeyPatch, queries, graph: Graph
) -> None:
    names = ("common neighbors", "3-mers", "look-up", "composition")
    whole = {name: scores_of(name, queries, graph) for name in names}
    monkeypatch.setattr("raybio.methods.sppt.rivals._ROWS_AT_ONCE", 5)
    monkeypatch.setattr("raybio.methods.sppt.rivals._ENTRIES_AT_ONCE", 13)
    for name in names:
        assert scores_of(name, queries, graph) == whole[name], name


def test_evidence_holds_only_a_tile_of_its_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """A star: the likeness of all nodes and a hub's links have a dense product, (S, K)."""
    num_nodes = 600
    node_N = np.arange(num_nodes)
    link_NN = sp.csr_matrix(
        (np.ones(num_nodes - 1), (np.zeros(num_nodes - 1, int), node_N[1:])),
        shape=(num_nodes, num_nodes),
    )
    link_NN = (link_NN + link_NN.T).tocsr()
    like_NN = (sp.identity(num_nodes) + sp.random(num_nodes, num_nodes, 0.01, rng=0)).tolil()
    like_NN[:, 0] = 0.5
    like_NN = like_NN.tocsr()
    dense_NN = like_NN.toarray() @ link_NN.toarray() @ like_NN.toarray().T
    own_NN = np.array(
        [
            [
                link_NN[i, j] * (like_NN[i, i] * like_NN[j, j] + like_NN[i, j] * like_NN[j, i])
                for j in range(0, num_nodes, 37)
            ]
            for i in range(0, num_nodes, 37)
        ]
    )
    peak = 0
    for entries in (1 << 21, 13 * num_nodes):
        monkeypatch.setattr("raybio.methods.sppt.rivals._ENTRIES_AT_ONCE", entries)
        tracemalloc.start()
        scores = _evidence(link_NN, like_NN, node_N)(node_N)
        score_BN = scores(slice(0, 13))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        score_NN = np.concatenate([score_BN, scores(slice(13, num_nodes))])
        np.testing.assert_allclose(score_NN[::37, ::37], (dense_NN[::37, ::37] - own_NN), atol=1e-9)
    # The product has 360,000 entries of 12 bytes.
    assert peak < num_nodes**2 * 12 / 2


def random_texts(num_texts: int) -> list[str]:
    rng = np.random.default_rng(0)
    return ["".join(rng.choice(list("ACDEFGHIKL"), 40)) for _ in range(num_texts)]


def shares_of(texts: list[str]) -> np.ndarray:
    letters = sorted(set("".join(texts)))
    return np.array([[text.count(letter) / len(text) for letter in letters] for text in texts])


def test_only_the_nearest_compositions_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raybio.methods.sppt.rivals.NUM_NEAREST", 7)
    texts = random_texts(50)
    kernel = near_compositions(shares_of(texts), np.zeros(50, np.int64), np.arange(50)).toarray()
    assert ((kernel > 0).sum(axis=1) == 7).all()
    # Ties at the edge: equal counts in other positions.
    expected = composition_kernel(texts, 7)
    assert np.sort(kernel, axis=1) == pytest.approx(np.sort(expected, axis=1), abs=1e-5)


def test_compositions_of_other_groups_count_where_pairs_are_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares = token_shares(Letters(), np.arange(len(SEQUENCES)))
    assert near_compositions(shares, GROUPS, EVERY)[0, 10] == pytest.approx(1.0)
    monkeypatch.setattr("raybio.methods.sppt.rivals.MAX_PAIRS_ACROSS_GROUPS", 143)
    alternating = np.arange(12) % 2
    kernel = near_compositions(shares, alternating, EVERY).toarray()
    same_group = alternating[:, None] == alternating
    assert (kernel[~same_group] == 0).all() and (kernel[same_group] > 0).all()


def test_copies_only_are_all_alike_and_rows_without_tokens_have_no_share() -> None:
    """The median distance is 0 where most nodes have copies."""
    shares = np.array([[0.5, 0.5]] * 200 + [[1.0, 0.0]])
    kernel = near_compositions(shares, np.zeros(201, np.int64), np.arange(201))
    assert set(kernel[:200].data) == {1.0}
    assert kernel[200, 200] == 1.0 and np.isfinite(kernel.data).all()

    class Empty(Letters):
        def __call__(self, row_R, chance_R=0.0):
            return np.array([1, 2, 65]), np.array([0, 2, 3]), np.array([True, True, False])

    assert token_shares(Empty(), np.arange(2)).tolist() == [[0.0], [1.0]]


def planted(shuffled: bool) -> float:
    """Held-out LRAP of composition where letters A-C are linked with letters D-F by a rule.

    Unrelated texts of 60 letters; a text of two kinds, such as A and D, is linked with one of B and
    E. Shuffled links keep the number of links of each text.
    """
    rng = np.random.default_rng(1)
    num_nodes = 400
    kind_N = rng.integers(6, size=num_nodes)
    pools = ["ABCD", "EFGH", "IJKL", "MNOP", "QRST", "ACEG"]
    partner = {0: 3, 3: 0, 1: 4, 4: 1, 2: 5, 5: 2}
    texts = ["".join(rng.choice(list(pools[kind]), 60)) for kind in kind_N]
    links = []
    for node in range(num_nodes):
        others = np.flatnonzero(kind_N == partner[int(kind_N[node])])
        links += [(node, int(other)) for other in rng.choice(others, 4, replace=False)]
    link_E2 = np.unique(np.sort(np.array(links), axis=1), axis=0)
    if shuffled:
        link_E2[:, 1] = rng.permutation(link_E2[:, 1])
    link_E2 = rng.permutation(link_E2)
    group_N = np.zeros(num_nodes, np.int64)
    graph = Graph.from_edges(link_E2[200:], num_nodes, group_N)

    class Texts(Letters):
        def __call__(self, row_R, chance_R=0.0):
            token_T = np.array([ord(letter) for row in row_R for letter in texts[row]])
            return token_T, np.arange(len(row_R) + 1) * 60, np.zeros(len(token_T), bool)

    queries = draw_link_queries(graph, link_E2[:200], 0)
    rivals = link_rivals(
        queries, graph, Texts(), "3-mers", 3, composition=True, collective=SingleProcess()
    )
    composition = rivals["composition"]()
    device = torch.device("cpu")
    found = rank_by_rival(composition, queries, block_rows=64, device=device, collective=None)
    return found["val"].lrap


def test_composition_finds_a_planted_rule_and_nothing_in_shuffled_links() -> None:
    chance = 0.02  # a link or two among 399 candidates in random order
    assert planted(shuffled=True) < 1.5 * chance
    assert planted(shuffled=False) > 2.5 * chance


def test_relatives_of_other_groups_count_where_pairs_are_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tfidf = ngram_tfidf(Letters(), np.arange(len(SEQUENCES)), 3)
    assert relatives(tfidf, GROUPS, EVERY, SingleProcess())[0, 10] == pytest.approx(1.0)
    monkeypatch.setattr("raybio.methods.sppt.rivals.MAX_PAIRS_ACROSS_GROUPS", 143)
    own = relatives(tfidf, GROUPS, EVERY, SingleProcess())
    assert own[0, 10] == 0 and own[0, 1] >= RELATED and own[5, 5] == 1


@pytest.mark.parametrize("world", [2, 5, 40])
@pytest.mark.parametrize("max_pairs", [143, 144])
def test_workers_divide_the_search_for_relatives(
    monkeypatch: pytest.MonkeyPatch, world: int, max_pairs: int
) -> None:
    """With 144 pairs nodes are compared with those of all groups."""
    monkeypatch.setattr("raybio.methods.sppt.rivals.MAX_PAIRS_ACROSS_GROUPS", max_pairs)
    tfidf = ngram_tfidf(Letters(), EVERY, 3)
    alone = relatives(tfidf, GROUPS, EVERY, SingleProcess())
    read_rows = []
    read = NgramVectors.__getitem__

    def counted(vectors: NgramVectors, row_R: np.ndarray) -> sp.csr_matrix:
        read_rows.append(len(row_R))
        return read(vectors, row_R)

    monkeypatch.setattr(NgramVectors, "__getitem__", counted)
    results = in_threads(world, lambda collective: relatives(tfidf, GROUPS, EVERY, collective))
    for result in results:
        for name in ("indptr", "indices", "data"):
            assert np.array_equal(getattr(result, name), getattr(alone, name)), name
    if max_pairs == 144:
        # Each row is compared by one worker, and each of at most twelve has candidates to read.
        num_searching = min(world, len(EVERY))
        assert sum(read_rows) == len(EVERY) + num_searching * len(EVERY)


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_n_grams_do_not_cross_rows(length: int) -> None:
    tfidf = ngram_tfidf(Letters(), np.arange(len(SEQUENCES)), length)
    for row, text in enumerate(SEQUENCES):
        ngrams = {text[start : start + length] for start in range(len(text) - length + 1)}
        assert tfidf[np.array([row])].nnz == len(ngrams)


@pytest.mark.parametrize("rows_at_once", [1, 5, 1 << 14])
def test_vectors_of_n_grams_are_those_of_sklearn(
    monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    monkeypatch.setattr("raybio.methods.sppt.rivals._ROWS_AT_ONCE", rows_at_once)
    found = ngram_tfidf(Letters(), EVERY, 3)[EVERY]
    reference = TfidfVectorizer(
        analyzer="char", ngram_range=(3, 3), lowercase=False, sublinear_tf=True
    )
    expected = reference.fit_transform(SEQUENCES)
    np.testing.assert_allclose(found.toarray(), expected.toarray(), atol=1e-15)


def test_the_n_grams_of_all_rows_are_held_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    letter_NT = rng.integers(65, 73, (3000, 200))

    def read(row_R: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        token_T = letter_NT[row_R].ravel()
        return token_T, np.arange(len(row_R) + 1) * 200, np.zeros(len(token_T), bool)

    monkeypatch.setattr("raybio.methods.sppt.rivals._ROWS_AT_ONCE", 60)
    tracemalloc.start()
    counts = ngram_tfidf(read, np.arange(len(letter_NT)), 3).count_NF
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    num_bytes = counts.data.nbytes + counts.indices.nbytes
    assert num_bytes == 8 * counts.nnz
    # The counts of blocks, and those that replace them.
    assert peak < 3 * num_bytes


def test_without_ties_the_ranking_is_that_of_embeddings_with_the_same_scores(
    queries, graph: Graph
) -> None:
    """The retrieval of embeddings has oracles of its own."""
    embedding_ND = torch.randn(len(SEQUENCES), 5, generator=torch.Generator().manual_seed(0))
    embedding_ND = embedding_ND.double()

    def in_group(node_G: np.ndarray):
        product_GG = (embedding_ND[node_G] @ embedding_ND[node_G].T).numpy()
        return lambda rows: product_GG[rows].copy()

    device = torch.device("cpu")
    settings = {"block_rows": 2, "device": device, "collective": None}
    found_by_split = rank_by_rival(Rival("dot", in_group), queries, **settings)
    for name, links, ignore in (
        ("train", queries.training, None),
        ("val", queries.heldout, queries.training),
    ):
        found = found_by_split[name]
        expected = link_retrieval(
            embedding_ND,
            links.indptr,
            links.indices,
            group_N=GROUPS,
            metric="dot",
            ignore=None if ignore is None else (ignore.indptr, ignore.indices),
        )
        assert found.measures() == pytest.approx(expected.measures())


def test_ties_are_ranked_at_random_whatever_the_size_of_blocks(queries, graph: Graph) -> None:
    """All candidates tie: chance, and no bonus for the order of nodes."""
    equal = Rival("equal", lambda node_G: lambda rows: np.zeros((len(node_G), len(node_G)))[rows])
    device = torch.device("cpu")
    found = [
        rank_by_rival(equal, queries, block_rows=size, device=device, collective=None)[
            "train"
        ].measures()
        for size in (1, 4, 1024)
    ]
    assert found[0] == found[1] == found[2]
    big = Graph.from_edges(
        np.random.default_rng(0).integers(200, size=(400, 2)), 200, np.zeros(200, np.int64)
    )
    every = draw_link_queries(big, np.empty((0, 2), np.int64), 0)
    (of_training,) = rank_by_rival(
        equal, every, block_rows=64, device=device, collective=None
    ).values()
    # Links among 199 candidates in random order; in the order of ties all of a row would be first.
    assert 0.02 < of_training.lrap < 0.08


def test_scores_that_differ_by_less_than_rounding_tie(queries, graph: Graph) -> None:
    noisy = Rival(
        "noisy",
        lambda node_G: (
            lambda rows: (
                np.full((len(node_G), len(node_G)), 0.3)[rows]
                + 10.0 ** -(DIGITS + 3) * np.arange(len(node_G))
            )
        ),
    )
    equal = Rival("equal", lambda node_G: lambda rows: np.full((len(node_G),) * 2, 0.3)[rows])
    settings = {"block_rows": 4, "device": torch.device("cpu"), "collective": None}
    assert (
        rank_by_rival(noisy, queries, **settings)["train"].measures()
        == rank_by_rival(equal, queries, **settings)["train"].measures()
    )


def test_in_a_sample_of_nodes_degrees_are_those_of_the_whole_graph(graph: Graph) -> None:
    sampled = draw_link_queries(graph, np.array(HELD_OUT), 1)
    assert len(sampled.node_S) < len(SEQUENCES)
    rival = rival_of("degree", sampled, graph)
    node_G = np.arange(len(sampled.node_S))
    degree_G = rival.in_group(node_G)(slice(0, 1))[0]
    degree_S = graph.degree_N[sampled.node_S]
    assert degree_G.tolist() == ((1 + degree_S[0]) * degree_S).tolist()
