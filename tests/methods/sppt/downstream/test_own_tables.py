"""Tables of one's own: one store whatever the format, drawn splits, refusals, and each kind of task."""

import csv
import gzip
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import raybio
from raybio.cli.finetune import with_tasks
from raybio.core.errors import DataError
from raybio.methods import METHODS
from raybio.methods.sppt.downstream.config import TASKS, Config, TaskPlanConfig
from raybio.methods.sppt.downstream.formats.read import read_task_files
from raybio.methods.sppt.downstream.prepare import prepare_task
from raybio.methods.sppt.downstream.scores import class_set_scores
from raybio.methods.sppt.downstream.store import IGNORED, TaskStore
from raybio.runtime.compare.table import ResultTable
from raybio.store.store import open_store
from raybio.store.table_rows import read_input_rows
from raybio.training.collective import SingleProcess
from raybio.training.loop import fit
from tests.methods.conformance_cases import tiny_config

OWN = [name for name, task in TASKS.items() if task.is_own]
SPLIT_BY_LETTER = [("A", "train"), ("C", "dev"), ("D", "test")]
LABEL_OF = {
    "class": lambda letters: "helix" if letters.count("A") > 5 else "none",
    "number": lambda letters: letters.count("A") / len(letters),
    "class_set": lambda letters: ";".join(
        name for name, letter in (("helix", "A"), ("strand", "W")) if letters.count(letter) > 3
    ),
    "residues": lambda letters: "".join({"A": "h", "W": "e"}.get(each, "-") for each in letters),
}


def rows_of(name: str, num_rows: int = 60) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    column = "text" if TASKS[name].on_texts else "sequence"
    rows = []
    for number in range(num_rows):
        letters = "".join(rng.choice(list("AWGK"), 12))
        content = " ".join(letters) if TASKS[name].on_texts else letters
        split = ("test", "dev", "train", "train", "train")[number % 5]
        label = LABEL_OF[TASKS[name].labels](letters)
        rows.append({"id": f"r{number}", column: content, "label": label, "split": split})
    return rows


def write_csv(path: Path, rows: list[dict[str, Any]], delimiter: str = ",") -> Path:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys(), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def prepared(name: str, source: Path, out: Path) -> TaskStore:
    return prepare_task(out, name, *read_task_files(name, source))


def contents_of(store: TaskStore) -> list[Any]:
    rows = zip(
        store.texts(np.arange(store.num_rows)),
        store.split_number_N.tolist(),
        store.target_N.tolist(),
        store.classes.to_pylist(),
        strict=True,
    )
    return sorted(rows)


def as_list(name: str, label: Any) -> Any:
    """A label as Parquet and JSON lines may have it, too."""
    if name == "residue_tagging":
        return list(label)
    if TASKS[name].labels == "class_set":
        return label.split(";") if label else []
    return label


@pytest.mark.parametrize("name", OWN)
def test_csv_tsv_json_lines_parquet_and_a_folder_of_splits_give_one_store(
    name: str, tmp_path: Path
) -> None:
    rows = rows_of(name)
    wanted = contents_of(prepared(name, write_csv(tmp_path / "a.csv", rows), tmp_path / "csv"))
    assert len(wanted) == len(rows)
    turned = [row | {"label": rows[-1 - n]["label"]} for n, row in enumerate(rows)]
    other = prepared(name, write_csv(tmp_path / "turned.csv", turned), tmp_path / "turned")
    assert contents_of(other) != wanted
    renamed = [{key.title(): value for key, value in row.items()} for row in rows]
    write_csv(tmp_path / "a.tsv.gz", renamed, "\t")
    assert contents_of(prepared(name, tmp_path / "a.tsv.gz", tmp_path / "tsv")) == wanted
    listed = [row | {"label": as_list(name, row["label"])} for row in rows]
    pq.write_table(pa.Table.from_pylist(listed), tmp_path / "a.parquet")
    assert contents_of(prepared(name, tmp_path / "a.parquet", tmp_path / "pq")) == wanted
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, listed)))
    assert contents_of(prepared(name, tmp_path / "a.jsonl.gz", tmp_path / "json")) == wanted
    folder = tmp_path / "folder"
    folder.mkdir()
    for split, file in (("train", "train-00000-of-00001"), ("dev", "validation"), ("test", "test")):
        write_csv(folder / f"{file}.csv", [row for row in rows if row["split"] == split])
    assert contents_of(prepared(name, folder, tmp_path / "folders")) == wanted


