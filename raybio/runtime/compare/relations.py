"""Relations of rivals and compared runs to a model: a table with one word for each of them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raybio.core.table_layout import TableLayout
from raybio.runtime.compare.run_test import CANNOT_BE_COMPARED, MIN_UNITS

PASSES = "passes"
REACHES = "reaches"
BELOW = "below"

SHOWN = {PASSES: "higher", REACHES: "unclear", BELOW: "lower"}
"""Stored word -> what tables show. The words stay, since records of runs have them."""

INITIAL = "initial"
"""Row of the encoder before training."""

UNKNOWN = "–"
"""Cell without a relation: the rows were not compared, or the score is undefined."""


@dataclass(frozen=True)
class Relation:
    """Whether a row of the table has a higher score than a model.

    Attributes:
        row: label of the rival or the compared runs.
        model: label of the run, or the repetitions, that it is compared with.
        split: split of the final evaluation.
        measure: the score.
        word: ``PASSES`` (the row is higher), ``REACHES`` (unclear), ``BELOW`` (lower) or
            ``CANNOT_BE_COMPARED``.
        p_holm: corrected p-value of the difference, where it was tested; else None.
        is_trained: whether the row belongs to compared runs, not to a rival.
    """

    row: str
    model: str
    split: str
    measure: str
    word: str
    p_holm: float | None = None
    is_trained: bool = False


def word_of(low: float, high: float) -> str:
    """Return the relation of a row, from the interval of the model minus the row."""
    if math.isnan(low) or math.isnan(high):
        return CANNOT_BE_COMPARED
    if high < 0:
        return PASSES
    return REACHES if low <= 0 else BELOW


def relations_table(relations: Sequence[Relation], layout: TableLayout) -> list[list[str]]:
    """Return a line for each row; a column for each model and split; empty without relations."""
    if not relations:
        return []
    columns = list(dict.fromkeys((each.model, each.split) for each in relations))
    has_models = len({model for model, _ in columns}) > 1
    header = [f"compared with {'each' if has_models else 'this'} run"]
    for model, split in columns:
        title = layout.splits[split]
        header.append(f"{model}, {title}" if has_models else title)
    lines = [header]
    for row in dict.fromkeys(each.row for each in relations):
        cells = []
        for column in columns:
            in_cell = [
                each for each in relations if each.row == row and (each.model, each.split) == column
            ]
            cells.append(_cell(in_cell, layout))
        lines.append([row, *cells])
    return lines


def relations_title(relations: Sequence[Relation]) -> str:
    """Return the title of the table."""
    models = list(dict.fromkeys(each.model for each in relations))
    return f"Rivals of {models[0]}" if len(models) == 1 else "Rivals of each run"


def relations_legend(relations: Sequence[Relation]) -> str:
    """Return what the cells of ``relations_table`` mean."""
    text = (
        "higher: the rival or compared run in this row has the higher score, by the 95 % interval "
        "of the difference; unclear: the interval includes 0; lower: the row has the lower score. "
        "A cell that names scores is lower in the others"
    )
    if any(each.word == CANNOT_BE_COMPARED for each in relations):
        text += (
            f". Cannot be compared: there is no interval, or there are fewer than {MIN_UNITS} units"
        )
    if any(each.p_holm is not None for each in relations):
        text += ". p: the largest of these scores, of rows with a test over seeds (Holm)"
    return text


def verdicts(relations: Sequence[Relation], layout: TableLayout) -> list[str]:
    """Return lines, without a full stop, on where each model stands among its rivals.

    They use the first measure on the split that counts most, the last compared one. Rivals come
    first, then compared runs. If rivals are higher than the model, the lines advise what to do. If
    the model is not clearly better than its initial encoder, a line of its own says so.
    """
    of_splits = {each.split for each in relations}
    splits = [split for split in layout.compared if split in of_splits]
    if not splits:
        return []
    measure = next(iter(layout.measures))
    models = dict.fromkeys(each.model for each in relations)
    remarks = []
    for model in models:
        rows_by_word: dict[str, list[str]] = {}
        runs_by_word: dict[str, list[str]] = {}
        for each in relations:
            is_meant = (each.model, each.split, each.measure) == (model, splits[-1], measure)
            if not is_meant or each.row in layout.oracles:
                continue
            if each.is_trained:
                runs_by_word.setdefault(each.word, []).append(each.row)
            else:
                # Of repetitions, the row is "initial, 3 runs".
                name = each.row.partition(", ")[0]
                rows_by_word.setdefault(each.word, []).append(name)
        standing = _standing(rows_by_word)
        if standing:
            where = f"{layout.splits[splits[-1]]} ({layout.measures[measure]})"
            advice = f". {layout.if_passed}" if layout.if_passed and PASSES in rows_by_word else ""
            remarks.append(f"{model}, {where}: {standing}{advice}")
            if runs_by_word:
                remarks.append(f"{model}, {where}: {'; '.join(_named(runs_by_word))}")
            for word, words in ((PASSES, "worse"), (REACHES, "not clearly better")):
                if INITIAL in rows_by_word.get(word, ()):
                    remarks.append(f"{model}: {words} than its initial encoder on {where}")
    return remarks


def _standing(rows_by_word: Mapping[str, Sequence[str]]) -> str:
    """Return a text such as ``lower than chance; higher than the other 7 rivals``."""
    if rows_by_word.keys() <= {CANNOT_BE_COMPARED}:
        return ""
    num_below = len(rows_by_word.get(BELOW, []))
    parts = _named({word: rows for word, rows in rows_by_word.items() if word != BELOW})
    if num_below:
        rivals = "rival" if num_below == 1 else f"{num_below} rivals"
        which = f"the other {rivals}" if parts else f"its {rivals}"
        parts.append(f"higher than {which}")
    return "; ".join(parts)


def _named(rows_by_word: Mapping[str, Sequence[str]]) -> list[str]:
    """Return texts such as ``lower than chance``, the rows above the model first."""
    words_by_word = {
        PASSES: "lower than",
        REACHES: "not clearly different from",
        CANNOT_BE_COMPARED: "not comparable with",
        BELOW: "higher than",
    }
    return [
        f"{words} {', '.join(rows_by_word[word])}"
        for word, words in words_by_word.items()
        if word in rows_by_word
    ]


def _cell(in_cell: Sequence[Relation], layout: TableLayout) -> str:
    """Return a text such as ``lower (p ≤ 0.01)`` or ``higher in AP; unclear in MRR``."""
    parts: list[str] = []
    for word in (PASSES, REACHES, CANNOT_BE_COMPARED, BELOW):
        with_word = [each for each in in_cell if each.word == word]
        if not with_word or (word == BELOW and parts):
            continue
        part = SHOWN.get(word, word)
        if len(with_word) < len(in_cell):
            part += f" in {', '.join(layout.measures[each.measure] for each in with_word)}"
        p_values = [each.p_holm for each in with_word if each.p_holm is not None]
        if len(p_values) == len(with_word) and word in (PASSES, BELOW):
            part += f" (p ≤ {max(p_values):.2g})"
        parts.append(part)
    return "; ".join(parts) or UNKNOWN
