import numpy as np

from raybio.methods.sppt.proteins.evolution import (
    LINKER,
    Proteome,
    draw_families,
    evolve,
    found_proteome,
)


def ancestor(num_genes=60, num_families=10, seed=0):
    rng = np.random.default_rng(seed)
    families = draw_families(num_genes, num_families, rng)
    return families, found_proteome(families, 30, rng)


def test_genes_have_one_to_four_domains_and_first_domains_have_each_family_equally_often():
    families, _ = ancestor(num_genes=4000)
    count = (families >= 0).sum(axis=1)
    assert set(count.tolist()) == {1, 2, 3, 4}
    assert np.ptp(np.bincount(families[:, 0])) <= 1
    # Domains that are there come first.
    assert ((families >= 0) == (np.arange(4) < count[:, None])).all()


def test_a_gene_is_as_long_as_its_domains_and_linkers():
    families, proteome = ancestor()
    is_linker = proteome.speed_T == LINKER
    for gene, row in enumerate(families):
        part = slice(proteome.indptr_G1[gene], proteome.indptr_G1[gene + 1])
        num_linkers = (np.diff(np.concatenate([[0], is_linker[part].astype(int)])) == 1).sum()
        assert num_linkers == (row >= 0).sum() + 1


def test_taking_genes_equals_taking_them_one_by_one():
    _, proteome = ancestor()
    chosen = np.array([5, 0, 5, 59])
    taken = proteome.take(chosen)
    for number, gene in enumerate(chosen):
        new = slice(taken.indptr_G1[number], taken.indptr_G1[number + 1])
        old = slice(proteome.indptr_G1[gene], proteome.indptr_G1[gene + 1])
        assert taken.residue_T[new].tobytes() == proteome.residue_T[old].tobytes()
        assert taken.speed_T[new].tobytes() == proteome.speed_T[old].tobytes()
    assert taken.ancestor_G.tolist() == chosen.tolist()


def test_domains_keep_their_length_and_their_cores_change_least():
    _, before = ancestor(num_genes=300)
    after = evolve(before, 0.4, np.random.default_rng(1), loss_rate=0, duplication_rate=0)
    kept_before, kept_after = (Proteome(*parts) for parts in (before, after))
    sites = [kept.speed_T < LINKER for kept in (kept_before, kept_after)]
    assert kept_before.speed_T[sites[0]].tobytes() == kept_after.speed_T[sites[1]].tobytes()
    changed = kept_before.residue_T[sites[0]] != kept_after.residue_T[sites[1]]
    speed = kept_before.speed_T[sites[0]]
    rates = [changed[speed == number].mean() for number in range(LINKER)]
    assert rates[0] < 0.06 < rates[1] < 0.3 < rates[2]


def test_indels_change_linkers_of_some_genes_and_pointers_follow():
    _, before = ancestor(num_genes=300)
    after = evolve(before, 0.6, np.random.default_rng(1), loss_rate=0, duplication_rate=0)
    assert (np.diff(after.indptr_G1) != np.diff(before.indptr_G1)).mean() > 0.2
    assert after.indptr_G1[-1] == len(after.residue_T) == len(after.speed_T)
    for gene in range(300):
        old, new = (
            kept.speed_T[kept.indptr_G1[gene] : kept.indptr_G1[gene + 1]]
            for kept in (before, after)
        )
        assert old[old < LINKER].tobytes() == new[new < LINKER].tobytes()


def test_genes_are_lost_and_doubled_at_their_rates():
    _, before = ancestor(num_genes=1500)
    after = evolve(before, 0.5, np.random.default_rng(1), loss_rate=0.4, duplication_rate=0.2)
    copies = np.bincount(after.ancestor_G, minlength=1500)
    assert abs((copies == 0).mean() - (1 - np.exp(-0.2))) < 0.04
    assert abs((copies == 2).mean() - np.exp(-0.2) * (1 - np.exp(-0.1))) < 0.04
