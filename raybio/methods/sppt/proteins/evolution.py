"""Simulated evolution of proteomes: substitutions, indels, gene loss and duplication.

Genes have one to four domains. All steps are vectorized over a proteome, so that a branch of the
species tree costs milliseconds.

Shape letters: G genes, T residues of all genes, F domain families, A amino acids, K some genes or
positions.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from raybio.methods.sppt.proteins.substitution import frequencies, random_residues, substitute
from raybio.ops.segments import indptr_from_lengths, positions_within

# Relative speed of a site: the core of a domain, its middle, its surface, and linkers.
SPEEDS = (0.1, 0.5, 1.5, 3.0)
LINKER = len(SPEEDS) - 1
SHARE_OF_SPEED = (0.45, 0.35, 0.2)
"""Probabilities of the speeds of a domain's sites."""

SHARE_OF_DOMAIN_COUNT = (0.8, 0.15, 0.04, 0.01)
"""Probabilities of one to four domains."""

PREFERENCE_CONCENTRATION = 3.0
"""Concentration of the Dirichlet distribution of a family's preferred amino acids; a lower value
makes families more distinct."""

SHARE_PREFERRED = 0.8
"""Fraction of a domain's residues that follow its family's preference."""

INDELS_PER_SUBSTITUTION = 0.05
MEAN_INDEL_LENGTH = 2.0


class Proteome(NamedTuple):
    """Genes of one species.

    Attributes:
        residue_T: codes 0..19 of all genes.
        speed_T: class of speed of each site.
        indptr_G1: gene g is ``residue_T[indptr_G1[g] : indptr_G1[g + 1]]``.
        ancestor_G: root gene from which each gene descends; copies share it.
    """

    residue_T: NDArray[np.uint8]
    speed_T: NDArray[np.uint8]
    indptr_G1: NDArray[np.int64]
    ancestor_G: NDArray[np.int64]

    def take(self, gene_K: NDArray[np.int64]) -> "Proteome":
        """Return the genes ``gene_K``, in that order."""
        start_K = self.indptr_G1[gene_K]
        length_K = np.diff(self.indptr_G1)[gene_K]
        indptr_K1 = indptr_from_lengths(length_K)
        position_T = np.arange(indptr_K1[-1]) + np.repeat(start_K - indptr_K1[:-1], length_K)
        return Proteome(
            self.residue_T[position_T], self.speed_T[position_T], indptr_K1, self.ancestor_G[gene_K]
        )


