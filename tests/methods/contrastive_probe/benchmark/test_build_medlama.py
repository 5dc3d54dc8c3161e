"""Benchmarks from hand-written rows, and from a synthetic UMLS."""

import csv
import gzip

import numpy as np
import pytest

from raybio.core.errors import ConfigError, DataError, StoreError
from raybio.core.records import read_record
from raybio.methods.contrastive_probe.benchmark.build import COLUMNS, build_medlama
from raybio.methods.contrastive_probe.benchmark.config import MedlamaConfig
from raybio.methods.contrastive_probe.benchmark.medlama import read_medlama
from tests.methods.contrastive_probe.benchmark.umls_files import (
    RELATIONS,
    UmlsConfig,
    conso_row,
    rel_row,
    write_umls,
)

DRUG = [conso_row("C1", "A1", "Aspirin"), conso_row("C1", "A2", "Acetylsalicylic acid", ts="S")]
PAIN = [conso_row("C2", "A3", 'Pain, "acute"'), conso_row("C2", "A4", "Dolor", lat="SPA")]
FEVER = [
    conso_row("C3", "A5", "Fièvre"),
    conso_row("C3", "A6", "Pyrexia", ts="S", stt="VO", ispref="N"),
]
NAMES = [*DRUG, *PAIN, *FEVER]


def umls(folder, names, relations):
    folder.mkdir(exist_ok=True)
    (folder / "MRCONSO.RRF").write_text("".join(names), encoding="utf-8")
    (folder / "MRREL.RRF").write_text("".join(relations), encoding="utf-8")
    return folder


