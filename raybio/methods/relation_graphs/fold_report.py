"""Scores of entities and relations over cross-validation folds, with the published ones."""

from collections.abc import Mapping, Sequence

import numpy as np

from raybio.core.markdown import markdown_table

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
    "the paper: CLDR + CLNER": {
        "ner_f1": 0.883,
        "re_legacy_f1": 0.7997,
        "re_minus_f1": 0.865,
        "probe_precision": 0.7951,
        "probe_recall": 0.8439,
        "probe_f1": 0.8173,
    },
    "the paper: CLGS": {
        "probe_precision": 0.5682,
        "probe_recall": 0.5942,
        "probe_f1": 0.5809,
        "graph_accuracy": 0.9123,
    },
    "the paper: untuned": {"probe_precision": 0.6996, "probe_recall": 0.6439, "probe_f1": 0.6679},
}
"""Theodoropoulos et al. (2021), ADE: medical CharacterBERT, ten folds."""


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


def fold_table(scores: Mapping[str, Mapping[int, Scores]], published: Sequence[str] = ()) -> str:
    """Return a table with one row per model: percent, mean ± deviation over its folds.

    Args:
        scores: model -> fold -> scores.
        published: rows of the paper to append.
    """
    rows = []
    for model, by_fold in scores.items():
        summary = over_folds(by_fold)
        shown = [
            f"{100 * summary[name][0]:.2f} ± {100 * summary[name][1]:.2f}"
            if name in summary
            else ""
            for name in MEASURES
        ]
        rows.append([model, str(len(by_fold)), *shown])
    for name in published:
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
