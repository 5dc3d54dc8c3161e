"""Proteomes that evolve: genes of one to four domains, substitutions, indels, gene loss and duplication.

Vectorised over a whole proteome, so that a branch of the species tree costs milliseconds.

Shape letters: G genes, T residues of all genes end to end, F domain families.

How amino acids replace each other: the WAG model, and a sampler of it.

Source of the numbers: Whelan and Goldman (2001), "A general empirical model of protein evolution
    derived from multiple
protein families using a maximum-likelihood approach", Mol. Biol. Evol. 18(5):691-699.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Relative speed of a site: the core of a domain, its middle, its surface, and the linkers between
# domains.
SPEEDS = (0.1, 0.5, 1.5, 3.0)


LINKER = len(SPEEDS) - 1


SHARE_OF_SPEED = (0.45, 0.35, 0.2)


SHARE_OF_DOMAIN_COUNT = (0.55, 0.3, 0.1, 0.05)


FOUNDER_CONCENTRATION = (
    20.0  # of a Dirichlet around the overall frequencies: the lower, the more distinct
)


INDELS_PER_SUBSTITUTION = 0.05


MEAN_INDEL_LENGTH = 2.0


class Proteome(NamedTuple):
    """Genes of one species.

    Attributes:
        residue_T: codes 0..19 of all genes end to end.
        speed_T: class of speed of each site.
        indptr_G1: gene g is ``residue_T[indptr_G1[g] : indptr_G1[g + 1]]``.
        ancestor_G: number of the root's gene from which each one descends; copies share it.
    """

    residue_T: NDArray[np.uint8]
    speed_T: NDArray[np.uint8]
    indptr_G1: NDArray[np.int64]
    ancestor_G: NDArray[np.int64]

    def take(self, gene_K: NDArray[np.int64]) -> "Proteome":
        """Genes ``gene_K``, in that order."""
        start_K, length_K = self.indptr_G1[gene_K], np.diff(self.indptr_G1)[gene_K]
        indptr_K1 = np.concatenate([[0], np.cumsum(length_K)])
        position_T = np.arange(indptr_K1[-1]) + np.repeat(start_K - indptr_K1[:-1], length_K)
        return Proteome(
            self.residue_T[position_T], self.speed_T[position_T], indptr_K1, self.ancestor_G[gene_K]
        )


def found_proteome(
    family_G4: NDArray[np.int64], domain_length: int, divergence: float, rng: np.random.Generator
) -> Proteome:
    """The root's proteome: each gene a chain of diverged copies of its families' domains, with linkers around them.

    Args:
        family_G4: families of each gene's domains (G, 4), -1 where there is none.
        domain_length: mean letters of a domain.
        divergence: substitutions a site between a family's founder and each of its copies.
        rng: the draws.
    """
    num_families = int(family_G4.max()) + 1
    length_F = np.maximum(
        rng.normal(domain_length, 0.15 * domain_length, num_families).astype(np.int64), 8
    )
    founder_F = [_founder(int(length), rng) for length in length_F]
    speed_F = [
        rng.choice(len(SHARE_OF_SPEED), int(length), p=SHARE_OF_SPEED).astype(np.uint8)
        for length in length_F
    ]
    residues, speeds, indptr = [], [], [0]
    longest_linker = max(domain_length // 4, 2)
    for families in family_G4:
        length = 0
        for family in [*families[families >= 0], -1]:
            linker = random_residues(int(rng.integers(1, longest_linker + 1)), rng)
            residues.append(linker)
            speeds.append(np.full(len(linker), LINKER, dtype=np.uint8))
            length += len(linker)
            if family >= 0:
                residues.append(founder_F[family])
                speeds.append(speed_F[family])
                length += len(founder_F[family])
        indptr.append(indptr[-1] + length)
    residue_T, speed_T = np.concatenate(residues), np.concatenate(speeds)
    diverged_T = substitute(residue_T, speed_T, SPEEDS, divergence, rng)
    return Proteome(
        diverged_T, speed_T, np.asarray(indptr, dtype=np.int64), np.arange(len(family_G4))
    )


def draw_families(
    num_genes: int, num_families: int, num_first_families: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Families of each gene's one to four domains (G, 4), -1 where there is none.

    The first domain is of one of the first ``num_first_families`` families, each about equally
    often; further ones are of any family.
    """
    count_G = rng.choice(len(SHARE_OF_DOMAIN_COUNT), num_genes, p=SHARE_OF_DOMAIN_COUNT) + 1
    family_G4 = rng.integers(0, num_families, (num_genes, len(SHARE_OF_DOMAIN_COUNT)))
    family_G4[:, 0] = rng.permutation(np.arange(num_genes) % num_first_families)
    family_G4[np.arange(family_G4.shape[1]) >= count_G[:, None]] = -1
    return family_G4