def built(tmp_path, relations, names=NAMES, **settings):
    """The rows of the full set by relation, and the manifest."""
    manifest = build_medlama(
        umls(tmp_path / "META", names, relations), tmp_path / "out", MedlamaConfig(**settings)
    )
    rows = {}
    for path in sorted((tmp_path / "out").glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            rows[path.name] = [list(row.values()) for row in csv.DictReader(file)]
    return rows, manifest


def test_a_query_is_a_head_with_all_its_tails_in_the_released_layout(tmp_path):
    relations = [
        rel_row("C1 A1", "may_treat", "C3 A6"),
        rel_row("C1 A1", "may_treat", "C2 A3", sab="MED-RT"),
    ]
    rows, manifest = built(tmp_path, relations)
    expected = [
        "C1", "Aspirin", "may_treat", "['C2', 'C3']",
        "['Pain, \"acute\"', 'Pyrexia']", 'Pain, "acute" || Pyrexia',
        "C2 || C3", "2", "2", "0.0", "0.0",
    ]  # fmt: skip
    prompts = [["may_treat", "[X] may treat [Y].", "[X] might treat [Y]."]]
    assert rows == {
        "may_treat_1.csv": [expected],
        "may_treat_1_hard.csv": [expected],
        "prompts.csv": prompts,
    }
    assert (tmp_path / "out" / "may_treat_1.csv").read_text().splitlines()[0] == ",".join(COLUMNS)
    facts = {"heads": 1, "too_many_answers": 0, "full": 1, "hard": 1, "head_among_answers": 0}
    assert manifest["relations"] == {"may_treat": facts}
    assert read_record(tmp_path / "out" / "manifest.json", "built benchmark") == manifest


def test_a_row_without_atoms_has_the_preferred_names_of_its_concepts(tmp_path):
    rows, _ = built(
        tmp_path, [rel_row("C1", "may_treat", "C3"), rel_row("C1 A2", "may_treat", "C3 A99")]
    )
    assert [row[:2] + row[5:6] for row in rows["may_treat_2.csv"]] == [
        ["C1", "Acetylsalicylic acid", "Fièvre"],
        ["C1", "Aspirin", "Fièvre"],
    ]


@pytest.mark.parametrize("first", [0, 1, 2, 3])
def test_the_preferred_name_is_chosen_by_ts_then_stt_then_ispref_in_any_order(tmp_path, first):
    names = [
        conso_row("C9", "A10", "by ts", ts="S"),
        conso_row("C9", "A11", "by stt", stt="VC"),
        conso_row("C9", "A12", "by ispref", ispref="N"),
        conso_row("C9", "A13", "preferred"),
    ]
    names = names[first:] + names[:first]
    rows, _ = built(tmp_path, [rel_row("C9", "may_treat", "C2")], [*NAMES, *names])
    assert rows["may_treat_1.csv"][0][1] == "preferred"


def test_suppressed_and_non_english_rows_are_skipped_and_counted(tmp_path):
    names = [
        *NAMES,
        conso_row("C7", "A70", "Old name", suppress="O"),
        conso_row("C7", "A71", "Kept name", ts="S", stt="VO", ispref="N"),
        conso_row("C8", "A80", "Gone", suppress="E"),
        conso_row("C8", "A81", "Ido", lat="SPA"),
        conso_row("C8", "A82", "Fort", suppress="Y"),
    ]
    relations = [
        rel_row("C1 A1", "may_treat", "C2 A4"),  # a Spanish atom: the concept's English name
        rel_row("C7 A70", "may_treat", "C3"),  # an obsolete atom: what the concept has left
        rel_row("C8 A80", "may_treat", "C3"),  # nothing left
        rel_row("C1", "may_treat", "C8"),
        rel_row("C1", "may_treat", "C3", suppress="O"),
        rel_row("C1", "may_treat", "C3", sab="MSH"),
        rel_row("C1", "may_cure", "C3"),
    ]
    rows, manifest = built(tmp_path, relations, names)
    assert [(row[1], row[5]) for row in rows["may_treat_2.csv"]] == [
        ("Aspirin", 'Pain, "acute"'),
        ("Kept name", "Fièvre"),
    ]
    skipped = {reason: facts["count"] for reason, facts in manifest["skipped"].items()}
    assert skipped == {
        "suppressed relation": 1,
        "suppressed name": 3,
        "name that is not English": 2,
        "relation of a concept without an English name": 2,
    }
    example = manifest["skipped"]["relation of a concept without an English name"]["examples"][0]
    assert example == {"file": "MRREL.RRF", "line": 3, "detail": "C8"}
    assert manifest["skipped"]["suppressed relation"]["examples"][0]["line"] == 5
    assert manifest["read"] == {"relation": 7, "name": 11}


def test_a_relation_that_comes_twice_counts_once_and_one_to_itself_is_kept_but_never_hard(tmp_path):
    relations = [rel_row("C1", "may_treat", "C2")] * 3 + [rel_row("C3", "may_treat", "C3")]
    rows, manifest = built(tmp_path, relations)
    assert [row[5] for row in rows["may_treat_2.csv"]] == ['Pain, "acute"', "Fièvre"]
    assert [row[1] for row in rows["may_treat_1_hard.csv"]] == ["Aspirin"]
    assert manifest["skipped"]["duplicate relation"]["count"] == 2
    assert manifest["relations"]["may_treat"]["head_among_answers"] == 1


def test_a_query_with_more_than_ten_distinct_names_is_skipped(tmp_path):
    many = [
        conso_row(f"C1{place:02d}", f"A1{place:02d}", f"disease {place}") for place in range(11)
    ]
    twin = conso_row("C150", "A150", "disease 0")
    relations = [rel_row("C1", "may_treat", f"C1{place:02d}") for place in range(11)]
    relations += [rel_row("C2", "may_treat", f"C1{place:02d}") for place in range(10)]
    relations += [rel_row("C2", "may_treat", "C150")]
    rows, manifest = built(tmp_path, relations, [*NAMES, *many, twin])
    (row,) = rows["may_treat_1.csv"]
    assert row[1] == 'Pain, "acute"'
    # Ten names of eleven concepts: a CUI for each name, all concepts in the lists.
    assert (row[7], row[8]) == ("10", "10")
    assert "C150" in row[3] and "C150" not in row[6]
    assert manifest["relations"]["may_treat"]["too_many_answers"] == 1


def test_the_sample_depends_on_the_seed_and_not_on_the_order_of_rows(tmp_path):
    folder = write_umls(tmp_path / "META")
    config = MedlamaConfig(per_relation=10)
    build_medlama(folder, tmp_path / "first", config)
    for name in ("MRREL.RRF", "MRCONSO.RRF"):
        lines = (folder / name).read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / name).write_text("".join(reversed(lines)), encoding="utf-8")
    build_medlama(folder, tmp_path / "again", config)
    build_medlama(folder, tmp_path / "other", MedlamaConfig(per_relation=10, seed=1))
    assert (
        csv_files(tmp_path / "again")
        == csv_files(tmp_path / "first")
        != csv_files(tmp_path / "other")
    )
    assert [name for name in csv_files(tmp_path / "first") if "hard" not in name] == sorted(
        [f"{relation}_10.csv" for relation in RELATIONS] + ["prompts.csv"]
    )


