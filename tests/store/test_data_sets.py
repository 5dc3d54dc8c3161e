"""Tables that users bring: every form, and folders of the library ``datasets``, say the same."""

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raybio.core.errors import DataError
from raybio.methods.biostransformers.prepare import prepare_pairs
from raybio.methods.biostransformers.zero_shot.datasets.hallmarks import read_pmids
from raybio.methods.contrastive_probe.benchmark.medlama import read_medlama
from raybio.methods.contrastive_probe.sentences import read_names
from raybio.methods.sppt.articles.formats.tables import LinkedTables
from raybio.methods.sppt.downstream.formats.read import read_task_files
from raybio.methods.sppt.node_labels import read_node_labels
from raybio.methods.sppt.prepare import prepare_linked_texts, prepare_proteins
from raybio.methods.sppt.proteins.formats.tables import Tables
from raybio.runtime.embed_inputs import FileInputs
from raybio.store.data_sets import is_table, table_files
from raybio.store.table_rows import read_columns, read_input_rows

Columns = dict[str, list[Any]]


def write_text(path: Path, columns: Columns, delimiter: str) -> None:
    with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def write_json(path: Path, columns: Columns) -> None:
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def save_to_disk(folder: Path, columns: Columns, features: dict[str, Any] | None = None) -> None:
    """Write two Arrow streams and the records next to them, as ``datasets`` 5.2 does."""
    table = pa.table(columns)
    if features is not None:
        about = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": about})
    folder.mkdir(parents=True)
    names = [f"data-{number:05d}-of-00002.arrow" for number in range(2)]
    for name, rows in zip(names, (table[:1], table[1:]), strict=True):
        with pa.ipc.new_stream(folder / name, table.schema) as writer:
            writer.write_table(rows)
    state = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "ef5553258fc642e5",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"citation": "", "features": features}))


def write_hub(folder: Path, columns: Columns) -> None:
    """Write two Parquet files of one split, as the hub has them."""
    (folder / "data").mkdir(parents=True)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    table = pa.table(columns)
    for number, rows in enumerate((table[:1], table[1:])):
        pq.write_table(rows, folder / "data" / f"train-{number:05d}-of-00002.parquet")


