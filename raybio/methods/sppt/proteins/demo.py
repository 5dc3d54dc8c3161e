"""The built-in default corpus: a simulated miniature tree of life in the real file formats.

An ancestral proteome of domain families evolves down a random species tree (``evolution.py``).
Every root gene has a compartment, which its descendants keep. Proteins of one compartment interact
(``interactions.py``), and a degenerate signal in their first residues says which one it is
(``sorting_signals.py``). Families, which decide most of a sequence, have no part in that. All links
of some clusters of relatives are held out: neither relatives nor k-mers nor the composition of
whole sequences give these links away, and a model that has learned to read the signals predicts
them. The simulation only has the shape of the task; it is no model of biology.

Shape letters: A genes of the root, G genes of a species, S species, E links, C compartments.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from raybio.core.config import BaseConfig
from raybio.core.randomness import derive_seed
from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.prepare import prepare_proteins
from raybio.methods.sppt.proteins.evolution import Proteome, draw_families, evolve, found_proteome
from raybio.methods.sppt.proteins.formats.tree_of_life import SPECIES_COLUMNS, TreeOfLife
from raybio.methods.sppt.proteins.interactions import draw_links, draw_rules
from raybio.methods.sppt.proteins.sorting_signals import draw_signal_shares, with_signals
from raybio.methods.sppt.proteins.store import ProteinStore
from raybio.methods.sppt.proteins.substitution import LETTERS
from raybio.store.demo_corpus import DemoCorpus

FIRST_TAXID = 90_000_001
"""Far above real taxids, so that no simulated species is mistaken for a real one."""

LINE_WIDTH = 60
SHARE_LISTED_TWICE = 0.02
SHARE_SELF_PAIRS = 0.002
SPARE_GENES = 1.15
"""Root genes for each gene of the largest species, so that losses leave enough."""


class SimulationConfig(BaseConfig):
    """A miniature tree of life; the defaults are the demo's."""

    num_species: int = Field(14, ge=1, description="leaves of the species tree")
    num_proteins: int = Field(1960, ge=4, description="proteins of all species together")
    num_links: int = Field(7840, ge=2, description="distinct links of all species together")
    num_families: int = Field(
        20, ge=1, description="domain families, which decide sequences and no links"
    )
    num_compartments: int = Field(
        10, ge=1, description="compartments; links are between proteins of one of them"
    )
    domain_length: int = Field(36, ge=8, description="mean letters of a domain")
    tree_depth: float = Field(
        0.3, ge=0, description="substitutions a site from the root to each species"
    )
    loss_rate: float = Field(0.3, ge=0, description="losses a gene and unit of the tree's depth")
    duplication_rate: float = Field(
        0.2, ge=0, description="duplications a gene and unit of the tree's depth"
    )
    noise_share: float = Field(
        0.05, ge=0, lt=1, description="fraction of links between random proteins"
    )
    turnover: float = Field(
        0.15,
        ge=0,
        le=1,
        description="size of the differences between species in the choice of links",
    )
    seed: int = Field(0, ge=0, description="seed of all draws")


def _prepare(raw: Path, store: Path, config: SimulationConfig) -> ProteinStore:
    settings = PrepareConfig(held_out="homology", heldout_share=0.1)
    return prepare_proteins(store, write_tree_of_life(raw, config), settings)


SIMULATED_PROTEINS = DemoCorpus(
    name="simulated",
    version=4,
    config=SimulationConfig,
    kind=ProteinStore,
    prepare_files=_prepare,
)
"""The demo corpus."""


