"""X-FACTR's decoders against loops over single queries, with a language model that is a function of the whole text."""

import itertools
from functools import cache

import numpy as np
import pytest
import torch

from raybio.core.randomness import derive_seed
from raybio.methods.contrastive_probe.baselines.x_factr import (
    Prediction,
    _is_copy,
    is_exact_match,
    predict_answers,
)
from raybio.methods.contrastive_probe.config import DecodeConfig

VOCABULARY, PAD, MASK = 7, 5, 6


@cache
def table(text, place):
    """Log-probabilities (V,) at ``place``: fixed random numbers that depend on every token of the text."""
    rng = np.random.default_rng(derive_seed(0, f"{place} in {' '.join(map(str, text))}"))
    return torch.log_softmax(torch.from_numpy(rng.normal(scale=2.0, size=VOCABULARY)), 0)


def language_model(token_NL, position_NJ):
    ends = [
        max(place for place, token in enumerate(row) if token != PAD) + 1
        for row in token_NL.tolist()
    ]
    rows = zip(token_NL.tolist(), ends, position_NJ.tolist(), strict=True)
    return torch.stack(
        [
            torch.stack([table(tuple(row[:end]), place) for place in places])
            for row, end, places in rows
        ]
    )


QUERIES = [
    np.array(tokens)
    for tokens in ([0, MASK, 1], [2, 2, 0, MASK, 4], [MASK, 3], [4, 1, MASK, 0, 0, 3])
]


def predict(queries=QUERIES, model=language_model, queries_per_block=64, **settings):
    config = DecodeConfig(**settings)
    return predict_answers(
        queries, model, config, mask_id=MASK, pad_id=PAD, queries_per_block=queries_per_block
    )


class Slow:
    """One query at a time; a hypothesis is (tuple of tokens, None where open; tuple of log-probabilities)."""

    def __init__(self, query, num_masks, size):
        self.gap = query.tolist().index(MASK)
        self.before, self.after = query[: self.gap].tolist(), query[self.gap + 1 :].tolist()
        self.num_masks, self.size = num_masks, size

    def at(self, tokens, place):
        middle = [MASK if token is None else token for token in tokens]
        return table((*self.before, *middle, *self.after), self.gap + place).tolist()

    def put(self, one, place, token, log_prob):
        tokens, logs = list(one[0]), list(one[1])
        tokens[place], logs[place] = token, log_prob
        return tuple(tokens), tuple(logs)

    def best(self, candidates):
        kept = []
        for one in sorted(candidates, key=lambda one: -sum(one[1])):
            if one[0] not in [other[0] for other in kept]:
                kept.append(one)
        return kept[: self.size]

    def predict_at(self, one, place):
        tokens = one[0][:place] + (None,) + one[0][place + 1 :]
        logs = self.at(tokens, place)
        likely = sorted(range(VOCABULARY), key=lambda token: -logs[token])[: self.size]
        return [self.put(one, place, token, logs[token]) for token in likely]

    def fill(self, how):
        beam = [((None,) * self.num_masks, (0.0,) * self.num_masks)]
        if how == "independent":
            logs = [self.at(beam[0][0], place) for place in range(self.num_masks)]
            return [(tuple(int(np.argmax(row)) for row in logs), tuple(max(row) for row in logs))]
        for step in range(self.num_masks):
            if how == "order":
                beam = self.best([new for one in beam for new in self.predict_at(one, step)])
                continue
            candidates = []
            for one in beam:
                pairs = [
                    (log_prob, place, token)
                    for place in range(self.num_masks)
                    if one[0][place] is None
                    for token, log_prob in enumerate(self.at(one[0], place))
                ]
                surest = sorted(pairs, reverse=True)[: self.size]
                candidates += [
                    self.put(one, place, token, log_prob) for log_prob, place, token in surest
                ]
            beam = self.best(candidates)
        return beam

    def refine(self, beam, how, max_iterations):
        for _ in range(max_iterations):
            before = [one[0] for one in beam]
            if how == "order":
                for place in range(self.num_masks):
                    beam = self.best([new for one in beam for new in self.predict_at(one, place)])
            else:
                least = [int(np.argmin(one[1])) for one in beam]
                news = [self.predict_at(one, place) for one, place in zip(beam, least, strict=True)]
                beam = self.best([new for some in news for new in some])
            if [one[0] for one in beam] == before:
                break
        return beam

    def rescore(self, one):
        places = range(self.num_masks)
        return one[0], tuple(
            self.at(one[0][:p] + (None,) + one[0][p + 1 :], p)[one[0][p]] for p in places
        )

    def answer(self, config):
        beam = self.fill(config.decode)
        if config.refine != "none":
            beam = self.refine(beam, config.refine, config.max_iterations)
        if config.rescore:
            beam = [self.rescore(one) for one in beam]
        tokens, logs = max(beam, key=lambda one: sum(one[1]))
        return tokens, sum(logs) / self.num_masks


def slow(query, config):
    answers = [
        Slow(query, masks, config.beam).answer(config) for masks in range(1, config.max_masks + 1)
    ]
    return max(answers, key=lambda answer: answer[1])


def assert_same(predictions, expected):
    assert [one.tokens for one in predictions] == [tokens for tokens, _ in expected]
    np.testing.assert_allclose(
        [one.mean_log_prob for one in predictions], [mean for _, mean in expected], atol=1e-5
    )