def test_flips_columns_are_read_and_validation_rows_are_dev(tmp_path: Path) -> None:
    path = tmp_path / "flip.csv"
    path.write_text(
        "sequence,target,set,validation\nMKT,1.5,train,\nMKA,0.5,train,True\nMKV,-2,test,\n"
    )
    store = prepared("protein_regression", path, tmp_path / "store")
    assert contents_of(store) == [("MKA", 1, 0.5, []), ("MKT", 0, 1.5, []), ("MKV", 2, -2.0, [])]


def test_drawn_splits_keep_equal_rows_together_and_do_not_depend_on_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAYBIO_STORES", str(tmp_path / "stores"))
    rows = [{"text": f"text {n % 50}", "label": "ab"[n % 2]} for n in range(100)]
    parts = with_tasks(["text_classification", "--data", str(write_csv(tmp_path / "a.csv", rows))])
    store = open_store(parts.parts["text_classification"].store, TaskStore)
    assert [len(store.split_rows(split)) for split in ("train", "dev", "test")] == [80, 10, 10]
    assert store.known_from_training() == {"dev": 0, "test": 0}
    printed = capsys.readouterr().out
    assert "100 rows have no split: 80 % train, 10 % dev, 10 % test were drawn" in printed
    turned = prepared(
        "text_classification", write_csv(tmp_path / "b.csv", rows[::-1]), tmp_path / "turned"
    )
    assert contents_of(turned) == contents_of(store)


@pytest.mark.parametrize("num_copies", [1, 12, 200])
def test_drawn_splits_have_their_shares_though_the_wild_type_has_many_rows(
    tmp_path: Path, num_copies: int
) -> None:
    contents = ["wild type"] * num_copies + [f"variant {number}" for number in range(100)]
    rows = [f"{content},{number % 7}" for number, content in enumerate(contents)]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["text,label", *rows]))
    store = prepared("text_regression", path, tmp_path / "store")
    assert [len(store.split_rows(split)) for split in ("dev", "test")] == [10, 10]
    assert store.known_from_training() == {"dev": 0, "test": 0}


@pytest.mark.parametrize(
    ("num_frequent", "num_copies", "num_others", "least"),
    [(9, 100, 30, 30), (8, 5, 2, 5), (1, 600, 4, 1)],
)
def test_drawn_splits_are_no_handful_of_rows_where_most_contents_repeat(
    tmp_path: Path, num_frequent: int, num_copies: int, num_others: int, least: int
) -> None:
    contents = [f"text {number}" for number in range(num_frequent)] * num_copies
    contents += [f"single {number}" for number in range(num_others)]
    rows = [f"{content},{number % 7}" for number, content in enumerate(contents)]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["text,label", *rows]))
    store = prepared("text_regression", path, tmp_path / "store")
    sizes = [len(store.split_rows(split)) for split in ("train", "dev", "test")]
    assert sum(sizes) == len(contents)
    assert max(sizes) == sizes[0]
    assert least <= sizes[1] + sizes[2]


