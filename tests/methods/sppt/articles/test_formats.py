"""Articles and their citations, in the three layouts, sound and broken."""

import gzip
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from raybio.cli.prepare import app
from raybio.core.errors import DataError
from raybio.methods.sppt.articles.formats.cane import Cane
from raybio.methods.sppt.articles.formats.ogb_mag import OgbMag, abstract_of
from raybio.methods.sppt.articles.formats.tables import LinkedTables
from raybio.methods.sppt.articles.store import LinkedTextStore
from raybio.methods.sppt.config import LinkedTextConfig
from raybio.methods.sppt.prepare import prepare_linked_texts
from raybio.store.store import open_store
from tests.loopback_site import serve

ALL = LinkedTextConfig(heldout_share=0)


def links_of(store: LinkedTextStore) -> set[frozenset[str]]:
    keys = store.keys.to_pylist()
    graph = store.graph
    ends = np.repeat(np.arange(graph.num_nodes), graph.degree_N)
    return {frozenset((keys[u], keys[v])) for u, v in zip(ends, graph.indices, strict=True)}


def text_by_key(store: LinkedTextStore) -> dict[str, str]:
    return dict(zip(store.keys.to_pylist(), store.texts(np.arange(store.num_rows)), strict=True))


def pairs(*two: str) -> set[frozenset[str]]:
    return {frozenset(one) for one in two}


def write_tables(folder: Path, articles: list[str], citations: list[str]) -> LinkedTables:
    (folder / "a.tsv").write_text("\n".join(["id\ttitle\tabstract", *articles]) + "\n")
    (folder / "c.tsv").write_text("\n".join(["citing\tcited", *citations]) + "\n")
    return LinkedTables(folder / "a.tsv", folder / "c.tsv")


def test_tables_become_a_store(tmp_path: Path) -> None:
    articles = [
        "x\tA title\tAn abstract.",
        "y\tOnly a title\t",
        "z\t\tOnly \u00e4n abstract",
        "w\tAlone\tNo link",
    ]
    tables = write_tables(tmp_path, articles, ["x\ty", "y\tx", "z\ty", "z\tz"])
    store = prepare_linked_texts(tmp_path / "store", tables, ALL)
    texts = {"x": "A title An abstract.", "y": "Only a title", "z": "Only \u00e4n abstract"}
    assert text_by_key(store) == texts
    assert links_of(store) == pairs("xy", "yz")
    assert {reason: facts["count"] for reason, facts in store.manifest["quarantine"].items()} == {
        "duplicate link (merged)": 1,
        "self pair (dropped)": 1,
    }
    assert store.count_by_word["title"] == 2
    assert text_by_key(open_store(tmp_path / "store", LinkedTextStore, verify=True)) == texts


def test_gzipped_tables_need_no_suffix(tmp_path: Path) -> None:
    tables = write_tables(tmp_path, ["x\tA\tB", "y\tC\tD"], ["x\ty"])
    for path in (tables.articles, tables.citations):
        path.write_bytes(gzip.compress(path.read_bytes()))
    store = prepare_linked_texts(tmp_path / "store", tables, ALL)
    assert text_by_key(store) == {"x": "A B", "y": "C D"}


def test_white_space_around_ids_is_trimmed_and_that_in_texts_is_kept(tmp_path: Path) -> None:
    tables = write_tables(tmp_path, ["x \tA \tB", " y\tC\tD"], ["x\t y "])
    store = prepare_linked_texts(tmp_path / "store", tables, ALL)
    assert text_by_key(store) == {"x": "A  B", "y": "C D"}
    assert links_of(store) == pairs("xy")


def test_bad_rows_of_tables_are_set_aside_with_their_lines(tmp_path: Path) -> None:
    articles = ["x\tA\tB", "\tno id\tB", "v\t\t", "y\tC\tD", "x\tagain\tE", "only one column"]
    tables = write_tables(tmp_path, articles, ["x\ty", "x\tnobody"])
    store = prepare_linked_texts(
        tmp_path / "store", tables, LinkedTextConfig(heldout_share=0, max_bad_share=0.7)
    )
    lines = {
        reason: facts["examples"][0]["line"]
        for reason, facts in store.manifest["quarantine"].items()
    }
    assert lines == {
        "article without an id": 3,
        "article without a text": 4,
        "duplicate id": 6,
        "line with too many or too few columns": 7,
        "link with an id that is not among the articles": 3,
    }
    assert text_by_key(store)["x"] == "A B"


