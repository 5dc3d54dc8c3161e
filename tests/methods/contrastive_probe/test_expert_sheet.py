import csv
from dataclasses import replace

import numpy as np
import pytest

from raybio.core.errors import DataError
from raybio.methods.contrastive_probe.accuracy import is_correct
from raybio.methods.contrastive_probe.expert_sheet import (
    COLUMNS,
    read_sheet,
    sheet_markdown,
    write_sheet,
)
from tests.methods.contrastive_probe.small_benchmark import random_benchmark

BENCHMARK = random_benchmark()
BENCHMARK = replace(BENCHMARK, prompts=tuple(f"query, {prompt} é" for prompt in BENCHMARK.prompts))
TEXTS = BENCHMARK.queries("[Y]")
PREDICTED = np.stack([np.random.default_rng(n).permutation(40)[:10] for n in range(60)])


@pytest.fixture
def sheet(tmp_path):
    path = tmp_path / "sheet.csv"
    write_sheet(path, BENCHMARK, PREDICTED, num_queries=15)
    return path


def rows_of(path):
    with path.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def rewrite(path, rows, columns=COLUMNS, **layout):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", **layout)
        writer.writeheader()
        writer.writerows(rows)


def test_a_sheet_has_the_predictions_of_random_queries_and_does_not_reveal_gold(sheet):
    rows = rows_of(sheet)
    assert len(rows) == 150 and len({row["query_number"] for row in rows}) == 15
    assert set(rows[0]) == set(COLUMNS)
    for row in rows:
        query = int(row["query_number"])
        assert row["prediction"] == BENCHMARK.names[PREDICTED[query, int(row["rank"]) - 1]]
        assert (row["query"], row["score"]) == (TEXTS[query], "")
        assert row["relation"] == BENCHMARK.relations[BENCHMARK.relation_Q[query]]
    assert "5: perfectly answers the query" in sheet.with_suffix(".txt").read_text()


@pytest.mark.parametrize("match_cui", [False, True])
def test_a_filled_sheet_gives_scores_against_gold_in_any_order_of_rows(sheet, match_cui):
    rows = rows_of(sheet)
    expected = np.zeros((5, 2), int)
    is_gold = is_correct(BENCHMARK, PREDICTED, "cui" if match_cui else "name")
    for number, row in enumerate(rows):
        row["score"] = str(number % 5 + 1)
        expected[4 - number % 5, int(is_gold[int(row["query_number"]), int(row["rank"]) - 1])] += 1
    rewrite(sheet, rows[::-1])
    expert_scores = read_sheet(sheet, BENCHMARK, match_cui=match_cui)
    np.testing.assert_array_equal(expert_scores.count_S2, expected)
    assert expert_scores.perfect_share == pytest.approx(1 / 5)
    assert expert_scores.gold_share == pytest.approx(expected[:, 1].sum() / 150)
    assert "150 predictions: 20.00% scored 5" in sheet_markdown(expert_scores)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("score", "", "line 4: score is '', want one of 1 to 5"),
        ("score", "6", "line 4: score is '6', want one of 1 to 5"),
        ("score", "4.5", "line 4: score is '4.5', want one of 1 to 5"),
        ("query_number", "60", "line 4: query_number is '60', want a number below 60"),
        ("query_number", "²", "line 4: query_number is '²', want a number below 60"),
        (
            "query",
            "a cough is what?",
            "line 4: query .* of this benchmark is about .* the sheet says 'a cough is what",
        ),
        (
            "relation",
            "cures",
            "line 4: query .* of this benchmark is about .* the sheet says .* and cures; read it",
        ),
        ("prediction", "aspirin", "line 4: 'aspirin' is no name of this benchmark"),
    ],
)
def test_a_badly_filled_sheet_is_refused_with_its_line(sheet, column, value, message):
    rows = rows_of(sheet)
    for row in rows:
        row["score"] = " 3 "
    rows[2][column] = value
    rewrite(sheet, rows)
    with pytest.raises(DataError, match=message.replace("(", r"\(")):
        read_sheet(sheet, BENCHMARK)


def test_queries_of_a_sample_have_their_numbers_in_the_complete_benchmark(tmp_path):
    path = tmp_path / "sheet.csv"
    sample = replace(BENCHMARK, index_in_complete_Q=np.arange(60)[::-1])
    write_sheet(path, sample, PREDICTED, num_queries=60)
    for row in rows_of(path):
        assert row["query"] == TEXTS[59 - int(row["query_number"])]


def test_a_sheet_that_has_a_score_or_cannot_be_read_is_not_overwritten(sheet):
    write_sheet(sheet, BENCHMARK, PREDICTED, num_queries=3)
    rows = rows_of(sheet)
    assert len(rows) == 30
    rows[7]["score"] = "4"
    rewrite(sheet, rows)
    with pytest.raises(
        DataError, match="has 1 scores filled in, want none where a new sheet is written. Move it"
    ):
        write_sheet(sheet, BENCHMARK, PREDICTED, num_queries=3)
    assert rows_of(sheet) == rows
    sheet.write_bytes("query_number;é".encode("latin-1"))
    with pytest.raises(DataError, match="cannot be read as a sheet, and may have scores"):
        write_sheet(sheet, BENCHMARK, PREDICTED, num_queries=3)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_sheet_is_read_as_spreadsheets_save_it(sheet, delimiter):
    rows = [row | {"score": "5"} for row in rows_of(sheet)]
    empty = dict.fromkeys(COLUMNS, "")
    rewrite(sheet, [*rows, empty, empty | {"score": " "}], delimiter=delimiter)
    assert read_sheet(sheet, BENCHMARK).num_predictions == 150


def test_a_sheet_without_a_column_without_rows_or_with_a_row_twice_or_in_latin_1_is_refused(sheet):
    rows = [row | {"score": "1"} for row in rows_of(sheet)]
    rewrite(sheet, [*rows, rows[0]])
    with pytest.raises(DataError, match="line 152: line 2 has the same prediction"):
        read_sheet(sheet, BENCHMARK)
    rewrite(sheet, [])
    with pytest.raises(DataError, match="has no predictions"):
        read_sheet(sheet, BENCHMARK)
    rewrite(sheet, rows, COLUMNS[:-1])
    with pytest.raises(DataError, match="has no column 'score'"):
        read_sheet(sheet, BENCHMARK)
    sheet.write_text(",".join(COLUMNS) + '\n0,"' + "x" * 200_000)
    with pytest.raises(DataError, match=r"line .: cannot be read as a table"):
        read_sheet(sheet, BENCHMARK)
    sheet.write_bytes("query_number;é".encode("latin-1"))
    with pytest.raises(DataError, match="is not UTF-8"):
        read_sheet(sheet, BENCHMARK)
