"""X-FACTR's decoders against loops; the language model is a random function of the text."""

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
def table(text, position):
    """Fixed random log-probabilities (V,) at a position that depend on every token of the text."""
    rng = np.random.default_rng(derive_seed(0, f"{position} in {' '.join(map(str, text))}"))
    return torch.log_softmax(torch.from_numpy(rng.normal(scale=2.0, size=VOCABULARY)), 0)


def language_model(token_NL, position_NJ):
    ends = [
        max(position for position, token in enumerate(row) if token != PAD) + 1
        for row in token_NL.tolist()
    ]
    rows = zip(token_NL.tolist(), ends, position_NJ.tolist(), strict=True)
    return torch.stack(
        [
            torch.stack([table(tuple(row[:end]), position) for position in positions])
            for row, end, positions in rows
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
    """One query; a hypothesis is a tuple of tokens (None: open) and one of log-probabilities."""

    def __init__(self, query, num_masks, size):
        self.gap = query.tolist().index(MASK)
        self.before, self.after = query[: self.gap].tolist(), query[self.gap + 1 :].tolist()
        self.num_masks, self.size = num_masks, size

    def at(self, tokens, position):
        middle = [MASK if token is None else token for token in tokens]
        return table((*self.before, *middle, *self.after), self.gap + position).tolist()

    def put(self, one, position, token, log_prob):
        tokens, logs = list(one[0]), list(one[1])
        tokens[position], logs[position] = token, log_prob
        return tuple(tokens), tuple(logs)

    def best(self, candidates):
        kept = []
        for one in sorted(candidates, key=lambda one: -sum(one[1])):
            if one[0] not in [other[0] for other in kept]:
                kept.append(one)
        return kept[: self.size]

    def predict_at(self, one, position):
        tokens = one[0][:position] + (None,) + one[0][position + 1 :]
        logs = self.at(tokens, position)
        likely = sorted(range(VOCABULARY), key=lambda token: -logs[token])[: self.size]
        return [self.put(one, position, token, logs[token]) for token in likely]

    def fill(self, how):
        beam = [((None,) * self.num_masks, (0.0,) * self.num_masks)]
        if how == "independent":
            logs = [self.at(beam[0][0], position) for position in range(self.num_masks)]
            return [(tuple(int(np.argmax(row)) for row in logs), tuple(max(row) for row in logs))]
        for step in range(self.num_masks):
            if how == "order":
                beam = self.best([new for one in beam for new in self.predict_at(one, step)])
                continue
            candidates = []
            for one in beam:
                pairs = [
                    (log_prob, position, token)
                    for position in range(self.num_masks)
                    if one[0][position] is None
                    for token, log_prob in enumerate(self.at(one[0], position))
                ]
                surest = sorted(pairs, reverse=True)[: self.size]
                candidates += [
                    self.put(one, position, token, log_prob) for log_prob, position, token in surest
                ]
            beam = self.best(candidates)
        return beam

    def refine(self, beam, how, max_iterations):
        for _ in range(max_iterations):
            before = [one[0] for one in beam]
            if how == "order":
                for position in range(self.num_masks):
                    beam = self.best(
                        [new for one in beam for new in self.predict_at(one, position)]
                    )
            else:
                least = [int(np.argmin(one[1])) for one in beam]
                news = [
                    self.predict_at(one, position)
                    for one, position in zip(beam, least, strict=True)
                ]
                beam = self.best([new for some in news for new in some])
            if [one[0] for one in beam] == before:
                break
        return beam

    def rescore(self, one):
        positions = range(self.num_masks)
        return one[0], tuple(
            self.at(one[0][:p] + (None,) + one[0][p + 1 :], p)[one[0][p]] for p in positions
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
def test_decoding_a_block_equals_the_loop_over_single_queries(decode, refine, beam, rescore):
    config = DecodeConfig(
        decode=decode, refine=refine, beam=beam, rescore=rescore, max_masks=3, max_iterations=4
    )
    assert_same(predict(**config.to_mapping()), [slow(query, config) for query in QUERIES])


@pytest.mark.parametrize("refine", ["none", "order", "confidence"])
@pytest.mark.parametrize("decode", ["order", "confidence"])
def test_a_beam_wider_than_the_vocabulary_equals_the_loop(decode, refine):
    settings = {"decode": decode, "refine": refine, "beam": 40, "max_masks": 2, "max_iterations": 3}
    config = DecodeConfig(**settings)
    assert_same(predict(QUERIES[:2], **settings), [slow(query, config) for query in QUERIES[:2]])


def test_duplicate_hypotheses_are_found_in_little_memory():
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
    """In order, the sum of log-probabilities does not depend on the search; all are listed."""

    def mean_of(query, tokens):
        one, num_masks = Slow(query, len(tokens), 1), len(tokens)
        prefixes = [
            tokens[:position] + (None,) * (num_masks - position) for position in range(num_masks)
        ]
        return (
            sum(
                one.at(prefix, position)[tokens[position]]
                for position, prefix in enumerate(prefixes)
            )
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


def test_the_number_of_masks_has_the_highest_mean_log_probability():
    """One mask: 0.5 for the best token. Two: 0.6 each, a lower product and a higher mean."""

    def model(token_NL, position_NJ):
        num_masks_N = ((token_NL == MASK) | (token_NL == 4)).sum(1)
        right_N = torch.where(num_masks_N == 1, 0.5, torch.where(num_masks_N == 2, 0.6, 0.55))
        probability_NV = ((1 - right_N) / (VOCABULARY - 1))[:, None].repeat(1, VOCABULARY)
        probability_NV[:, 4] = right_N
        return probability_NV.log()[:, None].expand(-1, position_NJ.shape[1], -1)

    (found,) = predict([np.array([0, MASK, 1])], model, decode="confidence", max_masks=3)
    assert found.tokens == (4, 4)
    assert found.mean_log_prob == pytest.approx(np.log(0.6), abs=1e-6)


def test_refinement_skips_converged_queries_and_stops_when_all_have_converged():
    num_rows = []

    def stubborn(token_NL, position_NJ):
        num_rows.append(len(token_NL))
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
    assert num_rows == [3] * (1 + 1) + [3] * (
        2 + 2
    )  # a fill and one sweep, with one mask and with two


def test_a_correct_answer_equals_a_gold_answer_token_for_token():
    predictions = [Prediction((1, 2), -1.0), Prediction((1,), -1.0), Prediction((2, 1), -1.0)]
    golds = [[(3,), (1, 2)], [(1, 2)], []]
    assert is_exact_match(predictions, golds).tolist() == [True, False, False]


def test_a_query_without_exactly_one_mask_is_refused_by_its_number():
    with pytest.raises(ValueError, match="query 1 has 2 masks"):
        predict([QUERIES[0], np.array([MASK, 1, MASK])])