@pytest.mark.parametrize(
    ("num_frequent", "num_copies"), [(1, 20), (1, 60), (1, 250), (1, 800), (5, 500)]
)
def test_dev_drawn_from_training_has_many_contents_though_some_have_many_rows(
    tmp_path: Path, num_frequent: int, num_copies: int
) -> None:
    """As deep mutational scans with the wild type."""
    contents = [f"wild type {number}" for number in range(num_frequent)] * num_copies
    contents += [f"variant {number}" for number in range(1000)]
    rows = [f"{content},{number % 7},train" for number, content in enumerate(contents)]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["text,label,split", *rows, "other,1,test"]))
    store = prepared("text_regression", path, tmp_path / "store")
    dev_rows = store.split_rows("dev")
    # 10 % of all rows, or of those of variants.
    assert 95 <= len(dev_rows) <= 0.16 * len(contents)
    assert store.known_from_training()["dev"] == 0
    counts = Counter(store.texts(dev_rows))
    assert max(counts.values()) <= len(dev_rows) / 2


@pytest.mark.parametrize(
    ("copies", "num_rows"),
    [
        # A wild type that is left out, and variants of which two are needed.
        ([600] + [40] * 10, 80),
        ([600] + [50] * 8, 100),
        ([100] * 10 + [1] * 20, 200),
        ([50] * 3, 50),
        ([1] * 100, 10),
    ],
)
def test_dev_drawn_from_few_contents_has_two_of_them_at_most_half(
    tmp_path: Path, copies: list[int], num_rows: int
) -> None:
    contents = [f"text {n}" for n, count in enumerate(copies) for _ in range(count)]
    rows = [f"{content},{number % 7},train" for number, content in enumerate(contents)]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["text,label,split", *rows, "other,1,test"]))
    store = prepared("text_regression", path, tmp_path / "store")
    dev_rows = store.split_rows("dev")
    assert num_rows <= len(dev_rows) <= 1.1 * num_rows
    counts = Counter(store.texts(dev_rows))
    assert max(counts.values()) <= len(dev_rows) / 2 or len(copies) == 3
    assert len(counts) <= len(copies) / 2


