import gzip
import os
import random
import stat
import subprocess
import sys
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from raybio.core.errors import DataError, StoreError
from raybio.methods.sppt import corpus, leakage, link_runs
from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.corpus import (
    Corpus,
    LinkCollector,
    assemble,
    group_order,
    number_groups,
)
from raybio.methods.sppt.graph import splits
from raybio.methods.sppt.ids import is_first_occurrence
from raybio.methods.sppt.prepare import prepare_proteins
from raybio.methods.sppt.proteins.formats.tables import Tables
from raybio.methods.sppt.proteins.store import commit_proteins
from raybio.store.quarantine import Quarantine
from raybio.store.ragged import Spool
from raybio.store.store import open_store
from raybio.store.writer import Draft
from tests.paths import ROOT, SHARED_DATA

SEVEN_SPECIES = SHARED_DATA / "ppi_multispecies_normalised"
needs_seven_species = pytest.mark.skipif(
    not SEVEN_SPECIES.exists(), reason="the folder of real data is not beside this repository"
)


def write_tables(folder, proteins, edges):
    folder.mkdir(parents=True, exist_ok=True)
    rows = ["protein_id\tspecies_taxid\tsequence", *("\t".join(row) for row in proteins)]
    (folder / "proteins.tsv").write_text("\n".join(rows) + "\n")
    (folder / "edges.tsv").write_text(
        "\n".join(["protein_a\tprotein_b", *("\t".join(row) for row in edges)]) + "\n"
    )
    return Tables([folder / "edges.tsv"], [folder / "proteins.tsv"])


def sequences_by_key(store):
    bounds, letters = store.indptr_N1, store.residue_T
    return {
        key: letters[bounds[row] : bounds[row + 1]].tobytes().decode()
        for row, key in enumerate(store.keys.to_pylist())
    }


def links_by_key(store, edge_E2):
    keys = store.keys.to_pylist()
    return {frozenset((keys[u], keys[v])) for u, v in edge_E2}


def training_links(store):
    graph = store.graph
    u = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    return np.stack([u, graph.indices], axis=1)[u < graph.indices]


@pytest.fixture(scope="module")
def seven(tmp_path_factory):
    tables = Tables([SEVEN_SPECIES / "edges.tsv.gz"], [SEVEN_SPECIES / "proteins.tsv.gz"])
    return prepare_proteins(tmp_path_factory.mktemp("seven") / "store", tables)


@pytest.mark.nightly
@needs_seven_species
def test_the_seven_species_are_prepared_whole(seven):
    with gzip.open(SEVEN_SPECIES / "proteins.tsv.gz", "rt") as file:
        proteins = [line.rstrip("\n").split("\t") for line in file][1:]
    with gzip.open(SEVEN_SPECIES / "edges.tsv.gz", "rt") as file:
        edges = {frozenset(line.split()) for line in file} - {frozenset(("protein_a", "protein_b"))}
    assert (len(proteins), len(edges)) == (24_250, 80_560)
    assert sequences_by_key(seven) == {key: sequence for key, _, sequence in proteins}
    assert links_by_key(seven, training_links(seven)) | links_by_key(seven, seven.heldout) == edges
    assert seven.manifest["quarantine"] == {}
    taxid_by_key = {key: taxid for key, taxid, _ in proteins}
    names = np.array(seven.group_names)[seven.group_N].tolist()
    assert names == [taxid_by_key[key] for key in seven.keys.to_pylist()]
    assert list(seven.group_names) == ["4932", "6239", "7227", "9606", "39947", "362663", "511145"]


@needs_seven_species
@pytest.mark.nightly
def test_held_out_links_are_a_share_of_each_species_and_isolate_no_protein(seven):
    assert seven.graph.degree_N.min() >= 1
    assert not seven.graph.has_edge(seven.heldout[:, 0], seven.heldout[:, 1]).any()
    held = np.bincount(seven.group_N[seven.heldout[:, 0]], minlength=7)
    kept = np.bincount(seven.group_N[training_links(seven)[:, 0]], minlength=7)
    assert np.allclose(held / (held + kept), 0.05, atol=0.001)
    assert (seven.group_N[seven.heldout[:, 0]] == seven.group_N[seven.heldout[:, 1]]).all()


