import numpy as np
import scipy.linalg

from raybio.methods.sppt.proteins.substitution import (
    LETTERS,
    frequencies,
    random_residues,
    rate_matrix,
    substitute,
    transition,
)


def test_the_rates_are_those_of_a_reversible_model_with_one_substitution_a_unit_of_time():
    rate, frequency = rate_matrix(), frequencies()
    flow = frequency[:, None] * rate
    assert np.allclose(flow, flow.T, atol=1e-15)
    assert np.allclose(rate.sum(axis=1), 0.0, atol=1e-12)
    assert np.isclose(-(frequency @ np.diag(rate)), 1.0)


def test_published_numbers_stand_where_they_belong():
    rate, frequency = rate_matrix(), frequencies()
    exchange = rate / frequency
    ratio = exchange / exchange[LETTERS.index(b"A"), LETTERS.index(b"R")] * 0.551571
    for pair, published in {
        b"DN": 5.42942,
        b"ED": 6.17416,
        b"VI": 7.8213,
        b"YF": 6.45428,
        b"KR": 5.35142,
    }.items():
        assert np.isclose(
            ratio[LETTERS.index(pair[:1]), LETTERS.index(pair[1:])], published, rtol=1e-6
        )
    assert LETTERS[frequency.argmax() : frequency.argmax() + 1] == b"A"
    assert LETTERS[frequency.argmin() : frequency.argmin() + 1] == b"W"


def test_transition_chances_equal_the_matrix_exponential_and_keep_the_frequencies():
    for time in (0.0, 0.01, 0.7, 5.0):
        assert np.allclose(transition(time), scipy.linalg.expm(rate_matrix() * time), atol=1e-10)
        assert np.allclose(frequencies() @ transition(time), frequencies(), atol=1e-12)


def test_sampled_substitutions_have_the_chances_of_the_model():
    rng = np.random.default_rng(0)
    before = random_residues(400_000, rng)
    speed = (np.arange(len(before)) % 2).astype(np.uint8)
    after = substitute(before, speed, (0.2, 1.0), 0.8, rng)
    for number, factor in enumerate((0.2, 1.0)):
        here = speed == number
        counted = np.zeros((20, 20))
        np.add.at(counted, (before[here], after[here]), 1)
        observed = counted / counted.sum(axis=1, keepdims=True)
        error = np.sqrt(transition(0.8 * factor) / counted.sum(axis=1, keepdims=True))
        assert (np.abs(observed - transition(0.8 * factor)) < 5 * error + 1e-9).all()


def test_no_time_changes_nothing():
    rng = np.random.default_rng(0)
    before = random_residues(10_000, rng)
    assert (
        substitute(before, np.zeros(10_000, dtype=np.uint8), (1.0,), 0.0, rng) == before
    ).mean() > 0.9999
