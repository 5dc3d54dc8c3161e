import gzip

import numpy as np
import pytest

from raybio.core.errors import DataError
from raybio.methods.sppt.config import PrepareConfig
from raybio.methods.sppt.prepare import prepare_proteins
from raybio.methods.sppt.proteins.formats.tree_of_life import (
    TreeOfLife,
    list_interactomes,
    read_interactome,
    read_species,
)
from raybio.store.quarantine import Quarantine
from tests.paths import SHARED_DATA

SPECIES = (
    b"Species_ID\tCompact_name\tOfficial_NCBI_name\r\n"
    b"882\tD. vulgaris\tDesulfovibrio vulgaris\r\n"
    b"9606\thuman\tHomo sapiens\r\n"
)
NO_SEQUENCE = "protein that links name but no sequence has (dropped)"


@pytest.fixture
def download(tmp_path):
    """The layout of the SNAP download, with all it is known or suspected to hold."""
    folder = tmp_path / "treeoflife.interactomes"
    (folder / "__MACOSX").mkdir(parents=True)
    (folder / "__MACOSX" / "._882.txt").write_bytes(b"\0\5\x16\7")
    (folder / "__MACOSX" / "9606.txt").write_bytes(b"x y\n")
    (folder / "882.txt").write_bytes(b"b1 b2\r\nb2 b1\r\nb2 b2\r\nb2 b3\r\nb1 b2\r\nb9 b1\r\n")
    (folder / "9606.txt").write_bytes(b"P1 P2\nP2 P3\nP3 P1")
    (tmp_path / "species.tsv").write_bytes(SPECIES)
    (tmp_path / "all.fa").write_bytes(
        b">9606.P1\nACJ\n>882.b1\nACD\n>882.b2\nef\ngh\n>1234.other\nAAA\n>882.b3\nIKL\n>9606.P3\nWY\n>9606.P2\nUO\n"
    )
    return TreeOfLife(folder, tmp_path / "species.tsv", tmp_path / "all.fa")


def test_a_download_becomes_a_store_of_its_linked_proteins_with_sequence(download, tmp_path):
    store = prepare_proteins(
        tmp_path / "store", download, PrepareConfig(heldout_share=0, max_bad_share=0.3)
    )
    rows = [
        store.residue_T[store.indptr_N1[n] : store.indptr_N1[n + 1]].tobytes()
        for n in range(store.num_rows)
    ]
    assert dict(zip(store.keys.to_pylist(), rows, strict=True)) == {
        "882.b1": b"ACD",
        "882.b2": b"EFGH",
        "882.b3": b"IKL",
        "9606.P1": b"ACJ",
        "9606.P2": b"UO",
        "9606.P3": b"WY",
    }
    assert store.group_N.tolist() == [0, 0, 0, 1, 1, 1]
    assert list(store.group_names) == ["882", "9606"]
    assert list(store.group_labels) == ["Desulfovibrio vulgaris", "Homo sapiens"]
    row = {key: number for number, key in enumerate(store.keys.to_pylist())}
    linked = [
        ("b1", "b2", 882),
        ("b2", "b3", 882),
        ("P1", "P2", 9606),
        ("P2", "P3", 9606),
        ("P3", "P1", 9606),
    ]
    assert store.graph.num_edges == len(linked)
    for a, b, taxid in linked:
        assert store.graph.has_edge(row[f"{taxid}.{a}"], row[f"{taxid}.{b}"])
    found = {
        reason: [(example["file"], example["line"]) for example in facts["examples"]]
        for reason, facts in store.manifest["quarantine"].items()
    }
    assert found == {
        "duplicate link (merged)": [("882.txt", 2), ("882.txt", 5)],
        "self pair (dropped)": [("882.txt", 3)],
        "link of a protein without sequence (dropped)": [],
        NO_SEQUENCE: [("882.txt", 6)],
    }
    assert store.manifest["quarantine"][NO_SEQUENCE]["examples"][0]["detail"] == "882.b9"
    details = [
        one["detail"] for one in store.manifest["quarantine"]["duplicate link (merged)"]["examples"]
    ]
    assert details == ["b1 b2", "b1 b2"]
    assert store.manifest["sources"]["interactomes"]["files"] == 2


