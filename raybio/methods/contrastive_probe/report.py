"""The report of a probe: plain data for JSON, and from it Markdown and tables for CSV, published rows beside ours.

Published rows (``probe_published``) are single numbers of the paper, for models that it rewired; they stand there for
orientation, marked as published, and no test is made against them.

What the paper of Contrastive-Probe published, in percent: its Tables 3, 4 and 10, and 7.

The X-FACTR and mask-average rows are read from a table whose layout was lost; their order is BERT, BlueBERT, BioBERT.
Table 4 is the part of Table 10 that the paper shows in its text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from raybio.core.markdown import markdown_table
from raybio.methods.contrastive_probe.accuracy import (
    CUTOFFS,
    ProbeOutcome,
    Questions,
    answer_lengths,
    right,
)
from raybio.methods.contrastive_probe.label_free_selection import (
    Table,
    relation_table,
    select_candidates,
    selection_table,
)

REMARK = (
    "Accuracies in percent: a query is right at k if any of its answers is among the first k names. Micro: mean over "
    "queries; macro: mean over relations. In brackets 95 % bootstrap intervals over queries. p: two-sided paired "
    "permutation test of acc@10 (micro) against {first}. Published rows are those of rewired models in the paper of "
    "Contrastive-Probe."
)


AGREEMENT_REMARK = (
    "Agreement, which needs no gold: the share of a query's 10 names that another wording of it brings too and its "
    "bare head does not, above that of other queries (0: as much as by chance, 100: all, none near the head). It "
    "chooses a layer, acc@10 says how well."
)


@dataclass(frozen=True)
class ProbeResult:
    """What one model gave, or another method that predicts.

    Attributes:
        model: its short name.
        layer: of how many layers, None for all.
        outcome: which predictions were right.
        predicted_QK: names in order, -1 for none; None for methods that do not predict names.
        agreement_R: of two wordings (``wording_agreement``), NaN where there is none; None if one alone was asked.
    """

    model: str
    layer: int | None
    outcome: ProbeOutcome
    predicted_QK: np.ndarray | None = None
    agreement_R: np.ndarray | None = None

    @property
    def label(self) -> str:
        """The model, and the layer if it is not the last."""
        return self.model if self.layer is None else f"{self.model}, {self.layer} layers"


@dataclass(frozen=True)
class ProbedSet:
    """One set of queries with everyone's results.

    Attributes:
        name: of the set.
        questions: its queries.
        results: the first is what the others are tested against.
        match: what counts as right.
        chance: accuracies of names in random order, of ``evaluation.probe.chance_scores``.
    """

    name: str
    questions: Questions
    results: Sequence[ProbeResult]
    match: Literal["name", "cui"]
    chance: Mapping[str, Mapping[str, float]]


def report_data(
    sets: Sequence[ProbedSet], settings: Mapping[str, Any], *, seed: int = 0, num_samples: int = 5
) -> dict[str, Any]:
    """Everything as plain JSON; accuracies are shares here.

    Args:
        sets: of one benchmark: "full" and "hard" of MedLAMA, or a source of BioLAMA.
        settings: what the numbers depend on.
        seed: of intervals, tests and sampled queries.
        num_samples: queries whose predictions are shown.
    """
    return {"settings": dict(settings), "sets": [_set_data(one, seed, num_samples) for one in sets]}


def report_markdown(data: Mapping[str, Any]) -> str:
    """All tables, and the predictions of sampled queries as in the paper's Table 9."""
    sections = [
        "# Probe",
        ", ".join(f"{name}: {value}" for name, value in data["settings"].items()),
    ]
    sections.append(REMARK.format(first=data["sets"][0]["results"][0]["label"]))
    if any(result["agreement"] for one in data["sets"] for result in one["results"]):
        sections.append(AGREEMENT_REMARK)
    for heading, table in report_tables(data).items():
        sections += [f"## {heading}", markdown_table(table[0], table[1:])]
    for one in data["sets"]:
        sections += [f"## Predictions, {one['name']} set (as in the paper's Table 9)"] * bool(
            one["samples"]
        )
        for sample in one["samples"]:
            columns = list(sample["predictions"])
            sections.append(
                f"**{sample['query']}** Answers: {'; '.join(sample['answers'])}. Right ones are bold."
            )
            cells = [
                [
                    f"**{name}**" if is_right else name
                    for name, is_right in sample["predictions"][column]
                ]
                for column in columns
            ]
            longest = max(map(len, cells))
            rows = [
                [str(n + 1), *(cell[n] if n < len(cell) else "" for cell in cells)]
                for n in range(longest)
            ]
            sections.append(markdown_table(["", *columns], rows))
    return "\n\n".join(sections) + "\n"


