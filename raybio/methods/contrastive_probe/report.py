"""The report of a probe: plain data for JSON, and Markdown.

Published rows are single figures of the paper. They are shown for orientation and are not tested
against.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raybio.core.markdown import markdown_table
from raybio.methods.contrastive_probe.accuracy import (
    CUTOFFS,
    ProbeOutcome,
    answer_lengths,
    is_correct,
)
from raybio.methods.contrastive_probe.benchmark.probe_benchmark import ProbeBenchmark
from raybio.methods.contrastive_probe.config import Match
from raybio.methods.contrastive_probe.probe import ProbeResult
from raybio.methods.contrastive_probe.report_tables import PUBLISHED, report_tables

REMARK = (
    "Accuracies in percent: a query is correct at k if any of its answers is among the first k "
    "names. Micro: mean over queries; macro: mean over relations. In brackets: 95 % bootstrap "
    "intervals over queries. p: two-sided paired permutation test of acc@10 (micro) against "
    "{first}. The rows below chance need no encoder: names by their characters' likeness to the "
    "query, and, as an oracle prior, the names that answer most other queries of the relation, by "
    "their gold answers."
)

PUBLISHED_REMARK = "Published rows are of the paper, on MedLAMA or BioLAMA with all queries."

AGREEMENT_REMARK = (
    "Agreement needs no gold: the share of the 10 predicted names that a second wording of the "
    "query predicts too and its head alone does not, corrected for chance (0: chance level, 100: "
    "all, none near the head). It selects a layer; acc@10 evaluates the selection."
)


@dataclass(frozen=True)
class QuerySetResults:
    """The results of all models on one set of queries.

    Attributes:
        name: name of the set.
        benchmark: its queries.
        results: the first is the reference of the tests.
        match: what counts as correct.
        chance: accuracies of names in random order (``accuracy.chance_scores``).
        rivals: results that need no encoder (``rivals.py``).
    """

    name: str
    benchmark: ProbeBenchmark
    results: Sequence[ProbeResult]
    match: Match
    chance: Mapping[str, Mapping[str, float]]
    rivals: Sequence[ProbeResult] = ()


def report_data(
    sets: Sequence[QuerySetResults],
    settings: Mapping[str, Any],
    *,
    seed: int = 0,
    num_samples: int = 5,
) -> dict[str, Any]:
    """Return the report as plain JSON; accuracies are shares between 0 and 1.

    Args:
        sets: query sets of one benchmark: "full" and "hard" of MedLAMA, or sources of BioLAMA.
        settings: settings that the figures depend on.
        seed: of intervals, tests and sampled queries.
        num_samples: queries whose predictions are shown.
    """
    return {
        "settings": dict(settings),
        "sets": [_set_data(query_set, seed, num_samples) for query_set in sets],
    }


def length_data(
    hits: ProbeOutcome, ks: Sequence[int], length_Q: np.ndarray
) -> dict[str, list[dict[str, Any]]]:
    """Return k -> ``hits.by_length`` for JSON, which has no infinity: the last bin ends at None."""
    data: dict[str, list[dict[str, Any]]] = {}
    for k in ks:
        bins = []
        for length_bin in hits.by_length(k, length_Q):
            end = length_bin.end if np.isfinite(length_bin.end) else None
            bins.append(length_bin._asdict() | {"end": end})
        data[str(k)] = bins
    return data


def report_markdown(data: Mapping[str, Any]) -> str:
    """Return all tables, and the predictions of sampled queries as in Table 9 of the paper."""
    tables = report_tables(data)
    remark = REMARK.format(first=data["sets"][0]["results"][0]["label"])
    if any(row[0].endswith(PUBLISHED) for table in tables.values() for row in table):
        remark = f"{remark} {PUBLISHED_REMARK}"
    sections = [
        "# Probe",
        ", ".join(f"{name}: {value}" for name, value in data["settings"].items()),
        remark,
    ]
    if any(result["agreement"] for query_set in data["sets"] for result in query_set["results"]):
        sections.append(AGREEMENT_REMARK)
    for heading, table in tables.items():
        sections += [f"## {heading}", markdown_table(table[0], table[1:])]
    for query_set in data["sets"]:
        if query_set["samples"]:
            heading = f"## Predictions, {query_set['name']} set (as in Table 9 of the paper)"
            sections.append(heading)
        for sample in query_set["samples"]:
            sections += _sample_markdown(sample)
    return "\n\n".join(sections) + "\n"


def _sample_markdown(sample: Mapping[str, Any]) -> list[str]:
    """Return the query with its answers, and a table of predictions with correct ones in bold."""
    columns = [_bold_hits(predictions) for predictions in sample["predictions"].values()]
    rows = []
    for rank in range(max(map(len, columns))):
        cells = [column[rank] if rank < len(column) else "" for column in columns]
        rows.append([str(rank + 1), *cells])
    answers = "; ".join(sample["answers"])
    return [
        f"**{sample['query']}** Answers: {answers}. Correct predictions are bold.",
        markdown_table(["", *sample["predictions"]], rows),
    ]


def _bold_hits(predictions: Sequence[tuple[str, bool]]) -> list[str]:
    return [f"**{name}**" if is_hit else name for name, is_hit in predictions]


def _set_data(query_set: QuerySetResults, seed: int, num_samples: int) -> dict[str, Any]:
    benchmark = query_set.benchmark
    chance = {}
    for mean, prefix in (("micro", "micro_"), ("macro", "")):
        chance[mean] = {str(k): query_set.chance[f"{prefix}acc_at_{k}"] for k in CUTOFFS}
    return {
        "name": query_set.name,
        "num_queries": len(benchmark.relation_Q),
        "num_names": len(benchmark.names),
        "chance": chance,
        "rivals": _results_data(query_set, query_set.rivals, seed),
        "results": _results_data(query_set, query_set.results, seed),
        "samples": _samples(query_set, seed, num_samples),
    }


def _results_data(
    query_set: QuerySetResults, results: Sequence[ProbeResult], seed: int
) -> list[dict[str, Any]]:
    relations = query_set.benchmark.relations
    reference = query_set.results[0].outcome
    length_Q = answer_lengths(query_set.benchmark)
    data = []
    for result in results:
        hits = result.outcome
        scores: dict[str, Any] = {
            "label": result.label,
            "model": result.model,
            "layer": result.layer,
        }
        # A new generator for each figure, so that all models share the resamples.
        for mean in ("micro", "macro"):
            scores[mean] = {
                str(k): hits.interval(k, mean, np.random.default_rng(seed))._asdict()
                for k in CUTOFFS
            }
            scores[f"{mean}_test"] = None
            if hits is not reference:
                scores[f"{mean}_test"] = {
                    str(k): hits.test(reference, k, mean, np.random.default_rng(seed))._asdict()
                    for k in CUTOFFS
                }
        scores["by_relation"] = {str(k): _shares(relations, hits.by_relation(k)) for k in CUTOFFS}
        scores["agreement"] = None
        if result.agreement_R is not None:
            scores["agreement"] = _shares(relations, result.agreement_R)
        scores["by_length"] = length_data(hits, CUTOFFS, length_Q)
        data.append(scores)
    return data


def _shares(relations: Sequence[str], value_R: np.ndarray) -> dict[str, float | None]:
    """Return relation -> value for JSON, which has no NaN."""
    pairs = zip(relations, value_R.tolist(), strict=True)
    return {relation: None if np.isnan(value) else value for relation, value in pairs}


def _samples(query_set: QuerySetResults, seed: int, num_samples: int) -> list[dict[str, Any]]:
    """Return random queries with their answers and the predictions of each result."""
    benchmark = query_set.benchmark
    names = benchmark.names
    predicted = {}
    correct = {}
    for result in query_set.results:
        if result.predicted_QK is not None:
            predicted[result.label] = result.predicted_QK
            correct[result.label] = is_correct(benchmark, result.predicted_QK, query_set.match)
    if not predicted:
        return []
    num_queries = len(benchmark.relation_Q)
    rng = np.random.default_rng(seed)
    sampled = np.sort(rng.choice(num_queries, min(num_samples, num_queries), replace=False))
    samples = []
    for query in sampled.tolist():
        predictions: dict[str, list[list[Any]]] = {}
        for label, predicted_QK in predicted.items():
            pairs = zip(predicted_QK[query].tolist(), correct[label][query], strict=True)
            predictions[label] = [
                [names[name], bool(is_hit)] for name, is_hit in pairs if name >= 0
            ]
        relation = benchmark.relations[benchmark.relation_Q[query]].replace("_", " ")
        samples.append(
            {
                "query": f"{names[benchmark.head_Q[query]]} — {relation} — ?",
                "answers": [names[name] for name in benchmark.answers(query)],
                "predictions": predictions,
            }
        )
    return samples
