"""Scores of entities and relations over cross-validation folds, with the published ones."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from raybio.core.final_report import CHARACTERS
from raybio.core.markdown import markdown_table
from raybio.core.published import published
from raybio.core.table_layout import UNDEFINED, UNFINISHED, unfinished_remarks
from raybio.methods.relation_graphs.method import METHOD
from raybio.methods.relation_graphs.rivals import LOOK_UP
from raybio.ops.significance import DifferenceTest, Interval, holm, t_mean

MEASURES = {
    "ner_f1": "NER",
    "re_f1": "RE",
    "re_legacy_f1": "RE, legacy",
    "re_minus_f1": "RE-",
    "probe_precision": "probe P",
    "probe_recall": "probe R",
    "probe_f1": "probe F1",
    "graph_accuracy": "graphs",
    "spert_ner_f1": "NER, SpERT",
    "spert_re_f1": "RE, SpERT",
    "spert_boundaries_f1": "RE without NEC, SpERT",
}
"""Measures of the paper's Tables 4 (with both ways of counting strict RE), 3 and 2, and SpERT's."""


PUBLISHED: dict[str, dict[str, float]] = {
    f"the paper: {model}": scores
    for model, scores in published("raybio.methods.relation_graphs")["folds"].items()
}
"""Row of the table -> the paper's scores on ADE."""


LEGEND = (
    "In percent, mean ± standard deviation over the folds' test sentences, as in the paper, and "
    "from three folds on the 95 % interval with folds as units (Student's t, corrected for the "
    "training sentences that folds share). 'chance': the most "
    "frequent labels of training for all words and pairs; 'look-up': the usual tag of a word and "
    "the usual relation of two entity types; 'character 2-4-grams': the same neighbors over the "
    "letters of words; 'untuned': the encoder as it came; 'a + "
    "b': relations by a, entities by b. Validation sentences choose numbers of neighbors and the "
    "class weight of the probe for each row and fold; 'fixed settings': those of the runs. "
    "Macro F1 of entities (NER), of relations whose entities "
    "are right too (RE; legacy: as the authors' code counts them) and of pairs of words alone "
    "(RE-). 'probe': a linear classifier of pairs; 'graphs': how often the true graph is the "
    "nearest. 'SpERT': macro F1 by its conventions, over all annotated entities; of "
    "the published row it is not known whether overlapping entities count."
)


UNTUNED = "untuned"
"""Row of the encoder before training."""

FIXED = ", fixed settings"
"""Suffix of rows with the runs' settings; in other rows, validation sentences choose settings."""

CHANCE = "chance"

RIVALS = (LOOK_UP, CHARACTERS, UNTUNED)
"""Rows that need no training, in the order of the table."""

MIN_FOLDS = 3
"""With fewer folds there are no intervals."""

Scores = Mapping[str, float]


def mean_scores(scores_of_seeds: Sequence[Scores]) -> dict[str, float]:
    """Return the mean over the seeds of a fold, for each score that all seeds have."""
    first = scores_of_seeds[0]
    common = [name for name in first if all(name in scores for scores in scores_of_seeds)]
    return {name: float(np.mean([scores[name] for scores in scores_of_seeds])) for name in common}


def over_folds(scores_by_fold: Mapping[int, Scores]) -> dict[str, tuple[float, float]]:
    """Return mean and sample standard deviation of each measure that all folds have."""
    common = [
        name for name in MEASURES if all(name in scores for scores in scores_by_fold.values())
    ]
    summary = {}
    for name in common:
        values = np.array([scores[name] for scores in scores_by_fold.values()])
        summary[name] = (
            float(values.mean()),
            float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        )
    return summary


class FoldDifference(NamedTuple):
    """The difference of two models over the folds of a cross-validation.

    Attributes:
        one: row of the first model.
        two: row of the second model.
        measure: the score.
        difference: ``one`` minus ``two``, with its 95 % interval.
        p_holm: two-sided p, corrected for all differences of the table.
    """

    one: str
    two: str
    measure: str
    difference: Interval
    p_holm: float


def fold_differences(scores: Mapping[str, Mapping[int, Scores]]) -> list[FoldDifference]:
    """Return the first trained model minus each other row, fold by fold.

    Folds are the units, and their training rows overlap (``t_mean``). There is no difference for
    fewer than three common folds, or for scores that a fold lacks. Chance and rows with fixed
    settings are not tested.

    Args:
        scores: model -> fold -> scores; chance and ``RIVALS`` are not trained.
    """
    trained = _trained_rows(scores)
    if not trained:
        return []
    tests = []
    for other in [*_rival_rows(scores), *trained[1:]]:
        for measure in METHOD.table.measures:
            test = _paired_test(scores, trained[0], other, measure)
            if test is not None:
                tests.append((other, measure, test))
    p_holm = holm([test.p for _, _, test in tests])
    return [
        FoldDifference(trained[0], other, measure, test.difference, float(p))
        for (other, measure, test), p in zip(tests, p_holm, strict=True)
    ]