def test_the_same_command_gives_the_same_digest_whatever_the_hash_seed(tmp_path):
    proteins = [(f"p{number}", str(number % 3), "ACDEF"[: 1 + number % 5]) for number in range(60)]
    edges = [(f"p{a}", f"p{b}") for a in range(60) for b in range(a % 3, a, 3) if (a * b) % 5 == 1]
    tables = write_tables(tmp_path, proteins, edges)
    here = prepare_proteins(tmp_path / "here", tables)
    # This process has a random one.
    command = [sys.executable, "jobs/prepare.py", "proteins", "--out", str(tmp_path / "there")]
    command += ["--edges", str(tables.edges[0]), "--proteins", str(tables.proteins[0])]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    subprocess.run(command, check=True, capture_output=True, env=environment, cwd=ROOT)
    assert open_store(tmp_path / "there").digest == here.digest


def test_every_bad_record_is_set_aside_with_its_reason_file_and_line(tmp_path):
    good = [(f"p{number}", "7", "ACDEF") for number in range(30)]
    bad = [
        ("p3", "7", "GGG"),
        ("empty", "7", ""),
        ("q", "", "ACD"),
        ("x", "7", "A1"),
        ("huge", "7", "A" * 1_000_000),
    ]
    ring = [(f"p{number}", f"p{(number + 1) % 29}") for number in range(29)]
    odd = [
        ("p1", "p0"),
        ("p5", "p5"),
        ("p5", "nobody"),
        ("p5", "empty"),
        ("p5", "other"),
        ("p5", ""),
    ]
    tables = write_tables(tmp_path, [*good, *bad, ("other", "12", "ACD")], [*ring, *odd])
    store = prepare_proteins(
        tmp_path / "store", tables, PrepareConfig(max_bad_share=0.2, heldout_share=0)
    )
    found = {
        reason: [
            (example["file"], example["line"], example["detail"]) for example in facts["examples"]
        ]
        for reason, facts in store.manifest["quarantine"].items()
    }
    assert found == {
        "duplicate id": [("proteins.tsv", 32, "p3")],
        "no sequence": [("proteins.tsv", 33, "empty")],
        "no species": [("proteins.tsv", 34, "q")],
        "letter that is not an amino acid": [("proteins.tsv", 35, "x: '1'")],
        "sequence longer than 100,000 letters": [("proteins.tsv", 36, "huge")],
        "duplicate link (merged)": [("edges.tsv", 31, "p0 p1")],
        "self pair (dropped)": [("edges.tsv", 32, "p5 p5")],
        "link with an id that is not among the proteins": [
            ("edges.tsv", 33, "p5 nobody"),
            ("edges.tsv", 34, "p5 empty"),
        ],
        "link between two species": [("edges.tsv", 35, "p5 other")],
        "link without an id": [("edges.tsv", 36, "p5 ")],
    }
    assert sequences_by_key(store) == {f"p{number}": "ACDEF" for number in range(29)}
    assert links_by_key(store, training_links(store)) == {frozenset(pair) for pair in ring}


@pytest.mark.parametrize("proteins", [[], [("a", "7", "A-D")]])
def test_a_table_without_a_good_protein_is_named(tmp_path, proteins):
    tables = write_tables(tmp_path, proteins, [("a", "c")])
    with pytest.raises(DataError, match=r"proteins\.tsv: holds no good protein"):
        prepare_proteins(tmp_path / "store", tables, PrepareConfig(max_bad_share=1))


def test_too_many_bad_records_stop_the_preparation_and_leave_no_store(tmp_path):
    tables = write_tables(
        tmp_path, [("a", "7", "ACD"), ("b", "7", "A-D"), ("c", "7", "AC")], [("a", "c")]
    )
    with pytest.raises(
        DataError, match=r"1 of 3 protein records are bad \(33\.3%\), want at most 10\.0%: letter"
    ):
        prepare_proteins(tmp_path / "store", tables)
    with pytest.raises(StoreError, match="does not exist"):
        open_store(tmp_path / "store")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["edges.tsv", "proteins.tsv"]


