"""Words of entity pairs, against a loop over the tokens of a document."""

from collections import Counter

import numpy as np
import pytest
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import TfidfTransformer

from raybio.methods.mtb_mccl import pair_words
from raybio.methods.mtb_mccl.documents.collate import DocumentReader
from raybio.methods.mtb_mccl.documents.markers import NOT_READ
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mtb.system import build
from raybio.methods.mtb_mccl.pair_words import PairTfidf, PairWords
from tests.methods.conformance_cases import tiny_config


@pytest.fixture(scope="module")
def reader(tiny_documents: DocumentStore) -> DocumentReader:
    return build(tiny_config("mtb_pretrain"), tiny_documents.path).final_evaluate.__self__.reader


def slow_words(
    reader: DocumentReader, row: int, head: int, tail: int, is_blank_E: np.ndarray | None
) -> Counter:
    """Count (role, token) of a pair, one token after the other."""
    store = reader.store
    marked = reader.marked(row, is_blank_E)
    tokens = marked.id_S.tolist()
    places: dict[int, list[int]] = {head: [], tail: []}
    for mention, entity in zip(*store.links(row), strict=True):
        place = int(marked.position_M[mention])
        if entity in places and place != NOT_READ:
            places[entity].append(place)
    types = store.types(row)
    words: Counter = Counter({("types", int(types[head]), int(types[tail])): 1})
    for role, entity in (("head", head), ("tail", tail)):
        names = set()
        for place in places[entity]:
            at = place + 1
            while at < len(tokens) and tokens[at] != reader.markers.closing_id:
                names.add(tokens[at])
                at += 1
        words.update((role, token) for token in names)
    if not places[head] or not places[tail]:
        return words
    _, first, second = min(
        (abs(a - b), a, b) for a in sorted(places[head]) for b in sorted(places[tail])
    )
    for role, start, stop in (
        ("around head", first - 10, first + 10),
        ("around tail", second - 10, second + 10),
        ("between", min(first, second), max(first, second)),
    ):
        if role == "between" and abs(first - second) > pair_words.MAX_BETWEEN:
            continue
        for at in range(max(start, 0), min(stop, len(tokens))):
            if marked.is_plain_S[at]:
                words[role, tokens[at]] += 1
    return words


@pytest.mark.parametrize("blanks", [False, True])
@pytest.mark.parametrize("max_tokens", [400, 30])
def test_words_are_those_of_a_loop_and_truncated_entities_have_a_type_only(
    reader, blanks, max_tokens
) -> None:
    short = DocumentReader(reader.store, reader.tokenize, reader.markers, max_tokens)
    store = reader.store

    def is_blank(row: int) -> np.ndarray | None:
        return np.arange(len(store.types(row))) % 2 == 0 if blanks else None

    pairs = {row: store.candidates(row) for row in (5, 2, 9)}
    words = PairWords.read(short, pairs, is_blank)
    slow = [
        slow_words(short, row, head, tail, is_blank(row))
        for row, (head_P, tail_P) in pairs.items()
        for head, tail in zip(head_P.tolist(), tail_P.tolist(), strict=True)
    ]
    assert words.num_pairs == len(slow) > 10
    # Counts of the features of each pair, whatever their numbers: cosines of TF-IDF are equal.
    ours = PairTfidf.fit(words).vectors(words)
    names = [{str(word): count for word, count in counter.items()} for counter in slow]
    counts = DictVectorizer().fit_transform(names)
    expected = TfidfTransformer(sublinear_tf=True).fit_transform(counts)
    np.testing.assert_allclose((ours @ ours.T).toarray(), (expected @ expected.T).toarray())
    assert ours.nnz == expected.nnz
    is_truncated = [not any(word[0] == "tail" for word in counter) for counter in slow]
    assert any(is_truncated) == (max_tokens == 30)
    same_types = [[min(a) == min(b) for b in map(_types, slow)] for a in map(_types, slow)]
    assert ((words.type_P[:, None] == words.type_P) == np.array(same_types)).all()


def _types(counter: Counter) -> list[tuple]:
    return [word for word in counter if word[0] == "types"]


def test_features_that_were_not_fitted_are_ignored_and_no_pair_is_no_row(reader) -> None:
    store = reader.store
    first = PairWords.read(reader, {0: store.candidates(0)})
    others = PairWords.read(reader, {row: store.candidates(row) for row in range(1, 9)})
    tfidf = PairTfidf.fit(first)
    vector_PF = tfidf.vectors(others).toarray()
    assert vector_PF.shape == (others.num_pairs, len(np.unique(first.feature_W)))
    length_P = np.linalg.norm(vector_PF, axis=1)
    assert (np.isclose(length_P, 1) | (length_P == 0)).all()
    for pair in range(others.num_pairs):
        own = others.feature_W[others.indptr_P1[pair] : others.indptr_P1[pair + 1]]
        known = set(own.tolist()) & set(first.feature_W.tolist())
        assert (vector_PF[pair] > 0).sum() == len(known)
    nothing = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    empty = PairWords.read(reader, {0: nothing})
    assert empty.num_pairs == 0 and tfidf.vectors(empty).shape[0] == 0
