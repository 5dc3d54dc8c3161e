"""Sheets of predictions that experts score, and the scores compared with gold (Section 5.3).

A sheet is a CSV file with a row for each predicted name and an empty column ``score``. It does not
say which names are gold, so that it does not bias the experts. Reading a sheet needs the complete
benchmark from which it was written, since queries are identified by their index in it.
"""

import csv
import io
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from raybio.core.arrays import Integers
from raybio.core.errors import DataError
from raybio.core.files import replace_bytes, replace_text
from raybio.methods.contrastive_probe.accuracy import is_correct
from raybio.methods.contrastive_probe.benchmark.biolama import read_benchmark
from raybio.methods.contrastive_probe.benchmark.probe_benchmark import ProbeBenchmark
from raybio.methods.contrastive_probe.config import Match, Subset
from raybio.methods.contrastive_probe.plots import plot_expert_scores
from raybio.methods.contrastive_probe.published import expert_study
from raybio.store.table_rows import choose_columns, read_columns

COLUMNS = ("query_number", "relation", "query", "rank", "prediction", "score")

SCORES: Mapping[int, str] = {
    5: "perfectly answers the query",
    4: "similar to the gold answer, could somehow be the answer",
    3: "related to the query but not correct",
    2: "same domain or slight relation",
    1: "completely unrelated",
}


class ExpertScores(NamedTuple):
    """The experts' scores of predictions.

    Attributes:
        count_S2: number of predictions by score (5 first, as in ``SCORES``) and by not gold, gold.
    """

    count_S2: np.ndarray

    @property
    def num_predictions(self) -> int:
        """All scored predictions."""
        return int(self.count_S2.sum())

    @property
    def perfect_share(self) -> float:
        """Share of the predictions with score 5."""
        return float(self.count_S2[0].sum() / self.count_S2.sum())

    @property
    def gold_share(self) -> float:
        """Share of the predictions that are gold."""
        return float(self.count_S2[:, 1].sum() / self.count_S2.sum())


