import numpy as np

from raybio.methods.sppt.proteins.evolution import draw_families, found_proteome
from raybio.methods.sppt.proteins.sorting_signals import (
    LONGEST,
    NUM_PREFERRED,
    SHARE_PREFERRED,
    SHORTEST,
    draw_signal_shares,
    with_signals,
)


def proteome_of(num_genes):
    rng = np.random.default_rng(0)
    return found_proteome(draw_families(num_genes, 5, rng), 30, rng)


def test_shares_are_probabilities_and_each_compartment_prefers_its_amino_acids():
    share_CA = draw_signal_shares(7, np.random.default_rng(1))
    np.testing.assert_allclose(share_CA.sum(axis=1), 1)
    for share_A in share_CA:
        largest = np.sort(share_A)[-NUM_PREFERRED:]
        assert largest.sum() > SHARE_PREFERRED
        assert (largest > SHARE_PREFERRED / NUM_PREFERRED).all()


def test_signals_stand_before_genes_that_are_otherwise_unchanged():
    before = proteome_of(200)
    compartment_G = np.arange(200) % 3
    share_CA = draw_signal_shares(3, np.random.default_rng(1))
    after = with_signals(before, compartment_G, share_CA, np.random.default_rng(2))
    lengths = np.diff(after.indptr_G1) - np.diff(before.indptr_G1)
    assert (lengths.min(), lengths.max()) == (SHORTEST, LONGEST)
    for gene in range(200):
        end = after.indptr_G1[gene + 1]
        start = after.indptr_G1[gene] + lengths[gene]
        old = slice(before.indptr_G1[gene], before.indptr_G1[gene + 1])
        assert after.residue_T[start:end].tobytes() == before.residue_T[old].tobytes()
        assert after.speed_T[start:end].tobytes() == before.speed_T[old].tobytes()


def test_residues_of_signals_are_drawn_by_their_compartment():
    before = proteome_of(3000)
    compartment_G = np.arange(3000) % 2
    share_CA = np.zeros((2, 20))
    share_CA[0, [0, 19]] = [0.25, 0.75]
    share_CA[1, 7] = 1.0
    after = with_signals(before, compartment_G, share_CA, np.random.default_rng(2))
    counts = np.zeros((2, 20))
    for gene in range(3000):
        first = after.residue_T[after.indptr_G1[gene] : after.indptr_G1[gene] + SHORTEST]
        counts[compartment_G[gene]] += np.bincount(first, minlength=20)
    shares = counts / counts.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shares, share_CA, atol=0.015)