def reached_rows(scores: Mapping[str, Mapping[int, Scores]]) -> list[str]:
    """Return a sentence for each rival that is not lower than a trained model in a score.

    A rival is higher if the 95 % interval of the paired difference lies on its side. If the
    interval includes 0, the two are not clearly different.

    Args:
        scores: as for ``fold_differences``.
    """
    remarks = []
    for model in _trained_rows(scores):
        for rival in _rival_rows(scores):
            measures_by_relation: dict[str, list[str]] = {}
            for measure, title in METHOD.table.measures.items():
                test = _paired_test(scores, model, rival, measure)
                if test is not None and test.difference.low <= 0:
                    is_higher = test.difference.high < 0
                    relation = "higher than" if is_higher else "not clearly different from"
                    measures_by_relation.setdefault(relation, []).append(title)
            for relation, titles in measures_by_relation.items():
                remarks.append(f"{rival} is {relation} {model} in {', '.join(titles)}.")
    return remarks


def _trained_rows(scores: Mapping[str, Mapping[int, Scores]]) -> list[str]:
    rows = [row for row in scores if row != CHANCE and not row.endswith(FIXED)]
    return [row for row in rows if row not in RIVALS]


def _rival_rows(scores: Mapping[str, Mapping[int, Scores]]) -> list[str]:
    return [row for row in RIVALS if row in scores]


def _paired_test(
    scores: Mapping[str, Mapping[int, Scores]], one: str, two: str, measure: str
) -> DifferenceTest | None:
    """Test one row minus another; None if fewer than three common folds have the measure."""
    num_folds = max(len(by_fold) for by_fold in scores.values())
    folds = sorted(scores[one].keys() & scores[two].keys())
    if len(folds) < MIN_FOLDS:
        return None
    values = []
    for fold in folds:
        value = scores[one][fold].get(measure, math.nan)
        values.append(value - scores[two][fold].get(measure, math.nan))
    if any(math.isnan(value) for value in values):
        return None
    return t_mean(values, overlap=1 / (num_folds - 1))


def fold_table(
    scores: Mapping[str, Mapping[int, Scores]],
    rows_of_paper: Sequence[str] = (),
    unfinished: Mapping[str, str] | None = None,
    num_seeds: int = 1,
) -> str:
    """Return a table with one row per model: percent, mean ± deviation over its folds.

    Below it are the differences of the first trained model from the others, if there are any;
    remarks where rows without training reach a trained model; and why trainings are not finished.

    Args:
        scores: model -> fold -> scores.
        rows_of_paper: keys of ``PUBLISHED`` to append.
        unfinished: row -> why one of its trainings is not finished.
        num_seeds: number of seeds over which scores of trained models on a fold are averaged.
    """
    unfinished = unfinished or {}
    rows = []
    # Rows without a training, such as chance, have every fold of the store.
    num_folds = max(len(by_fold) for by_fold in scores.values())
    for model, by_fold in scores.items():
        summary = over_folds(by_fold)
        mark = UNFINISHED if model.removesuffix(FIXED) in unfinished else ""
        cells = [model + mark, str(len(by_fold))]
        for name in MEASURES:
            if name not in summary:
                cells.append("")
                continue
            mean, deviation = summary[name]
            if math.isnan(mean):
                cells.append(UNDEFINED)
                continue
            cells.append(f"{100 * mean:.2f} ± {100 * deviation:.2f}")
            if len(by_fold) >= MIN_FOLDS:
                values = [fold_scores[name] for fold_scores in by_fold.values()]
                _, low, high = t_mean(values, overlap=1 / (num_folds - 1)).difference
                cells[-1] += f" [{100 * low:.2f}, {100 * high:.2f}]"
        rows.append(cells)
    for name in rows_of_paper:
        row = PUBLISHED[name]
        rows.append(
            [
                name,
                "10",
                *(f"{100 * row[measure]:.2f}" if measure in row else "" for measure in MEASURES),
            ]
        )
    table = markdown_table(["", "folds", *MEASURES.values()], rows)
    remarks = [f"{remark}." for remark in unfinished_remarks(unfinished)]
    remarks += _missing_remarks(scores)
    below = [*_below(fold_differences(scores), num_seeds), *reached_rows(scores), *remarks]
    return "\n\n".join([table, LEGEND, *below])


def _missing_remarks(scores: Mapping[str, Mapping[int, Scores]]) -> list[str]:
    """Return remarks on means that are missing because folds lack the score, such as of graphs."""
    remarks = []
    for model, by_fold in scores.items():
        for name, title in MEASURES.items():
            missing = [str(fold) for fold, own in by_fold.items() if name not in own]
            if missing and len(missing) < len(by_fold):
                folds = f"fold{'s' * (len(missing) > 1)} {', '.join(missing)}"
                remarks.append(
                    f"{model}: no mean of {title}, which {folds} of the store cannot have."
                )
    return remarks


def _below(differences: Sequence[FoldDifference], num_seeds: int) -> list[str]:
    """Return the table of differences, with an explanation."""
    if not differences:
        return []
    measures = METHOD.table.measures
    cells_by_pair: dict[str, dict[str, str]] = {}
    for one, two, measure, (value, low, high), p_holm in differences:
        text = f"{100 * value:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}], p = {p_holm:.2g}"
        cells_by_pair.setdefault(f"{one} minus {two}", {})[measure] = text
    rows = [
        [pair, *(cells.get(measure, "") for measure in measures)]
        for pair, cells in cells_by_pair.items()
    ]
    seeds_text = "One seed" if num_seeds == 1 else f"Means over {num_seeds} seeds"
    about = (
        f"Differences over the same folds; p corrected for {len(differences)} tests (Holm). "
        f"{seeds_text} of training a fold."
    )
    return [markdown_table(["difference", *measures.values()], rows), about]
