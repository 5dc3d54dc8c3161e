"""Sorting signals of the simulated tree of life: first residues that indicate the compartment.

Real targeting peptides do so, too: they are at the N-terminus, share a composition but no sequence,
and change fast (von Heijne 1990, "The signal peptide"). The signals here have that shape, but do
not model any real one.

Shape letters: G genes of a species, C compartments, A amino acids, T residues of all genes, S
residues of all signals.
"""

import numpy as np
from numpy.typing import NDArray

from raybio.methods.sppt.proteins.evolution import LINKER, Proteome
from raybio.methods.sppt.proteins.substitution import frequencies
from raybio.ops.segments import indptr_from_lengths

SHORTEST = 8
LONGEST = 12
NUM_PREFERRED = 4
"""Amino acids that the signals of a compartment prefer."""

SHARE_PREFERRED = 0.85
"""Fraction of a signal's residues that are preferred ones."""


def draw_signal_shares(num_compartments: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the probabilities of amino acids in the signals of each compartment (C, A)."""
    share_CA = np.tile((1 - SHARE_PREFERRED) * frequencies(), (num_compartments, 1))
    for share_A in share_CA:
        preferred = rng.permutation(len(share_A))[:NUM_PREFERRED]
        share_A[preferred] += SHARE_PREFERRED / NUM_PREFERRED
    return share_CA


def with_signals(
    proteome: Proteome,
    compartment_G: NDArray[np.int64],
    share_CA: NDArray[np.float64],
    rng: np.random.Generator,
) -> Proteome:
    """Return the genes with a signal before each of them.

    Every gene gets a new draw: signals of relatives share composition, and no k-mers.

    Args:
        proteome: genes of a species.
        compartment_G: compartment of each gene.
        share_CA: probabilities of amino acids in the signals of each compartment.
        rng: draws lengths and residues.
    """
    num_genes = len(proteome.ancestor_G)
    length_G = rng.integers(SHORTEST, LONGEST + 1, num_genes)
    compartment_S = np.repeat(compartment_G, length_G)
    below_CA = np.cumsum(share_CA, axis=1)
    below_CA[:, -1] = 1.0  # sums of shares may be one rounding below 1
    drawn_S = rng.random(len(compartment_S))
    residue_S = (drawn_S[:, None] >= below_CA[compartment_S]).sum(axis=1).astype(np.uint8)
    # Each signal is inserted before its gene's first residue.
    position_S = np.repeat(proteome.indptr_G1[:-1], length_G)
    return Proteome(
        np.insert(proteome.residue_T, position_S, residue_S),
        np.insert(proteome.speed_T, position_S, np.uint8(LINKER)),
        proteome.indptr_G1 + indptr_from_lengths(length_G),
        proteome.ancestor_G,
    )
