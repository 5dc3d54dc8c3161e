"""Scores of entities and relations over cross-validation folds, with the published ones."""

from collections.abc import Mapping, Sequence

import numpy as np

from raybio.core.markdown import markdown_table
from raybio.core.published import published

MEASURES = {
    "ner_f1": "NER",
    "re_f1": "RE",
    "re_legacy_f1": "RE, legacy",
    "re_minus_f1": "RE-",
    "probe_precision": "probe P",
    "probe_recall": "probe R",
    "probe_f1": "probe F1",
    "graph_accuracy": "graphs",
}
"""The measures of the paper's Tables 4 (with both countings of strict RE), 3 and 2."""


PUBLISHED: dict[str, dict[str, float]] = {
    f"the paper: {model}": scores
    for model, scores in published("raybio.methods.relation_graphs")["folds"].items()
}
"""Row of the table -> the paper's scores on ADE."""


LEGEND = (
    "In percent, mean ± standard deviation over the folds' test sentences. 'chance': the most "
    "frequent labels of training for all words and pairs; 'untuned': the encoder as it came; 'a + "
    "b': relations by a, entities by b. Macro F1 of entities (NER), of relations whose entities "
    "are right too (RE; legacy: as the authors' code counts them) and of pairs of words alone "
    "(RE-). 'probe': a linear classifier of pairs; 'graphs': how often the true graph is the "
    "nearest."
)


Scores = Mapping[str, float]


def over_folds(scores_by_fold: Mapping[int, Scores]) -> dict[str, tuple[float, float]]:
    """Return mean and sample standard deviation of each measure that all folds have."""
    common = [
        name for name in MEASURES if all(name in scores for scores in scores_by_fold.values())
    ]
    found = {}
    for name in common:
        values = np.array([scores[name] for scores in scores_by_fold.values()])
        found[name] = (float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0)
    return found


def fold_table(
    scores: Mapping[str, Mapping[int, Scores]], rows_of_paper: Sequence[str] = ()
) -> str:
    """Return a table with one row per model: percent, mean ± deviation over its folds.

    Args:
        scores: model -> fold -> scores.
        rows_of_paper: keys of ``PUBLISHED`` to append.
    """
    rows = []
    for model, by_fold in scores.items():
        summary = over_folds(by_fold)
        cells = [model, str(len(by_fold))]
        for name in MEASURES:
            if name not in summary:
                cells.append("")
                continue
            mean, deviation = summary[name]
            cells.append(f"{100 * mean:.2f} ± {100 * deviation:.2f}")
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
    return f"{table}\n\n{LEGEND}"