def evolve(
    proteome: Proteome,
    time: float,
    rng: np.random.Generator,
    *,
    loss_rate: float,
    duplication_rate: float,
) -> Proteome:
    """A proteome ``time`` substitutions a site later.

    Args:
        proteome: the start.
        time: length of the branch.
        rng: the draws.
        loss_rate: losses a gene and unit of time.
        duplication_rate: duplications a gene and unit of time.
    """
    residue_T = substitute(proteome.residue_T, proteome.speed_T, SPEEDS, time, rng)
    proteome = _with_indels(proteome._replace(residue_T=residue_T), time, rng)
    num_genes = len(proteome.ancestor_G)
    stays = rng.random(num_genes) >= -np.expm1(-loss_rate * time)
    doubles = stays & (rng.random(num_genes) < -np.expm1(-duplication_rate * time))
    if stays.all() and not doubles.any():
        return proteome
    return proteome.take(np.concatenate([np.flatnonzero(stays), np.flatnonzero(doubles)]))


def _founder(length: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """A domain that prefers some amino acids, as families do (leucine in coiled coils, glycine in collagen)."""
    preferred = rng.dirichlet(FOUNDER_CONCENTRATION * frequencies())
    return rng.choice(len(preferred), length, p=preferred).astype(np.uint8)


def _with_indels(proteome: Proteome, time: float, rng: np.random.Generator) -> Proteome:
    """Insertions and deletions, in linkers only: a domain keeps its length and no gene vanishes."""
    residue_T, speed_T, indptr_G1, ancestor_G = proteome
    linker = np.flatnonzero(speed_T == LINKER)
    expected = INDELS_PER_SUBSTITUTION * time * SPEEDS[LINKER] * len(linker)
    deleted = np.unique(_runs(linker[rng.integers(0, len(linker), rng.poisson(expected / 2))], rng))
    deleted = deleted[deleted < len(residue_T)]
    deleted = deleted[speed_T[deleted] == LINKER]
    inserted = np.sort(linker[rng.integers(0, len(linker), rng.poisson(expected / 2))])
    inserted = np.repeat(inserted, rng.geometric(1 / MEAN_INDEL_LENGTH, len(inserted)))
    gone = np.zeros(len(residue_T), dtype=bool)
    gone[deleted] = True
    # An insertion before position p belongs to the gene that holds p.
    shift_G1 = (
        np.searchsorted(inserted, indptr_G1) - np.concatenate([[0], np.cumsum(gone)])[indptr_G1]
    )
    gone = np.insert(gone, inserted, False)
    residue_T = np.insert(residue_T, inserted, random_residues(len(inserted), rng))[~gone]
    speed_T = np.insert(speed_T, inserted, np.uint8(LINKER))[~gone]
    return Proteome(residue_T, speed_T, indptr_G1 + shift_G1, ancestor_G)


def _runs(start_K: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Positions of runs of geometric length that begin at ``start_K``."""
    length_K = rng.geometric(1 / MEAN_INDEL_LENGTH, len(start_K))
    within = np.arange(length_K.sum()) - np.repeat(np.cumsum(length_K) - length_K, length_K)
    return np.repeat(start_K, length_K) + within


LETTERS = b"ARNDCQEGHILKMFPSTWYV"
"""Order of the amino acids in the tables below, and the letter of each code 0..19."""


# Exchangeabilities: row r holds those of amino acid r + 1 with amino acids 0..r.
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
0.893496 0.683162 0.198221 0.103754 0.390482 1.545260 0.315124 0.174100 0.404141 4.257460 4.854020 0.934276
0.210494 0.102711 0.096162 0.046730 0.398020 0.099921 0.081134 0.049931 0.679371 1.059470 2.115170 0.088836 1.190630
1.438550 0.679489 0.195081 0.423984 0.109404 0.933372 0.682355 0.243570 0.696198 0.099929 0.415844 0.556896 0.171329
0.161444
3.370790 1.224190 3.974230 1.071760 1.407660 1.028870 0.704939 1.341820 0.740169 0.319440 0.344739 0.967130 0.493905
0.545931 1.613280
2.121110 0.554413 2.030060 0.374866 0.512984 0.857928 0.822765 0.225833 0.473307 1.458160 0.326622 1.386980 1.516120
0.171903 0.795384 4.378020
0.113133 1.163920 0.071917 0.129767 0.717070 0.215737 0.156557 0.336983 0.262569 0.212483 0.665309 0.137505 0.515706
1.529640 0.139405 0.523742 0.110864
0.240735 0.381533 1.086000 0.325711 0.543833 0.227710 0.196303 0.103604 3.873440 0.420170 0.398618 0.133264 0.428437
6.454280 0.216046 0.786993 0.291148 2.485390
2.006010 0.251849 0.196246 0.152335 1.002140 0.301281 0.588731 0.187247 0.118358 7.821300 1.800340 0.305434 2.058450
0.649892 0.314887 0.232739 1.388230 0.365369 0.314730
"""


_FREQUENCIES = """
0.0866279 0.0439720 0.0390894 0.0570451 0.0193078 0.0367281 0.0580589 0.0832518 0.0244313 0.0484660
0.0862090 0.0620286 0.0195027 0.0384319 0.0457631 0.0695179 0.0610127 0.0143859 0.0352742 0.0708956
"""


@lru_cache(maxsize=1)
def frequencies() -> NDArray[np.float64]:
    """Equilibrium frequencies of the amino acids (20,), summing to 1."""
    frequency = np.array(_FREQUENCIES.split(), dtype=float)
    return frequency / frequency.sum()


@lru_cache(maxsize=1)
def rate_matrix() -> NDArray[np.float64]:
    """Rates Q (20, 20): Q_ij = exchangeability_ij x frequency_j, rows sum to 0, one substitution a unit of time."""
    exchange = np.zeros((20, 20))
    exchange[np.tril_indices(20, -1)] = np.array(_EXCHANGE.split(), dtype=float)
    rate = (exchange + exchange.T) * frequencies()
    np.fill_diagonal(rate, -rate.sum(axis=1))
    return rate / -(frequencies() @ np.diag(rate))


def transition(time: float) -> NDArray[np.float64]:
    """P(t) = exp(Q t) (20, 20): row i holds the chances of what i has become after ``time`` substitutions a site.

    By the eigenvectors of the symmetric matrix similar to Q (detailed balance).
    """
    root = np.sqrt(frequencies())
    value, vector = np.linalg.eigh(rate_matrix() * root[:, None] / root)
    chance = (vector * np.exp(value * time)) @ vector.T / root[:, None] * root
    chance = np.clip(chance, 0.0, None)
    return chance / chance.sum(axis=1, keepdims=True)


def random_residues(num: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Codes of amino acids drawn by their frequencies (num,)."""
    return np.searchsorted(_cumulative(frequencies()), rng.random(num), side="right").astype(
        np.uint8
    )


def substitute(
    code_T: NDArray[np.uint8],
    speed_T: NDArray[np.uint8],
    speeds: tuple[float, ...],
    time: float,
    rng: np.random.Generator,
) -> NDArray[np.uint8]:
    """Residues after a stretch of evolution.

    Args:
        code_T: residues (T,), codes 0..19.
        speed_T: each site's class of speed, an index into ``speeds``.
        speeds: relative rate of substitution of each class.
        time: expected substitutions a site at speed 1.
        rng: the draws.

    Returns:
        New residues (T,). Only sites that change cost more than one draw.
    """
    chance_S20 = np.stack([transition(time * speed) for speed in speeds])
    stays_S20 = np.einsum("sii->si", chance_S20)
    changed = np.flatnonzero(rng.random(len(code_T)) >= stays_S20[speed_T, code_T])
    others_S20 = chance_S20 * (1.0 - np.eye(20))
    total = others_S20.sum(axis=2, keepdims=True)
    others_S20 = _cumulative(
        np.divide(others_S20, total, out=np.full_like(others_S20, 0.05), where=total > 0)
    )
    drawn = rng.random(len(changed))
    threshold = others_S20[speed_T[changed], code_T[changed]]
    result = code_T.copy()
    result[changed] = (threshold <= drawn[:, None]).sum(axis=1)
    return result


def _cumulative(chance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Running sums along the last axis that end at infinity, so that rounding never draws beyond the last."""
    total = np.cumsum(chance, axis=-1)
    total[..., -1] = np.inf
    return total