def test_the_label_of_a_species_is_its_official_name_whatever_columns_follow(tmp_path):
    path = tmp_path / "species.tsv"
    header, *lines = SPECIES.replace(b"\r\n", b"\n").splitlines()
    more = [header + b"\tNodes", *[line + b"\t7" for line in lines], b"1\tshort\t\t7", b"2\tonly"]
    path.write_bytes(b"\n".join(more))
    assert read_species(path, Quarantine()) == {
        "882": "Desulfovibrio vulgaris",
        "9606": "Homo sapiens",
        "1": "short",
        "2": "only",
    }


@pytest.mark.parametrize("ending", [".fa", ".fa.gz"])
def test_a_folder_with_a_file_a_species_gives_the_same_rows_as_one_file(download, tmp_path, ending):
    whole = download.sequences.read_bytes().split(b">")[1:]
    folder = tmp_path / "species"
    folder.mkdir()
    for taxid in (b"882", b"9606", b"1234"):
        content = b"".join(b">" + record for record in whole if record.startswith(taxid + b"."))
        (folder / (taxid.decode() + ending)).write_bytes(
            gzip.compress(content) if ending.endswith("gz") else content
        )
    config = PrepareConfig(max_bad_share=0.3)
    one = prepare_proteins(tmp_path / "one", download, config)
    many = prepare_proteins(
        tmp_path / "many", TreeOfLife(download.interactomes, download.species, folder), config
    )
    assert one.manifest["files"] == many.manifest["files"]


def test_proteins_without_sequence_beyond_the_limit_stop_the_preparation(download, tmp_path):
    with pytest.raises(
        DataError, match=r"1 of 7 named protein records are bad .*882\.txt:6 \(882\.b9\)"
    ):
        prepare_proteins(tmp_path / "store", download, PrepareConfig(max_bad_share=0.1))
    assert not (tmp_path / "store").exists()


def test_the_same_protein_twice_keeps_the_first_sequence_and_names_the_second(download, tmp_path):
    with download.sequences.open("ab") as file:
        file.write(b">882.b1\nYYY\n")
    store = prepare_proteins(tmp_path / "store", download, PrepareConfig(max_bad_share=0.3))
    assert store.residue_T[:3].tobytes() == b"ACD"
    (example,) = store.manifest["quarantine"]["duplicate id"]["examples"]
    assert example == {"file": "all.fa", "line": 16, "detail": "882.b1"}


def test_macosx_and_hidden_files_are_not_taken_for_species(download):
    assert [path.name for path in list_interactomes(download.interactomes)] == [
        "882.txt",
        "9606.txt",
    ]
    assert list_interactomes(download.interactomes.parent)[0].name == "882.txt"


def test_interactomes_may_be_gzipped(download, tmp_path):
    config = PrepareConfig(max_bad_share=0.3)
    plain = prepare_proteins(tmp_path / "plain", download, config)
    for path in list_interactomes(download.interactomes):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        with pytest.raises(DataError, match=rf"{path.name}\.gz lies next to it, want one network"):
            list_interactomes(download.interactomes)
        path.unlink()
    zipped = prepare_proteins(tmp_path / "zipped", download, config)
    assert zipped.content_digest == plain.content_digest
    assert list(zipped.group_names) == ["882", "9606"]
    one = prepare_proteins(
        tmp_path / "one", download, PrepareConfig(max_bad_share=0.3, taxids=("9606",))
    )
    assert list(one.group_names) == ["9606"]


def test_a_torn_gzip_of_an_interactome_is_named(tmp_path):
    path = tmp_path / "7.txt.gz"
    path.write_bytes(gzip.compress(b"a b\nb c\n" * 1000)[:-9])
    with pytest.raises(DataError, match=r"7\.txt\.gz: the gzip stream is torn"):
        read_interactome(path, Quarantine())


def test_irregular_lines_are_set_aside_and_other_white_space_is_understood(tmp_path):
    path = tmp_path / "7.txt"
    path.write_bytes(b"a b\nc\nd  e\n\nf\tg\nx y z\nh \xff\nNaN i\nb c\n")
    quarantine = Quarantine()
    species = read_interactome(path, quarantine)
    keys = species.keys.to_pylist()
    assert {frozenset((keys[u], keys[v])) for u, v in species.edge_E2} == {
        frozenset(pair) for pair in [("7.a", "7.b"), ("7.d", "7.e"), ("7.f", "7.g"), ("7.b", "7.c")]
    }
    lines = {
        reason: [example.line for example in kept]
        for reason, kept in quarantine.examples_by_reason.items()
    }
    assert lines == {
        "line without exactly two ids": [2, 4, 6],
        "id that is not UTF-8 text": [7],
        "link without an id": [8],
    }