def report_tables(data: Mapping[str, Any]) -> dict[str, Table]:
    """Heading -> table; those of the paper first, then by set: scores, relations, lengths, layers."""
    by_name = {one["name"]: one for one in data["sets"]}
    tables = {}
    if "full" in by_name:
        tables["Table 3: approaches, full set"] = _table_3(by_name["full"])
    if {"full", "hard"} & by_name.keys():
        tables["Tables 4 and 10: acc@1 / acc@10"] = _table_10(by_name)
    if set(BIOLAMA) & by_name.keys():
        tables["Table 7: BioLAMA, acc@1 / acc@5"] = _table_7(by_name)
    for name, one in by_name.items():
        tables[f"Scores, {name} set"] = _scores(one)
        for k in (1, 10):
            tables[f"By relation, {name} set, acc@{k}"] = _by_relation(one, k)
            tables[f"By length of the answers, {name} set, acc@{k}"] = length_table(
                {result["label"]: result["by_length"][str(k)] for result in one["results"]}
            )
        if len({result["layer"] for result in one["results"]}) > 1:
            tables[f"By layer, {name} set: acc@1 / acc@10, micro"] = _by_layer(one)
        if all(result["agreement"] for result in one["results"]):
            tables[f"Agreement of two wordings above chance, {name} set"] = _relations(
                one, [result["agreement"] for result in one["results"]]
            )
            tables |= _layer_choices(one)
    return tables


def length_data(
    found: ProbeOutcome, ks: Sequence[int], length_Q: np.ndarray
) -> dict[str, list[dict[str, Any]]]:
    """By k what ``found.by_length`` tells, for JSON."""
    # "and more" has no end, and JSON no infinity.
    return {
        str(k): [
            part._asdict() | {"end": part.end if np.isfinite(part.end) else None}
            for part in found.by_length(k, length_Q)
        ]
        for k in ks
    }


