"""Judging by experts (Contrastive-Probe, section 5.3): a sheet of predictions to be scored, and scores beside gold.

The sheet is a CSV file with a row a predicted name and an empty column ``score``; whether a name is gold is not in it,
so that nobody is led. Reading needs the benchmark again, all of it: queries go by their numbers there.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from raybio.core.errors import DataError
from raybio.methods.contrastive_probe.accuracy import Integers, Questions, right

COLUMNS = ("query_number", "relation", "query", "rank", "prediction", "score")


SCORES: Mapping[int, str] = {
    5: "perfectly answers the query",
    4: "similar to the gold answer, could somehow be the answer",
    3: "related to the query but not correct",
    2: "same domain or slight relation",
    1: "completely unrelated",
}


class Judged(NamedTuple):
    """What experts said of predictions.

    Attributes:
        count_S2: predictions by score (5 first, as in ``SCORES``), those that are not gold and those that are.
    """

    count_S2: np.ndarray

    @property
    def num_predictions(self) -> int:
        """All that were scored."""
        return int(self.count_S2.sum())

    @property
    def perfect_share(self) -> float:
        """Share that was judged 5."""
        return float(self.count_S2[0].sum() / self.count_S2.sum())

    @property
    def gold_share(self) -> float:
        """Share that the benchmark knows to be right."""
        return float(self.count_S2[:, 1].sum() / self.count_S2.sum())


def write_sheet(
    path: Path,
    questions: Questions,
    texts: Sequence[str],
    predicted_QK: Integers,
    *,
    num_queries: int,
    number_in_whole_Q: Integers | None = None,
    seed: int = 0,
) -> None:
    """Write the predictions for queries drawn at random; the scores' meaning stands in a file beside it.

    Args:
        path: the CSV file; ``<name>.txt`` is the guide.
        questions: the benchmark.
        texts: its queries in words.
        predicted_QK: predicted names, -1 for none.
        num_queries: how many queries; the paper has 15.
        number_in_whole_Q: if ``questions`` are some of a benchmark's, which ones; None: they are all.
        seed: of the draw.

    Raises:
        DataError: as ``check_unscored``.
    """
    check_unscored(path)
    number_Q = np.arange(len(texts)) if number_in_whole_Q is None else number_in_whole_Q
    drawn = np.random.default_rng(seed).choice(
        len(texts), min(num_queries, len(texts)), replace=False
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    # The mark makes spreadsheets take it for UTF-8.
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for query in np.sort(drawn).tolist():
            relation = questions.relations[questions.relation_Q[query]]
            for place, name in enumerate(predicted_QK[query].tolist()):
                if name >= 0:
                    row = [
                        number_Q[query],
                        relation,
                        texts[query],
                        place + 1,
                        questions.names[name],
                        "",
                    ]
                    writer.writerow(row)
    guide = [f"{score}: {meaning}\n" for score, meaning in SCORES.items()]
    path.with_suffix(".txt").write_text(
        "".join(["Score each prediction from 1 to 5.\n", *guide]), encoding="utf-8"
    )


def check_unscored(path: Path) -> None:
    """Refuse to write over experts' work.

    Raises:
        DataError: if the file is there and has a score, or is none that can be read as a sheet.
    """
    if not path.exists():
        return
    try:
        num_scores = sum(bool((row["score"] or "").strip()) for _, row in _rows(path))
        found = f"has {num_scores} scores filled in" if num_scores else ""
    except DataError:
        found = "cannot be read as a sheet, and may have scores"
    if found:
        raise DataError(
            f"{path}: {found}, want none where a new sheet is written. Move it elsewhere, or give another --out."
        )


def read_sheet(path: Path, questions: Questions, *, match_cui: bool = False) -> Judged:
    """Read a filled sheet; rows may stand in any order, and columns between commas, semicolons or tabs.

    Args:
        path: the CSV file.
        questions: the benchmark from which it was written.
        match_cui: count a name that shares a concept with an answer as gold.

    Raises:
        DataError: for a file that is not there or not UTF-8; naming file and line, for missing columns, a score that is
            none of 1 to 5 or missing, a query or name that the benchmark does not have, or a prediction that stands
            there twice; for a file that is no table, or a sheet without rows.
    """
    number_by_name = {name: number for number, name in enumerate(questions.names)}
    scores: list[int] = []
    pairs: dict[tuple[int, int], int] = {}
    for line, row in _rows(path):
        pair = _pair(row, number_by_name, questions, f"{path}, line {line}")
        if pair in pairs:
            raise DataError(
                f"{path}, line {line}: the same prediction stands in line {pairs[pair]}; want it once"
            )
        pairs[pair] = line
        scores.append(_score(row["score"], f"{path}, line {line}"))
    if not scores:
        raise DataError(f"{path}: has no predictions; want a sheet that was written by --sheet")
    predicted_QK = np.full((len(questions.relation_Q), _most(pairs)), -1, dtype=np.int64)
    place_by_query: dict[int, int] = {}
    places = []
    for query, name in pairs:
        place = place_by_query.get(query, 0)
        place_by_query[query] = place + 1
        predicted_QK[query, place] = name
        places.append((query, place))
    is_gold_QK = right(questions, predicted_QK, "cui" if match_cui else "name")
    count_S2 = np.zeros((len(SCORES), 2), dtype=np.int64)
    for score, where in zip(scores, places, strict=True):
        count_S2[list(SCORES).index(score), int(is_gold_QK[where])] += 1
    return Judged(count_S2)


def sheet_markdown(judged: Judged) -> str:
    """The confusion matrix (the paper's Figure 8) and the two shares, as Markdown."""
    lines = ["| score | not gold | gold |", "| :-- | --: | --: |"]
    for (score, meaning), (other, gold) in zip(
        SCORES.items(), judged.count_S2.tolist(), strict=True
    ):
        lines.append(f"| {score}: {meaning} | {other} | {gold} |")
    total = (
        f"{judged.num_predictions} predictions: {judged.perfect_share:.2%} judged 5, {judged.gold_share:.2%} gold. "
        "Published: of 150, 22.00% judged 5, 8.67% gold."
    )
    return "\n".join([*lines, "", total]) + "\n"


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(line, row) of all that is filled in: spreadsheets may save empty rows behind the last one."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}: cannot be read ({error}); want a CSV file saved as UTF-8"
        ) from error
    # Spreadsheets divide columns by what the country does.
    reader = csv.DictReader(
        io.StringIO(text), delimiter=max(",;\t", key=text.partition("\n")[0].count)
    )
    try:
        missing = set(COLUMNS) - set(reader.fieldnames or ())
        if missing:
            raise DataError(
                f"{path}: has no column {', '.join(sorted(missing))}; want {', '.join(COLUMNS)}"
            )
        for row in reader:
            if any((row[column] or "").strip() for column in COLUMNS):
                yield reader.line_num, row
    except csv.Error as error:
        raise DataError(
            f"{path}, line {reader.line_num}: is no CSV ({error}); save the sheet anew as CSV"
        ) from None