def test_regular_and_irregular_files_are_read_alike(tmp_path):
    rng = np.random.default_rng(0)
    lines = [f"p{a} p{b}" for a, b in rng.integers(0, 40, (500, 2))]
    (tmp_path / "1.txt").write_text("\r\n".join(lines) + "\r\n", newline="")
    (tmp_path / "2.txt").write_text("\n".join(lines).replace(" ", "\t"))
    regular, irregular = (
        read_interactome(tmp_path / name, Quarantine()) for name in ("1.txt", "2.txt")
    )
    assert [key[2:] for key in regular.keys.to_pylist()] == [
        key[2:] for key in irregular.keys.to_pylist()
    ]
    assert regular.edge_E2.tolist() == irregular.edge_E2.tolist()
    assert regular.line_N.tolist() == irregular.line_N.tolist()
    keys = regular.keys.to_pylist()
    wanted = {frozenset(f"1.{end}" for end in line.split()) for line in lines}
    assert {frozenset((keys[u], keys[v])) for u, v in regular.edge_E2} == {
        pair for pair in wanted if len(pair) == 2
    }
    for node, line in enumerate(regular.line_N):
        first = next(
            number for number, text in enumerate(lines, 1) if keys[node][2:] in text.split()
        )
        assert line == first


def test_the_species_table_is_read_with_its_bad_lines_set_aside(tmp_path):
    (tmp_path / "s.tsv").write_bytes(SPECIES + b"x\ty\tz\r\n882\tagain\tagain\r\n")
    quarantine = Quarantine()
    assert read_species(tmp_path / "s.tsv", quarantine) == {
        "882": "Desulfovibrio vulgaris",
        "9606": "Homo sapiens",
    }
    assert quarantine.count_by_reason == {
        "species without taxid or name": 1,
        "duplicate species": 1,
    }


@pytest.mark.skipif(
    not SHARED_DATA.exists(), reason="the folder of real data is not beside this repository"
)
def test_the_real_species_table_is_read_whole():
    quarantine = Quarantine()
    species = read_species(
        SHARED_DATA / "tree_of_life_species" / "treeoflife.species.tsv", quarantine
    )
    assert len(species) == 1840
    assert not quarantine.count_by_reason
    assert species["9606"] == "Homo sapiens"


def test_what_is_missing_is_named(download, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: holds no <taxid>\.txt"):
        prepare_proteins(
            tmp_path / "store", TreeOfLife(tmp_path / "empty", download.species, download.sequences)
        )
    with pytest.raises(DataError, match="empty: holds no FASTA file"):
        prepare_proteins(
            tmp_path / "store",
            TreeOfLife(download.interactomes, download.species, tmp_path / "empty"),
        )
    with pytest.raises(DataError, match=r"none\.tsv: does not exist"):
        prepare_proteins(
            tmp_path / "store",
            TreeOfLife(download.interactomes, tmp_path / "none.tsv", download.sequences),
        )
    (tmp_path / "other.tsv").write_text("a\tb\n")
    with pytest.raises(DataError, match="has the columns a, b; want Species_ID"):
        prepare_proteins(
            tmp_path / "store",
            TreeOfLife(download.interactomes, tmp_path / "other.tsv", download.sequences),
        )
    assert not (tmp_path / "store").exists()


def test_sequences_of_other_ids_are_refused_with_the_reason(download, tmp_path):
    (tmp_path / "wrong.fa").write_bytes(b">b1\nACD\n>b2\nACD\n")
    source = TreeOfLife(download.interactomes, download.species, tmp_path / "wrong.fa")
    with pytest.raises(
        DataError, match=r"An id here is 'b1'; want taxid\.protein, such as '882\.b1'"
    ):
        prepare_proteins(tmp_path / "store", source, PrepareConfig(max_bad_share=1.0))


def test_interactome_ids_with_the_taxid_are_named_as_the_mistake(download, tmp_path):
    for path in list_interactomes(download.interactomes):
        lines = path.read_text().split("\n")
        path.write_text(
            "\n".join(" ".join(f"{path.stem}.{key}" for key in line.split()) for line in lines)
        )
    with pytest.raises(DataError, match=r"882\.txt: the ids begin with the taxid .*want .* alone"):
        prepare_proteins(tmp_path / "store", download, PrepareConfig(max_bad_share=1))