def csv_files(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.csv"))}


def test_a_synthetic_umls_is_built_and_read_again(tmp_path):
    folder = write_umls(tmp_path / "META")
    manifest = build_medlama(folder, tmp_path / "out")
    for subset in ("full", "hard"):
        benchmark = read_medlama(tmp_path / "out", subset)
        counts = dict(
            zip(benchmark.relations, np.bincount(benchmark.relation_Q).tolist(), strict=True)
        )
        assert counts == {
            relation: facts[subset] for relation, facts in manifest["relations"].items()
        }
    benchmark = read_medlama(tmp_path / "out")
    # The hub of each relation has too many answers; all other heads are there.
    assert counts_of(manifest, "full") == [39] * 4
    assert counts_of(manifest, "too_many_answers") == [1] * 4
    assert not any(name.endswith(("española", "obsolete")) for name in benchmark.names)
    assert any('"so-called"' in name for name in benchmark.names)
    assert any("é" in name for name in benchmark.names)
    assert manifest["skipped"].keys() == {
        "suppressed relation",
        "suppressed name",
        "name that is not English",
        "duplicate relation",
    }
    assert all(facts["hard"] < facts["full"] for facts in manifest["relations"].values())
    assert len(manifest["without_queries"]) == 15


def counts_of(manifest, what):
    return [facts[what] for facts in manifest["relations"].values()]


def test_compressed_files_give_the_same_benchmark_as_plain_ones(tmp_path):
    folder = write_umls(tmp_path / "META", UmlsConfig(heads_per_relation=5))
    build_medlama(folder, tmp_path / "plain")
    for name in ("MRREL.RRF", "MRCONSO.RRF"):
        (folder / f"{name}.gz").write_bytes(gzip.compress((folder / name).read_bytes()))
        (folder / name).unlink()
    build_medlama(folder, tmp_path / "packed")
    assert csv_files(tmp_path / "packed") == csv_files(tmp_path / "plain")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (
            "MRREL.RRF",
            rel_row("C1", "may_treat", "C2").encode() + b"C1|A1\n",
            r"MRREL\.RRF, line 2: .*want 16 columns",
        ),
        (
            "MRCONSO.RRF",
            b"".join(row.encode() for row in NAMES) + b"C1|ENG\n",
            r"MRCONSO\.RRF, line 7: .*want 18",
        ),
        ("MRCONSO.RRF", "".join(NAMES).encode("latin-1"), r"MRCONSO\.RRF.*UTF-?8"),
        ("MRCONSO.RRF", b"", r"MRCONSO\.RRF.*[Ee]mpty"),
        (
            "MRREL.RRF",
            rel_row("C1", "may_cure", "C2").encode(),
            "none of its 1 rows is a relation of MedLAMA's",
        ),
        (
            "MRREL.RRF",
            rel_row("C1", "may_treat", "C9").encode(),
            "none of its 1 rows is a relation of MedLAMA's",
        ),
    ],
)
def test_files_of_another_layout_are_named_and_leave_nothing_behind(
    tmp_path, file, content, message
):
    folder = umls(tmp_path / "META", NAMES, [rel_row("C1", "may_treat", "C2")])
    (folder / file).write_bytes(content)
    with pytest.raises(DataError, match=message):
        build_medlama(folder, tmp_path / "out")
    (folder / file).unlink()
    with pytest.raises(DataError, match=f"holds no {file} or {file}.gz"):
        build_medlama(folder, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["META"]


def test_a_folder_of_something_else_is_never_replaced_and_a_benchmark_only_by_force(tmp_path):
    folder = umls(tmp_path / "META", NAMES, [rel_row("C1", "may_treat", "C2")])
    (tmp_path / "out").mkdir()
    build_medlama(folder, tmp_path / "out")
    with pytest.raises(StoreError, match="holds a benchmark already. Replace it with --force"):
        build_medlama(folder, tmp_path / "out")
    umls(folder, NAMES, [rel_row("C1", "may_prevent", "C2")])
    build_medlama(folder, tmp_path / "out", force=True)
    assert read_medlama(tmp_path / "out").relations == ("may_prevent",)
    with pytest.raises(StoreError, match="holds something other than a benchmark"):
        build_medlama(folder, folder, force=True)
    with pytest.raises(StoreError, match="holds something other than a benchmark"):
        build_medlama(folder, folder / "MRREL.RRF", force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["META", "out"]


def test_an_unwritable_folder_and_heads_with_too_many_answers_are_refused(tmp_path):
    folder = umls(
        tmp_path / "META",
        NAMES,
        [rel_row("C1", "may_treat", "C2"), rel_row("C1", "may_treat", "C3")],
    )
    messages = []
    with pytest.raises(ConfigError, match="out: .*MRREL.RRF is a file; want a folder"):
        build_medlama(folder, folder / "MRREL.RRF" / "out", log=messages.append)
    assert messages == []  # before UMLS is read, which takes long
    with pytest.raises(DataError, match="every head has more than 1 answers"):
        build_medlama(folder, tmp_path / "out", MedlamaConfig(max_answers=1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["META"]


def test_legacy_changes_the_hardness_and_not_the_sample(tmp_path):
    # The head ends with "fever", and the authors' code searches for it with a space.
    names = [
        *NAMES,
        conso_row("C4", "A40", "Xfever"),
        conso_row("C5", "A50", "fever"),
        conso_row("C6", "A60", "ache"),
    ]
    relations = [rel_row("C4", "may_treat", "C5"), rel_row("C4", "may_treat", "C6")]
    umls(tmp_path / "META", names, relations)
    clean = build_medlama(tmp_path / "META", tmp_path / "clean")["relations"]["may_treat"]
    legacy = build_medlama(tmp_path / "META", tmp_path / "legacy", MedlamaConfig(legacy=True))[
        "relations"
    ]["may_treat"]
    assert (clean["full"], clean["hard"]) == (1, 0)
    assert (legacy["full"], legacy["hard"]) == (1, 1)
