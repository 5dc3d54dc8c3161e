"""The embedded default corpus: a miniature tree of life, seeded, written in the real file formats.

An ancestral proteome of domain families evolves down a random species tree (``evolution.py``);
proteins interact by rules between families that all species share, so that a link held out in one
species can be told from sequence by what was seen in the others. A share of each species' links is
noise. Nothing here is biology: it is a task of that shape.

Shape letters: A genes of the root, G genes of a species, F families, K candidate pairs of root
genes, E links.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from raybio.core.config import BaseConfig, fingerprint
from raybio.core.randomness import derive_seed, hash_uniform
from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.prepare import prepare_proteins
from raybio.methods.sppt.proteins.evolution import Proteome, draw_families, evolve, found_proteome
from raybio.methods.sppt.proteins.formats.tree_of_life import SPECIES_COLUMNS, TreeOfLife
from raybio.methods.sppt.proteins.store import ProteinStore
from raybio.methods.sppt.proteins.substitution import LETTERS
from raybio.store.demo_corpus import cached_store
from raybio.store.store import SCHEMA_VERSION

VERSION = 2
"""Raised with every change of what a configuration gives, so that an older corpus is not taken for a new one."""


FIRST_TAXID = (
    90_000_001  # far above the real ones, so that none is mistaken for a species that exists
)


LINE_WIDTH = 60


SHARE_LISTED_TWICE = 0.02


SHARE_SELF_PAIRS = 0.002


SPARE_GENES = 1.15


FAMILIES_PER_MODULE = 2


class SimulationConfig(BaseConfig):
    """A miniature tree of life; the defaults are the demo's."""

    num_species: int = Field(14, ge=1, description="leaves of the species tree")
    num_proteins: int = Field(1960, ge=4, description="proteins of all species together")
    num_links: int = Field(7840, ge=2, description="distinct links of all species together")
    num_families: int = Field(50, ge=3, description="domain families; every fifth has no rule")
    domain_length: int = Field(36, ge=8, description="mean letters of a domain")
    family_divergence: float = Field(
        0.3, ge=0, description="substitutions a site between a family's genes at the root"
    )
    tree_depth: float = Field(
        0.3, ge=0, description="substitutions a site from the root to each species"
    )
    loss_rate: float = Field(0.3, ge=0, description="losses a gene and unit of the tree's depth")
    duplication_rate: float = Field(
        0.2, ge=0, description="duplications a gene and unit of the tree's depth"
    )
    noise_share: float = Field(
        0.05, ge=0, lt=1, description="share of links between random proteins"
    )
    turnover: float = Field(
        0.15, ge=0, le=1, description="how much the choice among rule-following links differs"
    )
    seed: int = Field(0, ge=0, description="everything random")


class _Rules(NamedTuple):
    """Candidate links between root genes: ends (K, 2), and how strong each is (K,)."""

    pair_K2: NDArray[np.int64]
    strength_K: NDArray[np.float64]


def default_corpus(directory: str | Path, config: SimulationConfig | None = None) -> ProteinStore:
    """The embedded corpus, simulated and prepared the first time, opened afterwards.

    Args:
        directory: where it is kept, under a name that depends on every setting.
        config: settings; the demo's if None.

    Raises:
        StoreError: if the directory cannot be written.
    """
    config = config or SimulationConfig()
    home = Path(directory) / f"simulated-{VERSION}.{SCHEMA_VERSION}-{fingerprint(config)}"

    def make(raw: Path, store: Path) -> ProteinStore:
        return prepare_proteins(store, write_tree_of_life(raw, config), PrepareConfig())

    return cached_store(home, ProteinStore, make)