def write_tree_of_life(
    directory: str | Path, config: SimulationConfig, *, one_fasta: bool = False
) -> TreeOfLife:
    """Simulate, and write the files of a download: interactomes, species table, sequences.

    Memory holds one lineage of the tree at a time. The same settings give the same bytes.

    Args:
        directory: created if it does not exist; files of the same names are overwritten.
        config: sizes and rates. Totals of proteins and links are met exactly.
        one_fasta: all species in one FASTA file instead of ``species/<taxid>.fa``.

    Returns:
        The source, for ``prepare_proteins``.
    """
    root = Path(directory)
    source = TreeOfLife(
        root / "interactomes",
        root / "treeoflife.species.tsv",
        root / ("protein.sequences.fa" if one_fasta else "species"),
    )
    # Archives that were packed on a Mac have such a folder.
    (source.interactomes / "__MACOSX").mkdir(parents=True, exist_ok=True)
    if one_fasta:
        source.sequences.write_bytes(b"")
    else:
        source.sequences.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(derive_seed(config.seed, "root"))
    share_S = rng.uniform(0.8, 1.2, config.num_species)
    num_proteins_S = _divided(config.num_proteins, share_S)
    num_links_S = _divided(config.num_links, share_S)
    num_root_genes = int(num_proteins_S.max() * SPARE_GENES) + 2
    family_A4 = draw_families(num_root_genes, config.num_families, rng)
    compartment_A = rng.permutation(np.arange(num_root_genes) % config.num_compartments)
    signal_CA = draw_signal_shares(config.num_compartments, rng)
    num_candidates = int(SPARE_GENES * 4 * num_links_S.max())
    rules = draw_rules(compartment_A, num_candidates, config.seed)
    ancestor = found_proteome(family_A4, config.domain_length, rng)
    names = []
    for number, proteome in _leaves(ancestor, config):
        rng = np.random.default_rng(derive_seed(config.seed, "species", number))
        taxid = FIRST_TAXID + number
        genome = _resized(proteome, int(num_proteins_S[number]), rng)
        genome = with_signals(genome, compartment_A[genome.ancestor_G], signal_CA, rng)
        links = draw_links(
            genome.ancestor_G,
            rules,
            int(num_links_S[number]),
            rng,
            noise_share=config.noise_share,
            turnover=config.turnover,
        )
        ids = pa.array([f"SIM_{index:05d}" for index in range(1, len(genome.ancestor_G) + 1)])
        (source.interactomes / f"{taxid}.txt").write_bytes(_network(ids, links, rng))
        (source.interactomes / "__MACOSX" / f"._{taxid}.txt").write_bytes(b"\0\5\x16\7")
        fasta = source.sequences if one_fasta else source.sequences / f"{taxid}.fa"
        with fasta.open("ab" if one_fasta else "wb") as file:
            _write_fasta(file, genome, f"{taxid}.", ids.to_pylist())
        names.append((taxid, f"Simulata {number + 1}", f"Simulata species {number + 1}"))
    rows = ["\t".join(map(str, row)) for row in [SPECIES_COLUMNS, *sorted(names)]]
    source.species.write_bytes("".join(row + "\r\n" for row in rows).encode())
    return source


def _leaves(root: Proteome, config: SimulationConfig) -> Iterator[tuple[int, Proteome]]:
    """Yield each species' number and proteome, down a random tree of equally deep leaves."""
    # (first leaf, number of leaves, remaining depth, proteome)
    stack = [(0, config.num_species, config.tree_depth, root)]
    while stack:
        first, num, depth, proteome = stack.pop()
        rng = np.random.default_rng(derive_seed(config.seed, "branch", first, num))
        time = depth if num == 1 else depth * rng.uniform(0.05, 0.4)
        evolved = evolve(
            proteome,
            time,
            rng,
            loss_rate=config.loss_rate,
            duplication_rate=config.duplication_rate,
        )
        if num == 1:
            yield first, evolved
            continue
        left = int(rng.integers(max(num // 5, 1), num - max(num // 5, 1) + 1))
        stack.append((first + left, num - left, depth - time, evolved))
        stack.append((first, left, depth - time, evolved))


def _resized(proteome: Proteome, num_genes: int, rng: np.random.Generator) -> Proteome:
    """Return ``num_genes`` genes in random order; some are lost or duplicated for that."""
    order = rng.permutation(len(proteome.ancestor_G))
    missing = max(num_genes - len(order), 0)
    extra = rng.integers(0, len(order), missing)
    return proteome.take(rng.permutation(np.concatenate([order[:num_genes], extra])))


def _network(ids: pa.Array, links: NDArray[np.int64], rng: np.random.Generator) -> bytes:
    """Return lines "A B", CRLF, in random order and direction, with some repetitions."""
    twice = links[rng.random(len(links)) < SHARE_LISTED_TWICE]
    num_self_pairs = max(int(SHARE_SELF_PAIRS * len(links)), 1)
    itself = np.repeat(rng.integers(0, len(ids), num_self_pairs)[:, None], 2, axis=1)
    flipped = np.where(rng.random(len(links))[:, None] < 0.5, links, links[:, ::-1])
    lines = rng.permutation(np.concatenate([flipped, twice, twice[:, ::-1], itself]))
    text = pc.binary_join_element_wise(
        ids.take(pa.array(lines[:, 0])), ids.take(pa.array(lines[:, 1])), " "
    )
    return ("\r\n".join(text.to_pylist()) + "\r\n").encode()


def _write_fasta(file: IO[bytes], genome: Proteome, prefix: str, ids: list[str]) -> None:
    letters = np.frombuffer(LETTERS, dtype=np.uint8)[genome.residue_T].tobytes()
    pieces = []
    for start, end, name in zip(
        genome.indptr_G1[:-1].tolist(), genome.indptr_G1[1:].tolist(), ids, strict=True
    ):
        pieces.append(f">{prefix}{name}\n".encode())
        pieces += [
            letters[at : min(at + LINE_WIDTH, end)] + b"\n" for at in range(start, end, LINE_WIDTH)
        ]
    file.write(b"".join(pieces))


def _divided(total: int, share_S: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return ``total`` divided in proportion to ``share_S``, in whole numbers."""
    bound = np.rint(np.cumsum(share_S) / share_S.sum() * total).astype(np.int64)
    return np.diff(bound, prepend=0)