def test_a_title_that_is_not_utf_8_is_set_aside_with_its_line(tmp_path: Path) -> None:
    tables = write_tables(tmp_path, [f"{number}\tT{number}\t" for number in range(50)], ["0\t1"])
    content = tables.articles.read_bytes().replace(b"\tT7\t", b"\tM\xfcller\t")
    tables.articles.write_bytes(content)
    store = prepare_linked_texts(tmp_path / "store", tables, ALL)
    (facts,) = [
        facts for reason, facts in store.manifest["quarantine"].items() if "UTF-8" in reason
    ]
    assert [one["line"] for one in facts["examples"]] == [9]


def test_citations_with_a_header_alone_are_refused_for_having_no_links(tmp_path: Path) -> None:
    source = write_tables(tmp_path, ["a\tt\tu"], [])
    with pytest.raises(DataError, match=r"c.tsv: has a header and no links"):
        prepare_linked_texts(tmp_path / "store", source)


def test_held_out_links_are_not_in_the_graph(tmp_path: Path) -> None:
    articles = [f"{number}\tT{number}\t" for number in range(20)]
    ring = [f"{number}\t{(number + step) % 20}" for number in range(20) for step in (1, 2)]
    tables = write_tables(tmp_path, articles, ring)
    store = prepare_linked_texts(tmp_path / "store", tables, LinkedTextConfig(heldout_share=0.25))
    assert len(store.heldout) == 10
    assert not store.graph.has_edge(*store.heldout.T).any()
    assert store.graph.num_edges == 30


def write_cane(folder: Path, texts: list[str], links: list[str]) -> Cane:
    (folder / "data.txt.gz").write_bytes(
        gzip.compress("".join(f"{text}\n" for text in texts).encode())
    )
    (folder / "graph.txt").write_text("".join(f"{link}\n" for link in links))
    return Cane(folder)


def test_canes_layout(tmp_path: Path) -> None:
    cane = write_cane(tmp_path, ["one", "two", "three"], ["0\t1", "2\t1", "1\t1"])
    store = prepare_linked_texts(tmp_path / "store", cane, ALL)
    assert text_by_key(store) == {"0": "one", "1": "two", "2": "three"}
    assert links_of(store) == pairs("01", "12")


@pytest.mark.parametrize("link", ["0\t3", "0", "0\tone", "-1\t0", "0\t" + "9" * 5000])
def test_links_beyond_canes_texts_are_refused(tmp_path: Path, link: str) -> None:
    cane = write_cane(tmp_path, ["one", "two", "three"], ["0\t1", link])
    with pytest.raises(DataError, match=r"graph.txt:2 .*Repair the input"):
        prepare_linked_texts(tmp_path / "store", cane, ALL)


def test_what_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data.txt: does not exist"):
        prepare_linked_texts(tmp_path / "store", Cane(tmp_path), ALL)


def write_mag(folder: Path, ids: list[str], citations: list[str]) -> Path:
    for name, lines in {
        "mapping/paper_entidx2name.csv.gz": [
            "ent idx,ent name",
            *(f"{n},{one}" for n, one in enumerate(ids)),
        ],
        "raw/relations/paper___cites___paper/edge.csv.gz": citations,
    }.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    return folder


def inverted(text: str) -> dict[str, object]:
    words = text.split()
    places = {
        word: [place for place, other in enumerate(words) if other == word]
        for word in dict.fromkeys(words)
    }
    return {"IndexLength": len(words), "InvertedIndex": places}


def test_an_inverted_index_is_read_back() -> None:
    assert abstract_of(inverted("the cat saw the dog")) == "the cat saw the dog"
    assert abstract_of(inverted("Abstract: We show it")) == "We show it"
    assert abstract_of(inverted("Abstraction helps")) == "Abstraction helps"
    with pytest.raises(ValueError, match="is no inverted index"):
        abstract_of({"words": []})


def test_ogb_mag_with_inverted_indices(tmp_path: Path) -> None:
    mag = write_mag(tmp_path / "ogbn_mag", ["900", "17", "33", "5"], ["0,1", "1,0", "2,1", "3,0"])
    lines = [
        f"{name}\t{json.dumps(inverted(text))}"
        for name, text in {"17": "b b a", "900": "Abstract c"}.items()
    ]
    (tmp_path / "index.1").write_text(
        "\n".join([*lines, "123456\tof a paper that OGB has not"]) + "\n"
    )
    (tmp_path / "index.2").write_bytes(
        gzip.compress(f"33\t{json.dumps(inverted('d e'))}\n".encode())
    )
    source = OgbMag(mag, [tmp_path / "index.1", tmp_path / "index.2"])
    store = prepare_linked_texts(tmp_path / "store", source, ALL)
    assert text_by_key(store) == {"900": "c", "17": "b b a", "33": "d e"}  # 5 has no abstract
    assert links_of(store) == {frozenset(("900", "17")), frozenset(("33", "17"))}