def test_rows_are_sorted_by_species_number_and_keep_their_order_within(tmp_path):
    proteins = [
        ("z", "12", "A"),
        ("b", "7", "C"),
        ("y", "12", "D"),
        ("a", "7", "E"),
        ("w", "100", "F"),
        ("v", "100", "G"),
    ]
    tables = write_tables(tmp_path, proteins, [("y", "z"), ("a", "b"), ("v", "w")])
    store = prepare_proteins(tmp_path / "store", tables)
    assert store.keys.to_pylist() == ["b", "a", "z", "y", "w", "v"]
    assert list(store.group_names) == ["7", "12", "100"]


def test_the_order_of_lines_in_the_link_table_does_not_matter(tmp_path):
    proteins = [(f"p{number}", "7", "ACDEF") for number in range(20)]
    edges = [(f"p{a}", f"p{b}") for a in range(20) for b in range(a) if (a * b) % 3 == 1]
    one = prepare_proteins(
        tmp_path / "1", write_tables(tmp_path, proteins, edges), PrepareConfig(heldout_share=0.2)
    )
    turned = write_tables(tmp_path, proteins, [(b, a) for a, b in reversed(edges)])
    two = prepare_proteins(tmp_path / "2", turned, PrepareConfig(heldout_share=0.2))
    assert one.manifest["files"] == two.manifest["files"]
    other = prepare_proteins(tmp_path / "3", turned, PrepareConfig(heldout_share=0.2, seed=1))
    assert other.heldout.tolist() != two.heldout.tolist()


def test_a_stop_symbol_at_the_end_is_stripped_on_request(tmp_path):
    tables = write_tables(tmp_path, [("a", "7", "ACD*"), ("b", "7", "MK")], [("a", "b")])
    with pytest.raises(DataError, match="--strip-stop removes it at the end"):
        prepare_proteins(tmp_path / "store", tables)
    assert (
        sequences_by_key(
            prepare_proteins(tmp_path / "store", tables, PrepareConfig(strip_stop=True))
        )["a"]
        == "ACD"
    )


def test_paths_with_spaces_and_other_letters_and_a_strict_umask_work(tmp_path):
    before = os.umask(0o077)
    try:
        folder = tmp_path / "Übung – données 配列"
        tables = write_tables(folder, [("a", "7", "ACD"), ("b", "7", "MK")], [("a", "b")])
        store = prepare_proteins(folder / "mein Lager", tables)
    finally:
        os.umask(before)
    assert open_store(store.path, verify=True).num_rows == 2
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o700


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    tables = write_tables(tmp_path, [("a", "7", "ACD"), ("b", "7", "MK")], [("a", "b")])
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        prepare_proteins(tmp_path / "file" / "store", tables)


def test_settings_out_of_range_are_refused():
    with pytest.raises(Exception, match="heldout_share"):
        PrepareConfig.from_mapping({"heldout_share": 1.5})


def test_groups_are_numbered_by_value_then_by_text():
    number_N, names = number_groups(pa.array(["b", "100", "9", "a", "9"]))
    assert names == ["9", "100", "a", "b"]
    assert number_N.tolist() == [3, 1, 0, 2, 0]
    assert sorted(["10", "9", "x"], key=group_order) == ["9", "10", "x"]


def test_the_first_of_each_value_is_found_like_by_a_set():
    values = np.random.default_rng(0).integers(0, 50, 400)
    seen, wanted = set(), []
    for value in values.tolist():
        wanted.append(value not in seen)
        seen.add(value)
    assert is_first_occurrence(pa.array(values)).tolist() == wanted