def write_forms(folder: Path, stem: str, columns: Columns) -> list[Path]:
    """Write a table in every form; return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{stem}{end}" for end in (".csv", ".tsv", ".csv.gz", ".txt")]
    for path, delimiter in zip(paths, ",\t,;", strict=True):
        write_text(path, columns, delimiter)
    write_json(folder / f"{stem}.jsonl", columns)
    pq.write_table(pa.table(columns), folder / f"{stem}.parquet")
    save_to_disk(folder / f"{stem}_saved", columns)
    write_hub(folder / f"{stem}_hub", columns)
    paths += [folder / f"{stem}{end}" for end in (".jsonl", ".parquet", "_saved", "_hub")]
    return paths


ARTICLES: Columns = {
    "id": ["A1", "A2", "A3", "A4"],
    "title": ["Alignment", "Gapped, and PSI", "Vectors", "Networks"],
    "abstract": ["A new approach.", "Widely used tools.", "", "Two groups."],
    "year": ["1990", "1997", "1995", "2001"],
}
CITATIONS: Columns = {"citing": ["A2", "A3", "A4"], "cited": ["A1", "A1", "A3"]}


def digests_of_articles(folder: Path) -> list[str]:
    return [
        prepare_linked_texts(folder / str(number), LinkedTables(nodes, edges)).content_digest
        for number, (nodes, edges) in enumerate(
            zip(
                write_forms(folder, "nodes", ARTICLES),
                write_forms(folder, "edges", CITATIONS),
                strict=True,
            )
        )
    ]


PROTEINS: Columns = {
    "protein_id": ["9606.A", "9606.B", "9606.C", "9606.D"],
    "species_taxid": ["9606"] * 4,
    "sequence": ["MKTAYIAK", "MVLSPADK", "MNIFEMLR", "MDYTKIEK"],
}
LINKS: Columns = {
    "protein_a": ["9606.A", "9606.A", "9606.C"],
    "protein_b": ["9606.B", "9606.C", "9606.D"],
}


def digests_of_proteins(folder: Path) -> list[str]:
    return [
        prepare_proteins(folder / str(number), Tables([edges], [proteins])).content_digest
        for number, (edges, proteins) in enumerate(
            zip(
                write_forms(folder, "edges", LINKS),
                write_forms(folder, "proteins", PROTEINS),
                strict=True,
            )
        )
    ]


def digests_of_pairs(folder: Path, columns: Columns) -> list[str]:
    paths = write_forms(folder, "pairs", columns)
    if "pmid" in columns:
        # Of tab-separated tables each term has a column.
        paths = [path for path in paths if path.suffix != ".tsv"]
    return [
        prepare_pairs(folder / str(number), [path]).content_digest
        for number, path in enumerate(paths)
    ]


def digests_of_labeled(folder: Path) -> list[str]:
    columns = {"text": [f"text, {each}" for each in "abcd"], "label": ["x;y", "y", "x", "z"]}
    return digests_of_pairs(folder, columns)


def digests_of_terms(folder: Path) -> list[str]:
    columns = {
        "pmid": [str(number) for number in range(1, 5)],
        "title": ["one", "two, or more", "three", "four"],
        "abstract": ["A.", "", "B.", "C."],
        "terms": ["Mice;Aged, 80 and over", "Mice", "Rats", "Rats"],
    }
    return digests_of_pairs(folder, columns)


@pytest.mark.parametrize(
    "digests_of", [digests_of_articles, digests_of_proteins, digests_of_labeled, digests_of_terms]
)
def test_the_same_table_in_any_form_gives_one_store(
    tmp_path: Path, digests_of: Callable[[Path], list[str]]
) -> None:
    digests = digests_of(tmp_path)
    assert len(digests) >= 7
    assert len(set(digests)) == 1


def test_labels_ids_names_and_genotypes_are_read_from_any_form(tmp_path: Path) -> None:
    keys = pa.array(["9606.A", "9606.B"])
    for path in write_forms(tmp_path / "labels", "t", {"protein": ["9606.B"], "class": ["kinase"]}):
        assert read_node_labels(path, keys).text_N.tolist() == ["", "kinase"]
    columns: Columns = {"id": ["9606.A", "9606.B"], "note": ["", "x"], "label": ["1", "2"]}
    for path in write_forms(tmp_path / "wide", "t", columns):
        assert read_node_labels(path, keys).text_N.tolist() == ["1", "2"]
    for path in write_forms(tmp_path / "ids", "t", {"pmid": [12, 7], "year": ["1", "2"]}):
        if is_table(path):
            assert read_pmids(path) == {"12", "7"}
    for path in write_forms(tmp_path / "names", "t", {"name": ["aspirin", "pain, chronic"]}):
        if is_table(path):
            assert read_names(path) == ["aspirin", "pain, chronic"]
    columns = {"aaMutations": ["", "SA108D"], "medianBrightness": ["3.5", "1.25"]}
    for path in write_forms(tmp_path / "gfp", "t", columns):
        examples = list(read_task_files("fluorescence", path).examples)
        assert [example.label for example in examples] == [3.5, 1.25]


def test_a_benchmark_may_have_tables_of_other_forms(tmp_path: Path) -> None:
    columns: Columns = {
        "head_cui": ["C1", "C2"],
        "head_name": ["aspirin", "lithium"],
        "rel": ["may_treat"] * 2,
        "tail_names": ["pain || fever", "bipolar disorder"],
        "tail_cuis": ["C3 || C4", "C5"],
    }
    prompts = {
        "pid": ["may_treat"],
        "default_prompt": ["[X] may treat [Y]."],
        "human_prompt": ["[X] might treat [Y]."],
    }
    found = []
    for number, end in enumerate((".csv", ".jsonl", ".parquet", ".tsv")):
        folder = tmp_path / str(number)
        (forms,) = [[p for p in write_forms(folder / "x", "t", columns) if p.suffix == end][:1]]
        forms[0].rename(folder / f"may_treat_2{end}")
        (forms,) = [[p for p in write_forms(folder / "y", "t", prompts) if p.suffix == end][:1]]
        forms[0].rename(folder / f"prompts{end}")
        benchmark = read_medlama(folder)
        found.append((benchmark.names, benchmark.queries("[Y]")))
    assert all(each == found[0] for each in found)
    assert found[0][1][0] == "aspirin might treat [Y]."


def columns_of(path: Path, *names: str) -> list[tuple[str, ...]]:
    rows = []
    for block in read_columns(path, "columns", lambda _: names):
        rows += zip(*block.columns, strict=True)
    return rows


def test_classes_of_a_data_set_have_their_names(tmp_path: Path) -> None:
    features = {
        "label": {"names": ["negative", "positive"], "_type": "ClassLabel"},
        "tags": {"feature": {"names": ["B", "I"], "_type": "ClassLabel"}, "_type": "List"},
        "text": {"dtype": "string", "_type": "Value"},
    }
    columns: Columns = {"text": ["a", "b", "c"], "label": [1, 0, -1], "tags": [[0, 1], [1], []]}
    save_to_disk(tmp_path / "saved", columns, features)
    assert columns_of(tmp_path / "saved", "label", "tags") == [
        ("positive", "B I"),
        ("negative", "I"),
        ("", ""),
    ]


def test_rows_of_a_folder_are_numbered_through_its_files(tmp_path: Path) -> None:
    save_to_disk(tmp_path / "saved", {"text": ["a", "b", "c"]})
    blocks = list(read_input_rows(tmp_path / "saved", "text"))
    assert [block.keys for block in blocks] == [["1"], ["2", "3"]]
    assert [block.lines for block in blocks] == [[1], [2, 3]]
    digest = FileInputs(tmp_path / "saved", strip_stop=False).digest()
    save_to_disk(tmp_path / "other", {"text": ["a", "b", "d"]})
    assert FileInputs(tmp_path / "other", strip_stop=False).digest() != digest


@pytest.mark.parametrize("is_saved", [True, False])
def test_splits_of_a_data_set_are_those_of_a_labeled_task(tmp_path: Path, is_saved: bool) -> None:
    from raybio.methods.sppt.downstream.config import TASKS
    from raybio.methods.sppt.downstream.formats.own_tables import read_own_tables

    source = tmp_path / "reviews"
    if is_saved:
        for split in ("train", "validation", "test"):
            save_to_disk(source / split, {"text": [split, "b"], "label": ["x", "y"]})
        (source / "dataset_dict.json").write_text('{"splits": ["train", "validation", "test"]}')
    else:
        (source / "data").mkdir(parents=True)
        for split in ("train", "validation", "test"):
            path = source / "data" / f"{split}-00000-of-00001.parquet"
            pq.write_table(pa.table({"text": [split, "b"], "label": ["x", "y"]}), path)
    examples = list(read_own_tables(TASKS["text_classification"], source).examples)
    assert {example.content: example.split for example in examples if example.content != "b"} == {
        "train": "train",
        "validation": "dev",
        "test": "test",
    }
    with pytest.raises(DataError, match="splits|holds the tables test, train, validation"):
        table_files(source)


def remove_a_shard(folder: Path) -> None:
    (folder / "data" / "train-00001-of-00002.parquet").unlink()


def remove_an_arrow_file(folder: Path) -> None:
    (folder / "data-00001-of-00002.arrow").unlink()


def tear_an_arrow_file(folder: Path) -> None:
    path = folder / "data-00001-of-00002.arrow"
    path.write_bytes(path.read_bytes()[:-40])


def empty_the_state(folder: Path) -> None:
    (folder / "state.json").write_text("{}")


@pytest.mark.parametrize(
    ("write", "damage", "message"),
    [
        (write_hub, remove_a_shard, "holds 1 of the 2 files of train-00000"),
        (save_to_disk, remove_an_arrow_file, r"data-00001-of-00002\.arrow: cannot be read"),
        (save_to_disk, tear_an_arrow_file, r"00002\.arrow: cannot be read as Arrow"),
        (save_to_disk, empty_the_state, r"state\.json: names no files"),
    ],
)
def test_a_data_set_that_is_not_whole_is_refused(
    tmp_path: Path, write: Any, damage: Callable[[Path], None], message: str
) -> None:
    write(tmp_path / "set", {"text": ["a", "b", "c"]})
    damage(tmp_path / "set")
    with pytest.raises(DataError, match=message):
        columns_of(tmp_path / "set", "text")


@pytest.mark.nightly
def test_what_the_library_itself_writes_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["negative", "positive"]),
        }
    )
    columns = {"text": ["a", "b", "c"] * 2000, "label": [1, 0, 1] * 2000}
    data = datasets.Dataset.from_dict(columns, features=features)
    data.save_to_disk(tmp_path / "saved", num_shards=2)
    datasets.DatasetDict(train=data, test=data).save_to_disk(tmp_path / "splits")
    (tmp_path / "hub").mkdir()
    for number in range(2):
        shard = data.shard(2, number, contiguous=True)
        shard.to_parquet(tmp_path / "hub" / f"train-{number:05d}-of-00002.parquet")
    wanted = [("a", "positive"), ("b", "negative"), ("c", "positive")] * 2000
    for source in ("saved", "splits/test", "hub"):
        assert columns_of(tmp_path / source, "text", "label") == wanted
    with pytest.raises(DataError, match="has the splits test, train"):
        table_files(tmp_path / "splits")


@pytest.mark.parametrize(
    "names", [["part.0.parquet", "part.1.parquet"], ["notes.2020.parquet", "notes.2021.parquet"]]
)
def test_parts_with_numbers_after_a_dot_are_one_table(tmp_path: Path, names: list[str]) -> None:
    """As Dask names them."""
    for name in names:
        pq.write_table(pa.table({"text": [name]}), tmp_path / name)
    assert [file.name for file in table_files(tmp_path)] == names
    (tmp_path / f"{names[0][:-8]}.csv.gz").write_bytes(gzip.compress(b"text\na\n"))
    with pytest.raises(DataError, match="read twice"):
        table_files(tmp_path)


@pytest.mark.parametrize(
    ("sound", "damaged"),
    [
        (b"\0\0\0\0\3\0\0\0\6\0\0\0", b"\0\0\0\0\x83\xff\xff\xff\6\0\0\0"),
        (b"\4\0\0\0text", b"\4\0\0\0\x8bext"),
    ],
    ids=["offsets of texts", "name of a column"],
)
def test_a_damaged_arrow_file_is_refused_before_its_offsets_are_followed(
    tmp_path: Path, sound: bytes, damaged: bytes
) -> None:
    with pa.OSFile(str(tmp_path / "one.arrow"), "wb") as file:
        table = pa.table({"text": ["one", "two"]})
        with pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    content = (tmp_path / "one.arrow").read_bytes()
    assert content.count(sound) == 1
    (tmp_path / "one.arrow").write_bytes(content.replace(sound, damaged))
    with pytest.raises(DataError, match=r"one.arrow: cannot be read as Arrow .* write it again"):
        columns_of(tmp_path / "one.arrow", "text")


def test_a_state_with_a_very_long_name_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "a" * 3000}]}))
    with pytest.raises(DataError, match="there is no such file") as refused:
        columns_of(tmp_path, "text")
    assert len(str(refused.value)) < 1000