def write_sheet(
    path: Path,
    benchmark: ProbeBenchmark,
    predicted_QK: Integers,
    *,
    num_queries: int,
    seed: int = 0,
) -> None:
    """Write the predictions for random queries, and a guide to the scores (``<name>.txt``).

    Args:
        path: the CSV file.
        benchmark: the queries; for a sample, the sheet has their indices in the complete benchmark.
        predicted_QK: indices of predicted names, -1 for none.
        num_queries: size of the sheet in queries; the paper has 15.
        seed: of the random queries.

    Raises:
        DataError: as ``check_unscored``.
    """
    check_unscored(path)
    texts = benchmark.queries("[Y]")
    index_Q = benchmark.index_in_complete_Q
    if index_Q is None:
        index_Q = np.arange(len(texts))
    rng = np.random.default_rng(seed)
    sampled = rng.choice(len(texts), min(num_queries, len(texts)), replace=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.StringIO()
    writer = csv.writer(content)
    writer.writerow(COLUMNS)
    for query in np.sort(sampled).tolist():
        relation = benchmark.relations[benchmark.relation_Q[query]]
        for rank, name in enumerate(predicted_QK[query].tolist(), start=1):
            if name >= 0:
                prediction = benchmark.names[name]
                writer.writerow([index_Q[query], relation, texts[query], rank, prediction, ""])
    # The byte order mark makes spreadsheets read the file as UTF-8.
    replace_bytes(path, content.getvalue().encode("utf-8-sig"))
    lines = ["Score each prediction from 1 to 5."]
    lines += [f"{score}: {meaning}" for score, meaning in SCORES.items()]
    replace_text(path.with_suffix(".txt"), "\n".join(lines) + "\n")


def check_unscored(path: Path) -> None:
    """Refuse to overwrite the work of experts.

    Raises:
        DataError: if the file exists and has a score, or cannot be read as a sheet.
    """
    if not path.exists():
        return
    try:
        num_scores = sum(bool((row["score"] or "").strip()) for _, row in _rows(path))
        problem = f"has {num_scores} scores filled in" if num_scores else ""
    except DataError:
        problem = "cannot be read as a sheet, and may have scores"
    if problem:
        raise DataError(
            f"{path}: {problem}, want none where a new sheet is written. "
            "Move it elsewhere, or give another --out."
        )


def read_sheet(path: Path, benchmark: ProbeBenchmark, *, match_cui: bool = False) -> ExpertScores:
    """Read a filled sheet, with rows in any order and commas, semicolons or tabs between columns.

    Args:
        path: the CSV file.
        benchmark: the complete benchmark from which it was written.
        match_cui: count a name that shares a concept with an answer as gold.

    Raises:
        DataError: for a file that is missing, not UTF-8, no table, or without rows. With file and
            line for a missing column, a score other than 1 to 5, a query or name that is not in the
            benchmark, or a repeated prediction.
    """
    index_by_name = {name: index for index, name in enumerate(benchmark.names)}
    scores: list[int] = []
    line_by_pair: dict[tuple[int, int], int] = {}
    for line, row in _rows(path):
        where = f"{path}, line {line}"
        pair = _pair(row, index_by_name, benchmark, where)
        if pair in line_by_pair:
            raise DataError(
                f"{where}: line {line_by_pair[pair]} has the same prediction; want it once"
            )
        line_by_pair[pair] = line
        scores.append(_score(row["score"], where))
    if not scores:
        raise DataError(f"{path}: has no predictions; want a sheet that was written by --sheet")
    max_predictions = int(np.bincount([query for query, _ in line_by_pair]).max())
    predicted_QK = np.full((len(benchmark.relation_Q), max_predictions), -1, dtype=np.int64)
    num_by_query: dict[int, int] = {}
    positions = []
    for query, name in line_by_pair:
        column = num_by_query.get(query, 0)
        num_by_query[query] = column + 1
        predicted_QK[query, column] = name
        positions.append((query, column))
    is_gold_QK = is_correct(benchmark, predicted_QK, "cui" if match_cui else "name")
    count_S2 = np.zeros((len(SCORES), 2), dtype=np.int64)
    for score, position in zip(scores, positions, strict=True):
        count_S2[list(SCORES).index(score), int(is_gold_QK[position])] += 1
    return ExpertScores(count_S2)


def write_expert_scores(
    filled: Path, folder: Path, subset: Subset, out: Path, *, match: Match = "name"
) -> str:
    """Read a filled sheet and write ``scores.md`` and ``scores.png``; return the Markdown.

    Args:
        filled: the sheet.
        folder: the benchmark from which it was written.
        subset: the query set from which it was written.
        out: folder to write in.
        match: what counts as gold.

    Raises:
        DataError: if the benchmark or the sheet cannot be read.
    """
    benchmark = read_benchmark(folder, subset)
    expert_scores = read_sheet(filled, benchmark, match_cui=match == "cui")
    plot_expert_scores(expert_scores.count_S2, list(SCORES), out / "scores.png")
    text = sheet_markdown(expert_scores)
    replace_text(out / "scores.md", text)
    return text


def sheet_markdown(expert_scores: ExpertScores) -> str:
    """Return the confusion matrix of scores and gold (Figure 8) and two shares, as Markdown."""
    lines = ["| score | not gold | gold |", "| :-- | --: | --: |"]
    counts = expert_scores.count_S2.tolist()
    for (score, meaning), (num_other, num_gold) in zip(SCORES.items(), counts, strict=True):
        lines.append(f"| {score}: {meaning} | {num_other} | {num_gold} |")
    published = expert_study()
    summary = (
        f"{expert_scores.num_predictions} predictions: {expert_scores.perfect_share:.2%} scored 5, "
        f"{expert_scores.gold_share:.2%} gold. Published: of {published['num_predictions']}, "
        f"{published['perfect_percent']:.2f}% scored 5, {published['gold_percent']:.2f}% gold."
    )
    return "\n".join([*lines, "", summary]) + "\n"


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, row) of the rows that are not empty: spreadsheets may append empty ones."""
    select = partial(choose_columns, path, required=COLUMNS)
    for block in read_columns(path, f"the columns {', '.join(COLUMNS)}", select):
        for line, *values in zip(block.lines, *block.columns, strict=True):
            if any(value.strip() for value in values):
                yield line, dict(zip(COLUMNS, values, strict=True))


def _pair(
    row: Mapping[str, str],
    index_by_name: Mapping[str, int],
    benchmark: ProbeBenchmark,
    where: str,
) -> tuple[int, int]:
    """Return the indices of the query and the predicted name of a row."""
    text = (row["query_number"] or "").strip()
    num_queries = len(benchmark.relation_Q)
    if not (text.isascii() and text.isdigit() and int(text) < num_queries):
        raise DataError(
            f"{where}: query_number is {text!r}, "
            f"want a number below {num_queries} of the same benchmark"
        )
    query = int(text)
    head = benchmark.names[benchmark.head_Q[query]]
    relation = benchmark.relations[benchmark.relation_Q[query]]
    if head not in (row["query"] or "") or row["relation"] != relation:
        raise DataError(
            f"{where}: query {text} of this benchmark is about {head!r} and {relation}, and the "
            f"sheet says {row['query']!r} and {row['relation']}; read it with the benchmark and "
            "the query set from which it was written"
        )
    if row["prediction"] not in index_by_name:
        raise DataError(
            f"{where}: {row['prediction']!r} is no name of this benchmark; "
            "leave predictions as they are"
        )
    return query, index_by_name[row["prediction"]]


def _score(text: str | None, where: str) -> int:
    score = (text or "").strip()
    if score not in {str(valid) for valid in SCORES}:
        raise DataError(f"{where}: score is {score!r}, want one of 1 to 5 for every prediction")
    return int(score)