def test_ogb_mag_with_the_authors_csv(tmp_path: Path) -> None:
    mag = write_mag(tmp_path / "ogbn_mag", ["900", "17", "33"], ["0,1", "2,1"])
    (tmp_path / "abstracts.txt").write_text(
        'ent idx,abstract\n0,"one, two"\n1,Abstract three\n2,four\n'
    )
    store = prepare_linked_texts(tmp_path / "store", OgbMag(mag, [tmp_path / "abstracts.txt"]), ALL)
    assert text_by_key(store) == {"900": "one, two", "17": "three", "33": "four"}


@pytest.mark.parametrize(
    "line", [f"17\t{'[' * 3000}", '17\t{"InvertedIndex": {"a": ' + "[" * 3000, "17\t1"]
)
def test_an_inverted_index_that_is_none_is_counted_however_deep_it_is(
    tmp_path: Path, line: str
) -> None:
    mag = write_mag(tmp_path / "ogbn_mag", ["900", "17"], ["0,1"])
    (tmp_path / "index").write_text(line + "\n")
    with pytest.raises(DataError, match=r"index:1 .*Repair the input"):
        prepare_linked_texts(tmp_path / "store", OgbMag(mag, [tmp_path / "index"]), ALL)


def test_numbers_of_papers_with_thousands_of_digits_are_counted_as_bad(tmp_path: Path) -> None:
    mag = write_mag(tmp_path / "ogbn_mag", ["900", "17"], ["0,1"])
    (tmp_path / "abstracts.txt").write_text(f"ent idx,abstract\n{'9' * 5000},one\n")
    with pytest.raises(DataError, match=r"abstracts.txt:2 .*Repair the input"):
        prepare_linked_texts(tmp_path / "store", OgbMag(mag, [tmp_path / "abstracts.txt"]), ALL)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"ent idx,ent name\n0,\xff9\n", "line 2 is not UTF-8"),
        (b"ent idx,ent name\n0,9\r1,8\n", "line 2: is no CSV"),
        (b"9" * 5000 + b",ent name\n", "begins with '9"),
    ],
    ids=["bytes", "line ends", "a long header"],
)
def test_a_damaged_list_of_papers_is_refused_in_a_short_message(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    mag = write_mag(tmp_path / "ogbn_mag", ["9", "8"], ["0,1"])
    (mag / "mapping" / "paper_entidx2name.csv").write_bytes(content)
    (tmp_path / "index").touch()
    with pytest.raises(DataError, match=problem) as refused:
        prepare_linked_texts(tmp_path / "store", OgbMag(mag, [tmp_path / "index"]), ALL)
    assert len(str(refused.value)) < 1000


def zipped_mag(folder: Path, num_papers: int, citations: list[str]) -> bytes:
    """Return OGB's ``mag.zip`` with all files that torch-geometric reads."""
    write_mag(folder / "mag", [str(900 + number) for number in range(num_papers)], citations)
    lines_by_name = {
        "raw/num-node-dict.csv.gz": [
            "author,field_of_study,institution,paper",
            f"2,1,1,{num_papers}",
        ],
        "raw/node-feat/paper/node-feat.csv.gz": [f"{n}.5,1" for n in range(num_papers)],
        "raw/node-feat/paper/node_year.csv.gz": [str(2010 + n) for n in range(num_papers)],
        "raw/node-label/paper/node-label.csv.gz": ["0"] * num_papers,
        "raw/relations/author___affiliated_with___institution/edge.csv.gz": ["0,0", "1,0"],
        "raw/relations/author___writes___paper/edge.csv.gz": ["0,0", "1,1"],
        "raw/relations/paper___has_topic___field_of_study/edge.csv.gz": ["0,0", "1,0"],
        **{f"split/time/paper/{name}.csv.gz": ["0"] for name in ("train", "valid", "test")},
    }
    for name, lines in lines_by_name.items():
        path = folder / "mag" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    archive = shutil.make_archive(str(folder / "mag"), "zip", folder, "mag")
    return Path(archive).read_bytes()


# Of torch-geometric, with pandas 3.
@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
def test_the_folder_of_torch_geometric_is_read_as_its_own_class_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row ``i`` of ``data["paper"].x`` belongs to the article with the id ``i``."""
    from torch_geometric.datasets import OGB_MAG

    monkeypatch.setenv("no_proxy", "*")
    (tmp_path / "ogb").mkdir()
    archive = zipped_mag(tmp_path / "ogb", 4, ["0,1", "1,0", "2,1", "3,0"])
    with serve({"/mag.zip": archive}) as site:
        monkeypatch.setattr(OGB_MAG, "url", f"{site.url}/mag.zip")
        dataset = OGB_MAG(str(tmp_path / "root"))
    mag = tmp_path / "root" / "mag"
    assert not (mag / "mapping").exists()
    csv, index = tmp_path / "abstracts.csv", tmp_path / "index"
    csv.write_text("ent idx,abstract\n0,one\n1,two\n2,three\n")
    arguments = ["--mag", mag, "--abstracts", csv, "--heldout-share", 0, "--out"]
    done = CliRunner().invoke(
        app, ["articles", *map(str, [*arguments, tmp_path / "store"])], catch_exceptions=False
    )
    assert "ids are the papers' node numbers" in done.output
    store = open_store(tmp_path / "store", LinkedTextStore)
    assert text_by_key(store) == {"0": "one", "1": "two", "2": "three"}
    edges = dataset[0]["paper", "cites", "paper"].edge_index.T.tolist()
    assert links_of(store) == {frozenset(map(str, edge)) for edge in edges if 3 not in edge}
    by_date = LinkedTextConfig(heldout_share=0.5, split_by_date=True)
    dated = prepare_linked_texts(tmp_path / "dated", OgbMag(mag, [csv]), by_date)
    assert dated.manifest["training_until"] == "2011"
    # Abstracts by MAG ids need the mapping; node numbers are no MAG ids.
    index.write_text(f"1\t{json.dumps(inverted('of another paper'))}\n")
    with pytest.raises(DataError, match=r"index: is no CSV .* mapping/ of OGB's mag.zip"):
        prepare_linked_texts(tmp_path / "other", OgbMag(mag, [index]), ALL)
    shutil.copytree(tmp_path / "ogb" / "mag" / "mapping", mag / "mapping")
    store = prepare_linked_texts(tmp_path / "mapped", OgbMag(mag, [csv]), ALL)
    assert text_by_key(store) == {"900": "one", "901": "two", "902": "three"}


@pytest.mark.parametrize("counts", ["", "paper\n", "author,paper\n3\n", "paper\n0\n", "paper\nx\n"])
def test_counts_of_nodes_without_papers_are_refused(tmp_path: Path, counts: str) -> None:
    mag = write_mag(tmp_path / "mag", ["900"], ["0,0"])
    shutil.rmtree(mag / "mapping")
    (mag / "raw" / "num-node-dict.csv").write_text(counts)
    (tmp_path / "abstracts.csv").write_text("ent idx,abstract\n0,one\n")
    with pytest.raises(DataError, match="num-node-dict.csv: has no number of papers"):
        prepare_linked_texts(tmp_path / "store", OgbMag(mag, [tmp_path / "abstracts.csv"]), ALL)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("17\t{broken", "line that is no abstract"),
        ("no tab", "line that is no abstract"),
        ('17\t{"InvertedIndex": {"a": [-1]}}', "positions outside"),
        ('17\t{"InvertedIndex": {"\\ud835": [0]}}', "half of a character"),
    ],
)
def test_broken_abstracts_are_refused_with_their_line(
    tmp_path: Path, line: str, wanted: str
) -> None:
    mag = write_mag(tmp_path / "ogbn_mag", ["900", "17"], ["0,1"])
    (tmp_path / "index").write_text(f"900\t{json.dumps(inverted('a'))}\n{line}\n")
    with pytest.raises(DataError, match=rf"{wanted}.*index:2|index:2.*{wanted}"):
        prepare_linked_texts(tmp_path / "store", OgbMag(mag, [tmp_path / "index"]), ALL)


def test_a_mapping_that_is_none_is_refused(tmp_path: Path) -> None:
    mag = write_mag(tmp_path / "ogbn_mag", ["900", "900"], ["0,1"])
    (tmp_path / "index").write_text("")
    with pytest.raises(DataError, match=r"paper_entidx2name.csv.gz, line 3: got '1,900'"):
        prepare_linked_texts(tmp_path / "store", OgbMag(mag, [tmp_path / "index"]), ALL)