def found_proteome(
    family_G4: NDArray[np.int64], domain_length: int, rng: np.random.Generator
) -> Proteome:
    """Return the root's proteome: genes of domains, with linkers between and around them.

    Domains of a family prefer the same amino acids, as real families do (collagen: glycine), and
    are otherwise unrelated: a family shows in the composition of a sequence, not in alignments.

    Args:
        family_G4: families of each gene's domains (G, 4), -1 where there is none.
        domain_length: mean letters of a domain.
        rng: draws preferences, speeds, domains and linkers.
    """
    num_families = int(family_G4.max()) + 1
    length_F = np.maximum(
        rng.normal(domain_length, 0.15 * domain_length, num_families).astype(np.int64), 8
    )
    share_FA = _preferences(num_families, rng)
    speed_F = [
        rng.choice(len(SHARE_OF_SPEED), int(length), p=SHARE_OF_SPEED).astype(np.uint8)
        for length in length_F
    ]
    residues: list[NDArray[np.uint8]] = []
    speeds: list[NDArray[np.uint8]] = []
    indptr = [0]
    longest_linker = max(domain_length // 4, 2)
    for families in family_G4:
        length = 0
        for family in [*families[families >= 0], -1]:
            linker = random_residues(int(rng.integers(1, longest_linker + 1)), rng)
            residues.append(linker)
            speeds.append(np.full(len(linker), LINKER, dtype=np.uint8))
            length += len(linker)
            if family >= 0:
                domain = rng.choice(len(share_FA[family]), length_F[family], p=share_FA[family])
                residues.append(domain.astype(np.uint8))
                speeds.append(speed_F[family])
                length += len(domain)
        indptr.append(indptr[-1] + length)
    residue_T = np.concatenate(residues)
    speed_T = np.concatenate(speeds)
    return Proteome(
        residue_T, speed_T, np.asarray(indptr, dtype=np.int64), np.arange(len(family_G4))
    )


def draw_families(num_genes: int, num_families: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw the families of each gene's one to four domains (G, 4), -1 where there is none.

    First domains have each family about equally often.
    """
    count_G = rng.choice(len(SHARE_OF_DOMAIN_COUNT), num_genes, p=SHARE_OF_DOMAIN_COUNT) + 1
    family_G4 = rng.integers(0, num_families, (num_genes, len(SHARE_OF_DOMAIN_COUNT)))
    family_G4[:, 0] = rng.permutation(np.arange(num_genes) % num_families)
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
    """Return a proteome ``time`` substitutions a site later.

    Args:
        proteome: the proteome at the start.
        time: length of the branch.
        rng: draws all events.
        loss_rate: losses per gene and unit of time.
        duplication_rate: duplications per gene and unit of time.
    """
    residue_T = substitute(proteome.residue_T, proteome.speed_T, SPEEDS, time, rng)
    proteome = _with_indels(proteome._replace(residue_T=residue_T), time, rng)
    num_genes = len(proteome.ancestor_G)
    stays = rng.random(num_genes) >= -np.expm1(-loss_rate * time)
    doubles = stays & (rng.random(num_genes) < -np.expm1(-duplication_rate * time))
    if stays.all() and not doubles.any():
        return proteome
    return proteome.take(np.concatenate([np.flatnonzero(stays), np.flatnonzero(doubles)]))


def _preferences(num_families: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the probabilities of amino acids in the domains of each family."""
    preferred_FA = rng.dirichlet(PREFERENCE_CONCENTRATION * frequencies(), num_families)
    return SHARE_PREFERRED * preferred_FA + (1 - SHARE_PREFERRED) * frequencies()


def _with_indels(proteome: Proteome, time: float, rng: np.random.Generator) -> Proteome:
    """Insert and delete in linkers only: domains keep their lengths, and no gene vanishes."""
    residue_T, speed_T, indptr_G1, ancestor_G = proteome
    linker = np.flatnonzero(speed_T == LINKER)
    expected = INDELS_PER_SUBSTITUTION * time * SPEEDS[LINKER] * len(linker)
    deleted = np.unique(_runs(linker[rng.integers(0, len(linker), rng.poisson(expected / 2))], rng))
    deleted = deleted[deleted < len(residue_T)]
    deleted = deleted[speed_T[deleted] == LINKER]
    inserted = np.sort(linker[rng.integers(0, len(linker), rng.poisson(expected / 2))])
    inserted = np.repeat(inserted, rng.geometric(1 / MEAN_INDEL_LENGTH, len(inserted)))
    is_deleted_T = np.zeros(len(residue_T), dtype=bool)
    is_deleted_T[deleted] = True
    # An insertion before position p belongs to the gene that holds p.
    num_deleted_T1 = np.concatenate([[0], np.cumsum(is_deleted_T)])
    shift_G1 = np.searchsorted(inserted, indptr_G1) - num_deleted_T1[indptr_G1]
    is_deleted_T = np.insert(is_deleted_T, inserted, False)
    residue_T = np.insert(residue_T, inserted, random_residues(len(inserted), rng))[~is_deleted_T]
    speed_T = np.insert(speed_T, inserted, np.uint8(LINKER))[~is_deleted_T]
    return Proteome(residue_T, speed_T, indptr_G1 + shift_G1, ancestor_G)


def _runs(start_K: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the positions of runs of geometric length that begin at ``start_K``."""
    length_K = rng.geometric(1 / MEAN_INDEL_LENGTH, len(start_K))
    return np.repeat(start_K, length_K) + positions_within(length_K)