def write_tree_of_life(
    directory: str | Path, config: SimulationConfig, *, one_fasta: bool = False
) -> TreeOfLife:
    """Simulate, and write what a download would hold: ``interactomes/``, the species table and sequences.

    Memory holds one lineage of the tree at a time. The same settings give the same bytes.

    Args:
        directory: made if it does not exist; files of the same names are overwritten.
        config: sizes and rates. Totals of proteins and links are met exactly.
        one_fasta: all species in one FASTA file instead of ``species/<taxid>.fa``.

    Returns:
        The source, as ``prepare_proteins`` takes it.
    """
    root = Path(directory)
    source = TreeOfLife(
        root / "interactomes",
        root / "treeoflife.species.tsv",
        root / ("protein.sequences.fa" if one_fasta else "species"),
    )
    for folder in (
        source.interactomes,
        source.interactomes / "__MACOSX",
        *([] if one_fasta else [source.sequences]),
    ):
        folder.mkdir(parents=True, exist_ok=True)
    if one_fasta:
        source.sequences.write_bytes(b"")
    rng = np.random.default_rng(derive_seed(config.seed, "root"))
    share_S = rng.uniform(0.8, 1.2, config.num_species)
    num_proteins_S, num_links_S = (
        _shares(config.num_proteins, share_S),
        _shares(config.num_links, share_S),
    )
    num_first = max(config.num_families - config.num_families // 5, 1)
    family_A4 = draw_families(
        int(num_proteins_S.max() * SPARE_GENES) + 2, config.num_families, num_first, rng
    )
    rules = _rules(family_A4, num_first, int(SPARE_GENES * 4 * num_links_S.max()), config.seed, rng)
    ancestor = found_proteome(family_A4, config.domain_length, config.family_divergence, rng)
    names = []
    for number, proteome in _leaves(ancestor, config):
        rng = np.random.default_rng(derive_seed(config.seed, "species", number))
        taxid = FIRST_TAXID + number
        genome = _exactly(proteome, int(num_proteins_S[number]), rng)
        links = _links(genome.ancestor_G, rules, int(num_links_S[number]), config, rng)
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
    """Each species' number and proteome, down a random binary tree whose leaves are equally far from the root."""
    # (first leaf, number of leaves, depth that is left, proteome)
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


def _rules(
    family_A4: NDArray[np.int64],
    num_with_rules: int,
    num_kept: int,
    seed: int,
    rng: np.random.Generator,
) -> _Rules:
    """Pairs of root genes that a rule between two of their families allows, the strongest first.

    Families form pairs that interact; a third of the families interact with themselves as well. So
    there are rules between different families, and what interacts can still lie together in a space
    of embeddings.
    """
    weight_FF = np.zeros((family_A4.max() + 1,) * 2)
    module = rng.permutation(num_with_rules) // FAMILIES_PER_MODULE
    allowed = module[:, None] == module
    np.fill_diagonal(allowed, rng.random(num_with_rules) < 1 / 3)
    weight = np.triu(rng.uniform(0.7, 1.0, allowed.shape))
    weight_FF[:num_with_rules, :num_with_rules] = np.where(
        allowed, np.maximum(weight, weight.T), 0.0
    )
    # One row more, of zeros, is the family of a domain that is not there.
    weight_FF = np.pad(weight_FF, (0, 1))
    best_AA = np.zeros((len(family_A4),) * 2)
    for own in family_A4.T:
        for other in family_A4.T:
            np.maximum(best_AA, weight_FF[own[:, None], other], out=best_AA)
    left, right = np.nonzero(np.triu(best_AA, 1))
    strength = best_AA[left, right] + 0.5 * hash_uniform(derive_seed(seed, "strength"), left, right)
    order = np.argsort(-strength, kind="stable")[:num_kept]
    return _Rules(np.stack([left, right], axis=1)[order], strength[order])


def _exactly(proteome: Proteome, num_genes: int, rng: np.random.Generator) -> Proteome:
    """``num_genes`` genes in random order: some are lost, or some doubled, to meet the number."""
    order = rng.permutation(len(proteome.ancestor_G))
    missing = max(num_genes - len(order), 0)
    extra = rng.integers(0, len(order), missing)
    return proteome.take(rng.permutation(np.concatenate([order[:num_genes], extra])))


def _links(
    ancestor_G: NDArray[np.int64],
    rules: _Rules,
    num_links: int,
    config: SimulationConfig,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """One species' links (E, 2), u < v: each gene's best, then the strongest, then noise."""
    num_genes = len(ancestor_G)
    num_links = min(num_links, num_genes * (num_genes - 1) // 2)
    pair, strength = _expand(ancestor_G, rules)
    order = np.argsort(-(strength + config.turnover * rng.random(len(strength))), kind="stable")
    pair = pair[order]
    ends = pair.ravel()
    _, first = np.unique(ends, return_index=True)
    rank = np.full(len(pair), 1)
    rank[first // 2] = 0
    pair = pair[np.argsort(rank, kind="stable")]
    num_ruled = max(round((1 - config.noise_share) * num_links), int((rank == 0).sum()))
    alone = np.setdiff1d(np.arange(num_genes), ends)
    code = pair[: max(min(num_ruled, num_links - len(alone)), 0)] @ np.array([num_genes, 1])
    partner = (alone + rng.integers(1, num_genes, len(alone))) % num_genes
    code = np.union1d(code, np.minimum(alone, partner) * num_genes + np.maximum(alone, partner))
    while len(code) < num_links:
        u, v = rng.integers(0, num_genes, (2, num_links - len(code)))
        drawn = (np.minimum(u, v) * num_genes + np.maximum(u, v))[u != v]
        code = np.union1d(code, drawn)
    return np.stack(np.divmod(code, num_genes), axis=1)


def _expand(
    ancestor_G: NDArray[np.int64], rules: _Rules
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Candidate pairs between this species' copies of the root's genes, u < v."""
    order = np.argsort(ancestor_G, kind="stable")
    num_copies_A = np.bincount(ancestor_G, minlength=int(rules.pair_K2.max(initial=0)) + 1)
    first_A = np.cumsum(num_copies_A) - num_copies_A
    left_K, right_K = rules.pair_K2.T
    num_K = num_copies_A[left_K] * num_copies_A[right_K]
    rule = np.repeat(np.arange(len(num_K)), num_K)
    within = np.arange(len(rule)) - np.repeat(np.cumsum(num_K) - num_K, num_K)
    copy_left, copy_right = np.divmod(within, num_copies_A[right_K[rule]])
    u = order[first_A[left_K[rule]] + copy_left]
    v = order[first_A[right_K[rule]] + copy_right]
    return np.stack([np.minimum(u, v), np.maximum(u, v)], axis=1), rules.strength_K[rule]


def _network(ids: pa.Array, links: NDArray[np.int64], rng: np.random.Generator) -> bytes:
    """Lines "A B", CRLF, in random order and direction; some links in both directions, a few self pairs."""
    twice = links[rng.random(len(links)) < SHARE_LISTED_TWICE]
    itself = np.repeat(
        rng.integers(0, len(ids), max(int(SHARE_SELF_PAIRS * len(links)), 1))[:, None], 2, axis=1
    )
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


def _shares(total: int, share_S: NDArray[np.float64]) -> NDArray[np.int64]:
    """``total`` divided in proportion to ``share_S``, in whole numbers."""
    bound = np.rint(np.cumsum(share_S) / share_S.sum() * total).astype(np.int64)
    return np.diff(bound, prepend=0)