def length_table(bins_by_label: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """Accuracies of results over the same queries by length of the answers, a row a bin, in percent."""
    rows = []
    for bins in zip(*bins_by_label.values(), strict=True):
        first, end, num = (bins[0][name] for name in ("first", "end", "num_queries"))
        span = f"{first} and more" if end is None else f"{first} to {end - 1}"
        rows.append([span, f"{num:,}", *(_percent(part["accuracy"]) for part in bins)])
    return [["characters", "queries", *bins_by_label], *rows]


def _set_data(one: ProbedSet, seed: int, num_samples: int) -> dict[str, Any]:
    questions, first = one.questions, one.results[0].outcome
    length_Q = answer_lengths(questions)
    results = []
    for result in one.results:
        found = result.outcome
        scores: dict[str, Any] = {
            "label": result.label,
            "model": result.model,
            "layer": result.layer,
        }
        for mean in ("micro", "macro"):
            scores[mean] = {
                str(k): found.interval(k, mean, np.random.default_rng(seed))._asdict()
                for k in CUTOFFS
            }
            scores[f"{mean}_test"] = (
                {
                    str(k): found.test(first, k, mean, np.random.default_rng(seed))._asdict()
                    for k in CUTOFFS
                }
                if found is not first
                else None
            )
        scores["by_relation"] = {str(k): _shares(questions, found.by_relation(k)) for k in CUTOFFS}
        scores["agreement"] = (
            None if result.agreement_R is None else _shares(questions, result.agreement_R)
        )
        scores["by_length"] = length_data(found, CUTOFFS, length_Q)
        results.append(scores)
    chance = {
        mean: {str(k): one.chance[f"{prefix}acc_at_{k}"] for k in CUTOFFS}
        for mean, prefix in (("micro", "micro_"), ("macro", ""))
    }
    counts = {"num_queries": len(questions.relation_Q), "num_names": len(questions.names)}
    return {
        "name": one.name,
        **counts,
        "chance": chance,
        "results": results,
        "samples": _samples(one, seed, num_samples),
    }


def _shares(questions: Questions, value_R: np.ndarray) -> dict[str, float | None]:
    """JSON has no NaN."""
    pairs = zip(questions.relations, value_R.tolist(), strict=True)
    return {relation: None if np.isnan(value) else value for relation, value in pairs}


def _samples(one: ProbedSet, seed: int, num: int) -> list[dict[str, Any]]:
    questions, names = one.questions, one.questions.names
    shown = {
        result.label: result.predicted_QK
        for result in one.results
        if result.predicted_QK is not None
    }
    num_queries = len(questions.relation_Q)
    if not shown:
        return []
    drawn = np.sort(
        np.random.default_rng(seed).choice(num_queries, min(num, num_queries), replace=False)
    )
    is_right = {
        label: right(questions, predicted_QK, one.match) for label, predicted_QK in shown.items()
    }
    samples = []
    for query in drawn.tolist():
        answers = questions.answer_P[questions.indptr_Q1[query] : questions.indptr_Q1[query + 1]]
        relation = questions.relations[questions.relation_Q[query]].replace("_", " ")
        predictions = {
            label: [
                [names[name], bool(hit)]
                for name, hit in zip(
                    predicted_QK[query].tolist(), is_right[label][query], strict=True
                )
                if name >= 0
            ]
            for label, predicted_QK in shown.items()
        }
        question = f"{names[questions.head_Q[query]]} — {relation} — ?"
        samples.append(
            {
                "query": question,
                "answers": [names[one] for one in answers],
                "predictions": predictions,
            }
        )
    return samples


def _table_3(full: Mapping[str, Any]) -> Table:
    ours = [
        ["ours", one["label"], *(_percent(one["micro"][k]["value"]) for k in ("1", "10"))]
        for one in full["results"]
    ]
    published = [
        [
            f"{row.approach} (published)",
            row.model,
            f"{row.at_1:.2f}",
            "-" if row.at_10 is None else f"{row.at_10:.2f}",
        ]
        for row in TABLE_3
    ]
    chance = ["chance", "", *(_percent(full["chance"]["micro"][k]["value"]) for k in ("1", "10"))]
    return [["approach", "model", "acc@1", "acc@10"], chance, *ours, *published]


def _table_10(by_name: Mapping[str, Any]) -> Table:
    columns = [(name, mean) for name, mean in TABLE_10_COLUMNS if name in by_name]
    rows = [
        ["model", *(f"{name}, {mean}" for name, mean in columns)],
        ["chance", *(_two(by_name[name]["chance"][mean], "1", "10") for name, mean in columns)],
    ]
    for place, one in enumerate(by_name[columns[0][0]]["results"]):
        results = [by_name[name]["results"][place][mean] for name, mean in columns]
        rows.append([one["label"], *(_two(found, "1", "10") for found in results)])
    for model, pairs in TABLE_10.items():
        by_column = dict(zip(TABLE_10_COLUMNS, pairs, strict=True))
        cells = [f"{by_column[column][0]:.2f} / {by_column[column][1]:.2f}" for column in columns]
        rows.append([f"{model} (published)", *cells])
    return rows


def _table_7(by_name: Mapping[str, Any]) -> Table:
    sources = [source for source in BIOLAMA if source in by_name]
    chance = [_two(by_name[source]["chance"]["micro"], "1", "5") for source in sources]
    rows = [["approach", "model", *sources], ["chance", "", *chance]]
    for place, one in enumerate(by_name[sources[0]]["results"]):
        found = [by_name[source]["results"][place]["micro"] for source in sources]
        rows.append(["ours", one["label"], *(_two(cell, "1", "5") for cell in found)])
    for (approach, model), pairs in TABLE_7.items():
        by_source = dict(zip(BIOLAMA, pairs, strict=True))
        cells = [f"{by_source[source][0]:.2f} / {by_source[source][1]:.2f}" for source in sources]
        rows.append([f"{approach} (published)", model, *cells])
    return rows


def _scores(one: Mapping[str, Any]) -> Table:
    header = ["model", *(f"acc@{k}, {mean}" for mean in ("micro", "macro") for k in CUTOFFS), "p"]
    chance = one["chance"]
    rows = [
        [
            "chance",
            *(
                _percent(chance[mean][str(k)]["value"])
                for mean in ("micro", "macro")
                for k in CUTOFFS
            ),
            "",
        ]
    ]
    for result in one["results"]:
        cells = [_interval(result[mean][str(k)]) for mean in ("micro", "macro") for k in CUTOFFS]
        rows.append(
            [
                result["label"],
                *cells,
                f"{result['micro_test']['10']['p']:.4f}" if result["micro_test"] else "",
            ]
        )
    return [header, *rows]


def _by_relation(one: Mapping[str, Any], k: int) -> Table:
    return _relations(one, [result["by_relation"][str(k)] for result in one["results"]])


def _relations(one: Mapping[str, Any], found: Sequence[Mapping[str, float | None]]) -> Table:
    rows = [
        [relation, *("" if (cell := row[relation]) is None else _percent(cell) for row in found)]
        for relation in found[0]
    ]
    return [["relation", *(result["label"] for result in one["results"])], *rows]


def _by_layer(one: Mapping[str, Any]) -> Table:
    models = list(dict.fromkeys(result["model"] for result in one["results"]))
    layers = list(dict.fromkeys(result["layer"] for result in one["results"]))
    cells = {
        (result["model"], result["layer"]): _two(result["micro"], "1", "10")
        for result in one["results"]
    }
    rows = [
        [_layer(layer), *(cells.get((model, layer), "") for model in models)] for layer in layers
    ]
    return [["layers", *models], *rows]


def _layer_choices(one: Mapping[str, Any]) -> dict[str, Table]:
    """For each model with several layers what agreement chooses, and what gold says of it."""
    tables = {}
    for model in dict.fromkeys(result["model"] for result in one["results"]):
        mine = [result for result in one["results"] if result["model"] == model]
        if len(mine) > 1:
            accuracy_SR, agreement_SR = (
                np.array(
                    [[np.nan if value is None else value for value in by.values()] for by in scores]
                )
                for scores in (
                    [one["by_relation"]["10"] for one in mine],
                    [one["agreement"] for one in mine],
                )
            )
            rules, layers = (
                select_candidates(accuracy_SR, agreement_SR),
                [_layer(result["layer"]) for result in mine],
            )
            heading = f"of {model}, {one['name']} set: acc@10, macro"
            tables[f"Layer chosen without gold {heading}"] = selection_table(
                rules, accuracy_SR, layers
            )
            table = relation_table(rules, accuracy_SR, layers, list(mine[0]["agreement"]))
            tables[f"The same by relation {heading}"] = table
    return tables


def _layer(layer: int | None) -> str:
    return "all" if layer is None else str(layer)


def _two(scores: Mapping[str, Any], first: str, second: str) -> str:
    return f"{_percent(scores[first]['value'])} / {_percent(scores[second]['value'])}"


def _interval(score: Mapping[str, float]) -> str:
    return f"{_percent(score['value'])} [{_percent(score['low'])}, {_percent(score['high'])}]"


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


class Approach(NamedTuple):
    """A row of Table 3: accuracies on the full set; X-FACTR predicts one name, and so has no acc@10."""

    approach: str
    model: str
    at_1: float
    at_10: float | None


TABLE_3 = (
    Approach("generative", "BART-base", 0.16, 1.39),
    Approach("generative", "SciFive-base", 0.53, 2.02),
    Approach("generative", "SciFive-large", 0.55, 2.03),
    Approach("generative", "T5-small", 0.70, 1.72),
    Approach("generative", "T5-base", 0.06, 0.19),
    Approach("X-FACTR, confidence", "BERT", 0.05, None),
    Approach("X-FACTR, confidence", "BlueBERT", 0.74, None),
    Approach("X-FACTR, confidence", "BioBERT", 0.17, None),
    Approach("X-FACTR, order + order", "BERT", 0.06, None),
    Approach("X-FACTR, order + order", "BlueBERT", 0.50, None),
    Approach("X-FACTR, order + order", "BioBERT", 0.11, None),
    Approach("mask average", "BERT", 0.06, 0.73),
    Approach("mask average", "BlueBERT", 0.05, 1.39),
    Approach("mask average", "BioBERT", 0.28, 3.03),
    Approach("Contrastive-Probe", "BERT", 0.94, 4.96),
    Approach("Contrastive-Probe", "BlueBERT", 5.20, 20.06),
    Approach("Contrastive-Probe", "BioBERT", 4.54, 19.59),
    Approach("Contrastive-Probe", "PubMedBERT", 7.32, 27.70),
)


TABLE_10_COLUMNS = (("full", "macro"), ("full", "micro"), ("hard", "macro"), ("hard", "micro"))
"""(set, mean) of each column; on the full set both means are one number."""


Pair = tuple[float, float]


TABLE_10: Mapping[str, tuple[Pair, Pair, Pair, Pair]] = {
    model: (full, full, macro, micro)
    for model, (full, macro, micro) in {
        "BERT": ((0.94, 4.96), (0.74, 2.31), (0.68, 2.13)),
        "BlueBERT": ((5.20, 20.06), (4.34, 18.91), (4.49, 18.51)),
        "BioBERT": ((4.54, 19.59), (3.84, 15.01), (3.90, 14.91)),
        "ClinicalBERT": ((1.03, 5.61), (0.66, 4.38), (0.61, 3.74)),
        "SciBERT": ((4.17, 16.90), (2.83, 14.78), (2.81, 14.08)),
        "PubMedBERT": ((7.32, 27.70), (4.86, 23.51), (4.71, 22.88)),
        "SapBERT": ((4.65, 24.53), (2.02, 21.78), (1.96, 18.98)),
        "CoderBERT": ((8.38, 24.05), (6.40, 21.79), (6.24, 20.32)),
        "UmlsBERT": ((1.68, 7.19), (0.94, 5.68), (0.85, 5.00)),
    }.items()
}
"""acc@1 and acc@10 of rewired models, by the columns of ``TABLE_10_COLUMNS``."""


BIOLAMA = ("CTD", "wikidata", "UMLS")


TABLE_7: Mapping[tuple[str, str], tuple[Pair, Pair, Pair]] = {
    ("mask predict", "BERT"): ((0.06, 1.20), (1.16, 6.04), (0.82, 1.99)),
    ("mask predict", "BioBERT"): ((0.42, 3.25), (3.67, 11.20), (1.16, 3.82)),
    ("mask predict", "Bio-LM"): ((1.17, 7.30), (11.97, 25.92), (3.44, 8.88)),
    ("OptiPrompt, trained", "BERT"): ((3.56, 6.97), (3.29, 8.13), (1.44, 3.65)),
    ("OptiPrompt, trained", "BioBERT"): ((4.82, 9.74), (4.21, 12.91), (5.08, 13.28)),
    ("OptiPrompt, trained", "Bio-LM"): ((2.99, 10.19), (10.60, 25.15), (8.25, 20.19)),
    ("Contrastive-Probe", "BlueBERT"): ((1.62, 5.84), (6.64, 25.97), (2.63, 11.46)),
    ("Contrastive-Probe", "BioBERT"): ((0.20, 0.99), (1.04, 4.51), (0.89, 3.89)),
    ("Contrastive-Probe", "Bio-LM"): ((1.70, 4.26), (4.32, 18.74), (1.27, 5.01)),
    ("Contrastive-Probe", "PubMedBERT"): ((2.60, 8.87), (10.20, 35.14), (4.93, 18.33)),
}
"""acc@1 and acc@5 on BioLAMA, by (approach, model) and the sources of ``BIOLAMA``."""
