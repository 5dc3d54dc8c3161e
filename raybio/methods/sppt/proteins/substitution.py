"""The WAG model of amino acid substitution, and a sampler of it.

The numbers are those of Whelan and Goldman (2001), "A general empirical model of protein evolution
derived from multiple protein families using a maximum-likelihood approach", Mol. Biol. Evol.
18(5):691-699.

Shape letters: T residues, S classes of speed.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

LETTERS = b"ARNDCQEGHILKMFPSTWYV"
"""Letter of each code 0..19, and order of the amino acids in the tables below."""

# Exchangeabilities of amino acid r with amino acids 0..r-1, for r = 1..19; long rows are indented.
_EXCHANGE = """
0.551571
0.509848 0.635346
0.738998 0.147304 5.429420
1.027040 0.528191 0.265256 0.030295
0.908598 3.035500 1.543640 0.616783 0.098818
1.582850 0.439157 0.947198 6.174160 0.021352 5.469470
1.416720 0.584665 1.125560 0.865584 0.306674 0.330052 0.567717
0.316954 2.137150 3.956290 0.930676 0.248972 4.294110 0.570025 0.249410
0.193335 0.186979 0.554236 0.039437 0.170135 0.113917 0.127395 0.030450 0.138190
0.397915 0.497671 0.131528 0.084805 0.384287 0.869489 0.154263 0.061304 0.499462 3.170970
0.906265 5.351420 3.012010 0.479855 0.074034 3.894900 2.584430 0.373558 0.890432 0.323832 0.257555
0.893496 0.683162 0.198221 0.103754 0.390482 1.545260 0.315124 0.174100 0.404141 4.257460 4.854020
  0.934276
0.210494 0.102711 0.096162 0.046730 0.398020 0.099921 0.081134 0.049931 0.679371 1.059470 2.115170
  0.088836 1.190630
1.438550 0.679489 0.195081 0.423984 0.109404 0.933372 0.682355 0.243570 0.696198 0.099929 0.415844
  0.556896 0.171329 0.161444
3.370790 1.224190 3.974230 1.071760 1.407660 1.028870 0.704939 1.341820 0.740169 0.319440 0.344739
  0.967130 0.493905 0.545931 1.613280
2.121110 0.554413 2.030060 0.374866 0.512984 0.857928 0.822765 0.225833 0.473307 1.458160 0.326622
  1.386980 1.516120 0.171903 0.795384 4.378020
0.113133 1.163920 0.071917 0.129767 0.717070 0.215737 0.156557 0.336983 0.262569 0.212483 0.665309
  0.137505 0.515706 1.529640 0.139405 0.523742 0.110864
0.240735 0.381533 1.086000 0.325711 0.543833 0.227710 0.196303 0.103604 3.873440 0.420170 0.398618
  0.133264 0.428437 6.454280 0.216046 0.786993 0.291148 2.485390
2.006010 0.251849 0.196246 0.152335 1.002140 0.301281 0.588731 0.187247 0.118358 7.821300 1.800340
  0.305434 2.058450 0.649892 0.314887 0.232739 1.388230 0.365369 0.314730
"""

_FREQUENCIES = """
0.0866279 0.0439720 0.0390894 0.0570451 0.0193078 0.0367281 0.0580589 0.0832518 0.0244313 0.0484660
0.0862090 0.0620286 0.0195027 0.0384319 0.0457631 0.0695179 0.0610127 0.0143859 0.0352742 0.0708956
"""


@lru_cache(maxsize=1)
def frequencies() -> NDArray[np.float64]:
    """Return the equilibrium frequencies of the amino acids (20,), which sum to 1."""
    frequency = np.array(_FREQUENCIES.split(), dtype=float)
    return frequency / frequency.sum()


@lru_cache(maxsize=1)
def rate_matrix() -> NDArray[np.float64]:
    """Return the rates Q (20, 20): Q_ij = exchangeability_ij x frequency_j; rows sum to 0.

    A unit of time has one expected substitution a site.
    """
    exchange = np.zeros((20, 20))
    exchange[np.tril_indices(20, -1)] = np.array(_EXCHANGE.split(), dtype=float)
    rate = (exchange + exchange.T) * frequencies()
    np.fill_diagonal(rate, -rate.sum(axis=1))
    return rate / -(frequencies() @ np.diag(rate))


def transition(time: float) -> NDArray[np.float64]:
    """Return P(t) = exp(Q t) (20, 20): row i holds the probabilities of i's state after ``time``.

    By detailed balance Q is similar to a symmetric matrix, whose eigenvectors give the exponential.
    """
    root = np.sqrt(frequencies())
    value, vector = np.linalg.eigh(rate_matrix() * root[:, None] / root)
    probability = (vector * np.exp(value * time)) @ vector.T / root[:, None] * root
    probability = np.clip(probability, 0.0, None)
    return probability / probability.sum(axis=1, keepdims=True)


def random_residues(num: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw codes of amino acids by their frequencies (num,)."""
    code = np.searchsorted(_cumulative(frequencies()), rng.random(num), side="right")
    return code.astype(np.uint8)


def substitute(
    code_T: NDArray[np.uint8],
    speed_T: NDArray[np.uint8],
    speeds: tuple[float, ...],
    time: float,
    rng: np.random.Generator,
) -> NDArray[np.uint8]:
    """Return residues after some time of evolution.

    Args:
        code_T: residues (T,), codes 0..19.
        speed_T: class of speed of each site, an index into ``speeds``.
        speeds: relative rate of substitution of each class.
        time: expected substitutions a site at speed 1.
        rng: draws the substitutions.

    Returns:
        New residues (T,). Only sites that change cost more than one draw.
    """
    probability_S20 = np.stack([transition(time * speed) for speed in speeds])
    stays_S20 = np.einsum("sii->si", probability_S20)
    changed = np.flatnonzero(rng.random(len(code_T)) >= stays_S20[speed_T, code_T])
    others_S20 = probability_S20 * (1.0 - np.eye(20))
    total = others_S20.sum(axis=2, keepdims=True)
    others_S20 = _cumulative(
        np.divide(others_S20, total, out=np.full_like(others_S20, 0.05), where=total > 0)
    )
    drawn = rng.random(len(changed))
    threshold = others_S20[speed_T[changed], code_T[changed]]
    new_code_T = code_T.copy()
    new_code_T[changed] = (threshold <= drawn[:, None]).sum(axis=1)
    return new_code_T


def _cumulative(probability: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return running sums along the last axis; the last is infinite, against rounding."""
    total = np.cumsum(probability, axis=-1)
    total[..., -1] = np.inf
    return total
