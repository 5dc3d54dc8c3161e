"""Fixtures that several floors share."""

from pathlib import Path

import numpy as np
import pytest

from raybio.data.prepare import PrepareConfig, prepare_proteins
from raybio.data.store import Store
from raybio.data.tables import Tables

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"


def write_tables(folder: Path, *, num_groups: int, rows_per_group: int, num_families: int = 4, seed: int = 0) -> Tables:
    """Proteins of a few sequence families; proteins of one family and group are linked in a ring with chords."""
    rng = np.random.default_rng(seed)
    motifs = ["".join(rng.choice(list(RESIDUES), 12)) for _ in range(num_families)]
    proteins, edges = ["protein_id\tspecies_taxid\tsequence"], ["protein_a\tprotein_b"]
    for group in range(num_groups):
        names = [f"{group + 1}.p{row:03d}" for row in range(rows_per_group)]
        families = [row % num_families for row in range(rows_per_group)]
        for name, family in zip(names, families, strict=True):
            tail = "".join(rng.choice(list(RESIDUES), int(rng.integers(4, 20))))
            proteins.append(f"{name}\t{group + 1}\t{motifs[family]}{tail}")
        for family in range(num_families):
            members = [name for name, own in zip(names, families, strict=True) if own == family]
            for offset in (1, 2):
                edges += [
                    f"{a}\t{b}" for a, b in zip(members, members[offset:] + members[:offset], strict=True) if a != b
                ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "proteins.tsv").write_text("\n".join(proteins) + "\n")
    (folder / "edges.tsv").write_text("\n".join(edges) + "\n")
    return Tables(folder / "edges.tsv", folder / "proteins.tsv")


@pytest.fixture(scope="session")
def tiny_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """64 proteins in 2 groups, 4 families a group; sequences of 16 to 31 residues."""
    folder = tmp_path_factory.mktemp("tiny")
    tables = write_tables(folder / "raw", num_groups=2, rows_per_group=32)
    return prepare_proteins(folder / "store", tables, PrepareConfig(heldout_share=0.1))