@pytest.mark.parametrize("rescore", [False, True])
@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("refine", ["none", "order", "confidence"])
@pytest.mark.parametrize("decode", ["independent", "order", "confidence"])
def test_a_block_of_queries_is_decoded_as_each_query_alone_by_loops(decode, refine, beam, rescore):
    config = DecodeConfig(
        decode=decode, refine=refine, beam=beam, rescore=rescore, max_masks=3, max_iterations=4
    )
    assert_same(predict(**config.to_mapping()), [slow(query, config) for query in QUERIES])


@pytest.mark.parametrize("refine", ["none", "order", "confidence"])
@pytest.mark.parametrize("decode", ["order", "confidence"])
def test_a_beam_wider_than_the_vocabulary_is_decoded_as_by_loops(decode, refine):
    settings = {"decode": decode, "refine": refine, "beam": 40, "max_masks": 2, "max_iterations": 3}
    config = DecodeConfig(**settings)
    assert_same(predict(QUERIES[:2], **settings), [slow(query, config) for query in QUERIES[:2]])


def test_copies_among_the_hypotheses_of_a_wide_beam_are_found_as_by_sets_and_in_little_memory():
    token_QCM = torch.randint(-1, 4, (4, 1000, 6), generator=torch.Generator().manual_seed(0))
    expected_QC = []
    for hypotheses in token_QCM.tolist():
        seen = set()
        expected_QC.append([tuple(one) in seen or bool(seen.add(tuple(one))) for one in hypotheses])
    with torch.profiler.profile(profile_memory=True) as profile:
        found_QC = _is_copy(token_QCM)
    assert found_QC.tolist() == expected_QC
    assert 0 < found_QC.float().mean() < 1
    assert (
        max(event.cpu_memory_usage for event in profile.events()) < 4 * token_QCM.nbytes
    )  # pairs would take 24 MB


def test_a_beam_of_all_sequences_finds_the_most_likely_one_of_all_in_order():
    """In order, a sequence's sum of log-probabilities does not depend on the search, so all of them can be listed."""

    def mean_of(query, tokens):
        one, num_masks = Slow(query, len(tokens), 1), len(tokens)
        prefixes = [tokens[:place] + (None,) * (num_masks - place) for place in range(num_masks)]
        return (
            sum(one.at(prefix, place)[tokens[place]] for place, prefix in enumerate(prefixes))
            / num_masks
        )

    queries = [np.array([first, MASK, last]) for first in range(5) for last in range(5)]
    sequences = [
        tokens for masks in (1, 2) for tokens in itertools.product(range(VOCABULARY), repeat=masks)
    ]
    means = [max((mean_of(query, tokens), tokens) for tokens in sequences) for query in queries]
    expected = [(tokens, mean) for mean, tokens in means]
    assert_same(predict(queries, decode="order", beam=VOCABULARY**2, max_masks=2), expected)
    greedy = predict(queries, decode="order", beam=1, max_masks=2)
    assert any(one.tokens != tokens for one, (tokens, _) in zip(greedy, expected, strict=True))


def test_answers_do_not_depend_on_the_other_queries_of_a_block():
    settings = {"decode": "order", "refine": "order", "beam": 2, "max_masks": 3}
    together = predict(**settings)
    alone = [predict([query], **settings)[0] for query in QUERIES]
    in_pairs = predict(queries_per_block=2, **settings)
    assert (
        [one.tokens for one in together]
        == [one.tokens for one in alone]
        == [one.tokens for one in in_pairs]
    )


def test_the_number_of_masks_is_that_of_the_highest_mean_log_probability():
    """One mask: its best token has probability 0.5. Two masks: 0.6 each, a lower product and a higher mean."""

    def model(token_NL, position_NJ):
        num_masks_N = ((token_NL == MASK) | (token_NL == 4)).sum(1)
        right_N = torch.where(num_masks_N == 1, 0.5, torch.where(num_masks_N == 2, 0.6, 0.55))
        probability_NV = ((1 - right_N) / (VOCABULARY - 1))[:, None].repeat(1, VOCABULARY)
        probability_NV[:, 4] = right_N
        return probability_NV.log()[:, None].expand(-1, position_NJ.shape[1], -1)

    (found,) = predict([np.array([0, MASK, 1])], model, decode="confidence", max_masks=3)
    assert found.tokens == (4, 4)
    assert found.mean_log_prob == pytest.approx(np.log(0.6), abs=1e-6)


def test_refining_asks_for_settled_queries_no_more_and_stops_when_all_have_settled():
    asked = []

    def stubborn(token_NL, position_NJ):
        asked.append(len(token_NL))
        log_prob_V = torch.log_softmax(torch.arange(VOCABULARY) / 2.0, 0)
        return log_prob_V.expand(*position_NJ.shape, -1)

    predict(
        QUERIES[:3],
        stubborn,
        decode="order",
        refine="order",
        beam=1,
        max_masks=2,
        max_iterations=10,
    )
    assert asked == [3] * (1 + 1) + [3] * (
        2 + 2
    )  # a fill and one sweep, with one mask and with two


def test_a_right_answer_is_one_of_the_golds_token_for_token():
    predictions = [Prediction((1, 2), -1.0), Prediction((1,), -1.0), Prediction((2, 1), -1.0)]
    golds = [[(3,), (1, 2)], [(1, 2)], []]
    assert is_exact_match(predictions, golds).tolist() == [True, False, False]


def test_a_query_without_exactly_one_mask_is_refused_by_its_number():
    with pytest.raises(ValueError, match="query 1 has 2 masks"):
        predict([QUERIES[0], np.array([MASK, 1, MASK])])