def test_dev_drawn_from_training_shares_no_content_with_it(tmp_path: Path) -> None:
    """Two measurements of each variant."""
    rows = [{"sequence": "M" * (n // 2), "label": n, "split": "train"} for n in range(2, 202)]
    rows += [{"sequence": "MKL", "label": 1, "split": "test"}]
    source = write_csv(tmp_path / "a.csv", rows)
    store = prepared("protein_regression", source, tmp_path / "store")
    assert len(store.split_rows("dev")) == 20
    assert store.known_from_training()["dev"] == 0


def test_texts_that_differ_in_case_spaces_and_punctuation_only_are_copies(tmp_path: Path) -> None:
    forms = ("text {}", "Text  {}", "TEXT {}.", "(text {})")
    rows = [
        {"text": form.format(number), "label": number} for number in range(60) for form in forms
    ]
    # A text without a letter or digit is a copy of none.
    rows += [{"text": mark, "label": 0} for mark in ("?", "!", "+")]
    store = prepared("text_regression", write_csv(tmp_path / "a.csv", rows), tmp_path / "drawn")
    split_by_label: dict[float, set[int]] = {}
    for target, split in zip(store.target_N, store.split_number_N, strict=True):
        split_by_label.setdefault(float(target), set()).add(int(split))
    assert all(len(splits) == 1 for label, splits in split_by_label.items() if label)
    assert len(store.split_rows("dev")) == len(store.split_rows("test")) == 24
    assert store.manifest["leakage"] == {"dev_rows_in_training": 0, "test_rows_in_training": 0}
    turned = write_csv(tmp_path / "turned.csv", rows[::-1])
    again = prepared("text_regression", turned, tmp_path / "turned")
    assert contents_of(again) == contents_of(store)

    stated = [row | {"split": "train"} for row in rows]
    stated += [{"text": "text 7!", "label": 7, "split": "test"}]
    stated += [{"text": "#", "label": 7, "split": "test"}]
    store = prepared("text_regression", write_csv(tmp_path / "b.csv", stated), tmp_path / "stated")
    # Dev is drawn from training.
    assert store.known_from_training() == {"dev": 0, "test": 1}
    assert store.manifest["leakage"] == {"dev_rows_in_training": 0, "test_rows_in_training": 1}
    assert store.texts(store.new_rows("test")) == ["#"]


def test_missing_sequences_are_no_peptides(tmp_path: Path) -> None:
    rows = rows_of("protein_regression")
    rows += [{"sequence": word, "label": 1, "split": "train"} for word in ("NA", "nan", "NaN")]
    source = write_csv(tmp_path / "a.csv", rows)
    store = prepared("protein_regression", source, tmp_path / "store")
    assert store.num_rows == len(rows) - 3
    assert store.manifest["quarantine"]["row without a sequence"]["count"] == 3


@pytest.mark.parametrize(
    "names", [("train-00000-of-00001.csv", "train_more.csv"), ("train-best-of-3.csv",)]
)
def test_files_without_number_and_count_are_not_parts_of_others(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in (*names, "test.csv"):
        (folder / name).write_text(f"text,label\n{name},x\n{name} again,y\n")
    manifest = prepared("text_classification", folder, tmp_path / "store").manifest
    assert manifest["counts"]["rows"] == 2 * len(names) + 2


def test_more_tags_than_a_store_can_hold_are_refused(tmp_path: Path) -> None:
    rows = [
        {"sequence": "MK", "label": f"tag{n} tag{n + 100}", "split": split}
        for n in range(100)
        for split in ("train", "dev", "test")
    ]
    source = write_csv(tmp_path / "a.csv", rows)
    with pytest.raises(DataError, match="has 200 tags .*, want at most 128"):
        prepared("residue_tagging", source, tmp_path / "store")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ("train-00000-of-00002.csv", "test.csv"),
            "holds 1 of the 2 files of train-00000-of-00002",
        ),
        (("train.csv", "train.tsv", "test.csv"), "holds train.csv and train.tsv, .* read twice"),
        (
            ("train-00000-of-00002.csv", "train-more.csv", "test.csv"),
            "holds 1 of the 2 files of train-00000-of-00002.csv; fetch the others",
        ),
        (
            ("train-00000-of-00001-a.csv", "train-00000-of-00001-b.csv", "test.csv"),
            "holds 2 files of train-00000-of-00001-a.csv, more than its 1; keep one of each number",
        ),
    ],
)
def test_a_split_with_missing_or_repeated_files_is_refused(
    tmp_path: Path, names: tuple[str, ...], message: str
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in names:
        delimiter = "\t" if name.endswith(".tsv") else ","
        lines = [f"text{delimiter}label", f"a b{delimiter}x", f"c d{delimiter}y"]
        (folder / name).write_text("\n".join(lines))
    with pytest.raises(DataError, match=message):
        prepared("text_classification", folder, tmp_path / "store")


def test_a_quote_that_begins_a_text_of_a_tsv_does_not_swallow_the_rows_below_it(
    tmp_path: Path,
) -> None:
    source = tmp_path / "a.tsv"
    source.write_text(
        'text\tlabel\tsplit\na b\tx\ttrain\n"Quoted\ty\ttrain\nc d\tx\tdev\nends"\ty\ttest\n'
    )
    with pytest.raises(
        DataError, match="line 3: a field in quotes goes on to line 5 and holds whole rows"
    ):
        prepared("text_classification", source, tmp_path / "store")


def test_a_field_of_a_tsv_may_hold_a_tab_and_line_ends(tmp_path: Path) -> None:
    source = tmp_path / "a.tsv"
    text = "Methods:\tRCT.\nResults: good\n"
    rows = [f'"{text}{split}"\tx\t{split}\n"b"\ty\t{split}\n' for split in ("train", "dev", "test")]
    source.write_text("text\tlabel\tsplit\n" + "".join(rows))
    store = prepared("text_classification", source, tmp_path / "store")
    assert sorted(store.texts(np.arange(6)))[:2] == [text + "dev", text + "test"]


def test_tags_may_be_words_and_a_hyphen_is_no_label(tmp_path: Path) -> None:
    path = tmp_path / "tags.tsv"
    lines = [f"MK{a}\tcore - rim\t{split}" for a, split in SPLIT_BY_LETTER]
    path.write_text("\n".join(["sequence\tlabel\tset", *lines]))
    store = prepared("residue_tagging", path, tmp_path / "store")
    assert list(store.class_names) == ["core", "rim"]
    assert store.class_T.tolist() == [0, IGNORED, 1] * 3


def test_the_labels_of_a_row_are_a_set_and_an_empty_cell_is_a_row_without_any(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = ["b; a", "a;a ;", " ; b;;", "", " ", "a two;b"]
    lines = [f'text {number},"{cell}",train' for number, cell in enumerate(cells)]
    path = tmp_path / "labels.csv"
    path.write_text("\n".join(["text,label,split", *lines, "d,c;b,dev", "t,,test"]))
    store = prepared("text_multilabel", path, tmp_path / "store")
    assert store.class_names == ("a", "a two", "b", "c")
    sets = [[0, 2], [0], [2], [], [], [1, 2], [2, 3], []]
    assert store.classes.to_pylist() == sets
    expected = [[label in numbers for label in range(4)] for numbers in sets]
    rows = np.array([6, 0, 3, 0])
    assert store.targets(rows).tolist() == [expected[row] for row in rows]
    assert store.targets(np.empty(0, np.int64)).shape == (0, 4)
    assert store.classes_absent_from_training() == {"dev": ["c"]}
    assert store.manifest["quarantine"] == {}
    # Null in a list, or instead of one.
    table = pa.table(
        {
            "text": ["t", "u", "v"],
            "label": [["a", None, "b;c"], None, ["b"]],
            "split": ["train", "dev", "test"],
        }
    )
    pq.write_table(table, tmp_path / "labels.parquet")
    store = prepared("text_multilabel", tmp_path / "labels.parquet", tmp_path / "lists")
    assert store.class_names == ("a", "b", "c")
    assert store.classes.to_pylist() == [[0, 1, 2], [], [1]]


@pytest.mark.parametrize("kind", [int, float, bool])
def test_a_list_of_whether_a_row_has_each_class_is_refused(tmp_path: Path, kind: type) -> None:
    labels = [[kind(n == row % 3) for n in range(3)] for row in range(9)]
    splits = ["train", "dev", "test"] * 3
    table = pa.table({"text": [f"t{n}" for n in range(9)], "label": labels, "split": splits})
    pq.write_table(table, tmp_path / "labels.parquet")
    with pytest.raises(DataError, match="all labels are .* want the names of its classes"):
        prepared("text_multilabel", tmp_path / "labels.parquet", tmp_path / "store")


def test_sets_may_be_of_thousands_of_classes_and_other_stores_are_as_before(tmp_path: Path) -> None:
    names = [f"GO:{number:07d}" for number in range(40_000)]
    rows = [
        {"sequence": "MKT", "label": ";".join(names), "split": "train"},
        {"sequence": "MKA", "label": names[-1], "split": "dev"},
        {"sequence": "MKV", "label": "", "split": "test"},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    store = prepared("protein_multilabel", path, tmp_path / "store")
    assert store.targets(np.arange(3)).sum(axis=1).tolist() == [40_000, 1, 0]
    assert store.targets(np.array([1]))[0, -1]
    # The column is as in stores that were prepared before there were sets.
    for name in OWN:
        if TASKS[name].labels != "class_set":
            source = write_csv(tmp_path / f"{name}.csv", rows_of(name))
            other = prepared(name, source, tmp_path / name)
            assert other.classes.type == pa.large_list(pa.int8())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("text,labels\na,b\n", "want the columns 'text' and 'label', and perhaps 'split'"),
        (
            "text,label,split\na,,train\nb,;,dev\nc,,test\n",
            r"has 0 classes \(\), want two at least",
        ),
        ("text,label,split\na,x,train\nb,x,dev\nc,,test\n", r"has 1 classes \(x\)"),
        ("text,label\n,x\nb,y\n", "row without a text: 1, first wrong.csv:2"),
        ("text,label\na,x,y\nb,y\n", "line 2: has 3 columns, want 2"),
    ],
)
def test_what_is_wrong_with_a_table_of_sets_is_named(
    text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        prepared("text_multilabel", path, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_splits_have_their_usual_names(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    names = ["training", "Train", "val", "validation", "eval", "dev", "testing", "test"]
    lines = [f"MKT{letter},1,{name}" for letter, name in zip("ACDEFGHI", names, strict=True)]
    path.write_text("\n".join(["sequence,label,split", *lines]))
    store = prepared("protein_regression", path, tmp_path / "store")
    assert [len(store.split_rows(split)) for split in ("train", "dev", "test")] == [2, 4, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seq,label\nMKT,1\n", "want the columns 'sequence' and 'label', and perhaps 'split'"),
        (
            "sequence,label,split\nMKT,1,trian\n",
            "line 2: the split is 'trian', want train, dev .or val",
        ),
        ("sequence,label,split\nMKT,1,train\nMKA,2,dev\n", "the task has no test rows"),
        ("sequence,label\nMKT,many\nMKA,2\n", "label that is no finite number"),
        ("sequence,label\nMK1,2\nMKA,2\n", "letter that is not an amino acid"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        prepared("protein_regression", path, tmp_path / "store")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("kind", ["text", "protein"])
def test_rows_without_a_label_name_the_task_of_several_labels_or_none(
    kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "table.csv"
    column = "text" if kind == "text" else "sequence"
    path.write_text(f"{column},label\nAC,x\nAD,\nAE,y\n")
    with pytest.raises(
        DataError, match=rf"or none, are for the task {kind}_multilabel\. Repair the input\.$"
    ):
        prepared(f"{kind}_classification", path, tmp_path / "store")
    path.write_text(f"{column},label\n,x\nAE,y\n")
    with pytest.raises(DataError, match="row without a (text|sequence)") as caught:
        prepared(f"{kind}_classification", path, tmp_path / "store")
    assert "multilabel" not in str(caught.value)


def test_a_class_that_is_no_number_is_a_missing_label(tmp_path: Path) -> None:
    rows = [{"text": f"t{n}", "label": "ab"[n % 2]} for n in range(40)]
    path = tmp_path / "table.jsonl"
    lines = [json.dumps(row) for row in [*rows, {"text": "t", "label": math.nan}]]
    path.write_text("\n".join(lines))
    store = prepared("text_classification", path, tmp_path / "one")
    assert list(store.class_names) == ["a", "b"] and store.num_rows == 40
    several = prepared("text_multilabel", path, tmp_path / "several")
    assert list(several.class_names) == ["a", "b"] and several.num_rows == 41
    # Other words for a missing value may be names of classes.
    path = write_csv(tmp_path / "table.csv", [*rows, *[{"text": "t", "label": "None"}] * 9])
    named = prepared("text_classification", path, tmp_path / "named")
    assert list(named.class_names) == ["None", "a", "b"]


def test_json_lines_that_are_none_are_named_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for text, message in (
        ('{"text": "a"', "line 1: is no JSON"),
        ('{"text": "a", "label": "x"}\n\n["a"]', "line 3: want an object with the columns 'text'"),
        ('{"text": "a"}', "has the columns text; want the columns 'text' and 'label'"),
        ("\n", "is empty, want JSON lines"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            prepared("text_classification", path, tmp_path / "store")
    path.write_text('{"Text": "a"}\n{"other": 1}\n')
    (rows,) = read_input_rows(path, "text")
    assert (rows.keys, rows.contents, rows.lines) == (["1", "2"], ["a", ""], [1, 2])


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("MKT 1")
    with pytest.raises(DataError, match=r"a.txt: want a .tsv, .csv, .jsonl or .parquet table"):
        read_task_files("protein_regression", tmp_path / "a.txt")
    with pytest.raises(DataError, match=r"want tables of its splits, such as train.csv"):
        read_task_files("protein_regression", tmp_path)


@pytest.mark.parametrize("name", OWN)
def test_a_model_is_trained_scored_next_to_rivals_exported_and_predicts(
    name: str, tmp_path: Path
) -> None:
    store = prepared(name, write_csv(tmp_path / "a.csv", rows_of(name)), tmp_path / "store")
    sizes = {"schedule.max_steps": 2, "encoder.vocabulary_size": 60, "encoder.head": "auto"}
    config = tiny_config("finetune", **sizes)
    system = METHODS["finetune"].build(config, store.path)
    list(fit(system, config))
    final = system.final_evaluate(system.model, SingleProcess())
    assert final.details["measure"] == TASKS[name].measure
    table = ResultTable({}, METHODS["finetune"].table, sizes=final.sizes)
    measure = {"accuracy": "accuracy", "macro_f1": "macro F1", "spearman": "Spearman's ρ"}
    assert table.title("test") == (
        f"Downstream task, test rows: {measure[TASKS[name].measure]} of 12 rows"
    )
    assert len(final.scores) > 4, final.scores.keys()  # chance, initial, trained, and rivals
    system.export(tmp_path / "export", {})
    inputs = store.texts(store.split_rows("test"))
    predictions = raybio.load(tmp_path / "export").predict(inputs)
    assert len(predictions) == len(inputs)
    kinds = {"class": "class", "class_set": "classes", "number": "number", "residues": "tags"}
    kind = kinds[TASKS[name].labels]
    if kind == "classes":
        # Predictions of the export are those that were scored.
        predicted_QC = [
            [name in prediction["classes"].split(";") for name in store.class_names]
            for prediction in predictions
        ]
        gold_QC = store.targets(store.split_rows("test"))
        scored = final.unit_scores["trained"]["test"].value_by_measure
        for measure, value_Q in class_set_scores(np.array(predicted_QC), gold_QC).items():
            np.testing.assert_allclose(scored[measure], value_Q)
    for text, prediction in zip(inputs, predictions, strict=True):
        if kind == "number":
            assert np.isfinite(prediction[kind])
        elif kind == "class":
            assert prediction[kind] in store.class_names
        elif kind == "classes":
            has = [each for each in store.class_names if prediction[f"p({each})"] >= 0.5]
            assert prediction[kind] == ";".join(has)
        else:
            assert len(prediction[kind]) == len(text)


def test_the_settings_are_those_of_a_published_task_of_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_STORES", str(tmp_path / "stores"))
    rows = rows_of("protein_regression")
    arguments = ["protein_regression", "--data", str(write_csv(tmp_path / "a.csv", rows))]
    (part,) = with_tasks(arguments).parts.values()
    assert part.published is not None
    settings = part.published(None)
    assert settings["plan.global_batch_rows"] == 128
    assert settings["schedule.max_steps"] == 200
    assert settings["optim.peak_lr"] == 5e-5
    # An epoch is one step: evaluations after each would take most of the time.
    assert settings["schedule.evaluate_every_steps"] == 10
    assert settings["schedule.checkpoint_every_steps"] == 10
    small_batch = part.published(Config(plan=TaskPlanConfig(global_batch_rows=1)))
    num_train = small_batch["schedule.max_steps"] // 200
    assert num_train >= 10
    assert small_batch["schedule.evaluate_every_steps"] == num_train