@pytest.mark.parametrize("held_out", ["random", "homology", "proteins"])
@pytest.mark.parametrize("is_sorted", [True, False])
def test_links_through_files_and_in_ranges_of_species_give_the_store_of_links_in_memory(
    tmp_path, monkeypatch, held_out, is_sorted
):
    draw = random.Random(0)
    proteins = [
        (f"p{number}", str(2 + number // 30), "".join(draw.choices("ACDEF", k=20)))
        for number in range(150)
    ]
    edges = []
    for number in range(600):
        species = number % 5
        a, b = draw.sample(range(30 * species, 30 * species + 30), 2)
        edges.append((f"p{a}", f"p{b}"))
    edges += [edges[7][::-1], ("p1", "p1"), edges[7]]
    if not is_sorted:
        draw.shuffle(proteins)
        draw.shuffle(edges)
    tables = write_tables(tmp_path, proteins, edges)
    config = PrepareConfig(held_out=held_out, heldout_share=0.2)
    whole = prepare_proteins(tmp_path / "whole", tables, config)
    monkeypatch.setattr(link_runs, "LINKS_PER_RUN", 50)
    for module, name in (
        (corpus, "LINKS_AT_ONCE"),
        (leakage, "LINKS_AT_ONCE"),
        (splits, "EDGES_AT_ONCE"),
    ):
        monkeypatch.setattr(module, name, 60)
    in_parts = prepare_proteins(tmp_path / "parts", tables, config)
    assert in_parts.digest == whole.digest
    assert sorted(path.name for path in in_parts.path.iterdir()) == sorted(
        path.name for path in whole.path.iterdir()
    )


def peak_bytes(folder, num_species, is_sorted):
    """Return the peak of traced memory and the number of links of a store of complete graphs."""
    num_proteins = 120
    num_rows = num_species * num_proteins
    keys = pa.array([f"p{row}" for row in range(num_rows)], pa.large_string())
    group_N = np.repeat(np.arange(num_species, dtype=np.int32), num_proteins)
    names = [str(species) for species in range(num_species)]
    u_E, v_E = np.nonzero(~np.eye(num_proteins, dtype=bool))
    order = np.random.default_rng(0).permutation(num_species)
    folder.mkdir()
    tracemalloc.start()
    with Draft(folder / "store") as draft, Spool(draft.folder / "spool") as spool:
        spooled_N = spool.append(pa.array([b"ACDEF"] * num_rows, pa.large_binary()))
        links = LinkCollector(Quarantine(), keys, draft.folder)
        line = 1
        for part in (slice(None, None, 2), slice(1, None, 2)):
            for species in range(num_species) if is_sorted else order.tolist():
                u = u_E[part] + species * num_proteins
                v = v_E[part] + species * num_proteins
                links.add(u, v, np.arange(line, line + len(u)), "links")
                line += len(u)
        store = assemble(
            Corpus(keys, group_N, spooled_N, links.merged(), names, names),
            spool,
            draft,
            commit=commit_proteins,
            heldout_share=0.05,
            seed=0,
            provenance={"sources": {}, "parameters": {}, "quarantine": {}},
            cluster=lambda content, folder: np.arange(len(content.indptr_N1) - 1),
        )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    counts = store.manifest["counts"]
    return peak, counts["links"] + counts["heldout_links"]


@pytest.mark.parametrize("is_sorted", [True, False])
def test_memory_grows_by_few_bytes_a_link_in_any_order_of_the_species(
    tmp_path, monkeypatch, is_sorted
):
    monkeypatch.setattr(link_runs, "LINKS_PER_RUN", 8000)
    monkeypatch.setattr(corpus, "LINKS_AT_ONCE", 8000)
    monkeypatch.setattr(leakage, "LINKS_AT_ONCE", 8000)
    small, num_few = peak_bytes(tmp_path / "small", 4, is_sorted)
    large, num_many = peak_bytes(tmp_path / "large", 20, is_sorted)
    assert num_many == 5 * num_few == 20 * 7140
    # Links that stay in memory take 120 bytes each. Part of this is for the proteins.
    assert (large - small) / (num_many - num_few) < 16