def _most(pairs: Mapping[tuple[int, int], int]) -> int:
    """Most predictions of a query."""
    return int(np.bincount([query for query, _ in pairs]).max())


def _pair(
    row: Mapping[str, str], number_by_name: Mapping[str, int], questions: Questions, where: str
) -> tuple[int, int]:
    text, num_queries = (row["query_number"] or "").strip(), len(questions.relation_Q)
    if not (text.isascii() and text.isdigit() and int(text) < num_queries):
        raise DataError(
            f"{where}: query_number is {text!r}, want a number below {num_queries} of the same benchmark"
        )
    head = questions.names[questions.head_Q[int(text)]]
    relation = questions.relations[questions.relation_Q[int(text)]]
    if head not in (row["query"] or "") or row["relation"] != relation:
        raise DataError(
            f"{where}: query {text} of this benchmark is about {head!r} and {relation}, and the sheet says "
            f"{row['query']!r} and {row['relation']}; read it with the benchmark and the query set from which it was "
            "written"
        )
    if row["prediction"] not in number_by_name:
        raise DataError(
            f"{where}: {row['prediction']!r} is no name of this benchmark; leave predictions as they are"
        )
    return int(text), number_by_name[row["prediction"]]


def _score(text: str | None, where: str) -> int:
    score = (text or "").strip()
    if score not in {str(number) for number in SCORES}:
        raise DataError(f"{where}: score is {score!r}, want one of 1 to 5 for every prediction")
    return int(score)
