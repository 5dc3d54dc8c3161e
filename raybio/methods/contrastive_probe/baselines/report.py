"""The report of the baselines: plain data for JSON, Markdown, and figures.

Published rows are those of the paper's Table 3 (MedLAMA, full set) and Table 7 (BioLAMA).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raybio.core.files import replace_text
from raybio.core.markdown import markdown_table
from raybio.core.randomness import derive_seed
from raybio.core.records import write_record
from raybio.methods.contrastive_probe.accuracy import CUTOFFS, ProbeOutcome, answer_lengths
from raybio.methods.contrastive_probe.baselines.evaluate import BaselineResult
from raybio.methods.contrastive_probe.baselines.first_hits import fold
from raybio.methods.contrastive_probe.baselines.queries import ExampleQuery
from raybio.methods.contrastive_probe.benchmark.probe_benchmark import ProbeBenchmark
from raybio.methods.contrastive_probe.plots import plot_lengths
from raybio.methods.contrastive_probe.published import (
    BIOLAMA_SOURCES,
    is_medlama,
    table_3,
    table_7,
)
from raybio.methods.contrastive_probe.report import length_data
from raybio.methods.contrastive_probe.report_tables import length_table
from raybio.ops.significance import Interval

REMARK = (
    "acc@k: share of queries with a correct answer among the first k, in percent; micro: over all "
    "queries, with a 95 % bootstrap interval; macro: mean over relations."
)

PUBLISHED_REMARK = "Published rows are of {table}, with all its queries."


def report_data(
    results: Sequence[BaselineResult],
    benchmark: ProbeBenchmark,
    examples: Sequence[ExampleQuery],
    settings: Mapping[str, Any],
    *,
    chance: Mapping[str, Mapping[str, float]],
    rivals: Mapping[str, ProbeOutcome],
    query_set: str = "full",
    seed: int = 0,
) -> dict[str, Any]:
    """Return the report as plain JSON; shares are between 0 and 1, published figures in percent.

    Args:
        results: of models and methods.
        benchmark: the queries.
        examples: the queries for which results have example answers.
        settings: settings that the figures depend on.
        chance: accuracies of names in random order (``accuracy.chance_scores``).
        rivals: outcomes of predictions that need no model (``rivals.py``), by name.
        query_set: "full", "hard" or a source of BioLAMA; selects the published rows. "full" and
            "hard" have some if the relations are those of MedLAMA.
        seed: of the intervals.
    """
    relations = benchmark.relations
    length_Q = answer_lengths(benchmark)
    num_queries_R = np.bincount(benchmark.relation_Q, minlength=len(relations)).tolist()
    examples_data = []
    for index, example in enumerate(examples):
        examples_data.append(
            {
                "query": example.query,
                "answers": list(example.gold),
                "predictions": [list(result.examples[index]) for result in results],
            }
        )
    return {
        "settings": dict(settings),
        "num_queries": dict(zip(relations, num_queries_R, strict=True)),
        "chance": {name: score["value"] for name, score in chance.items()},
        "rivals": {
            name: {
                str(k): {
                    "micro": outcome.interval(k, "micro", np.random.default_rng(seed))._asdict(),
                    "macro": outcome.macro(k),
                }
                for k in CUTOFFS
            }
            for name, outcome in rivals.items()
        },
        "results": [_result_data(result, relations, length_Q, seed) for result in results],
        "examples": examples_data,
        "published": _published(query_set, relations),
    }


def write_report(out: Path, data: Mapping[str, Any], markdown: str) -> None:
    """Write ``baselines.json``, ``baselines.md`` and ``plots/*.png`` to a folder.

    Args:
        out: the folder, created if missing.
        data: of ``report_data``.
        markdown: of ``report_markdown``.
    """
    out.mkdir(parents=True, exist_ok=True)
    write_record(out / "baselines.json", "report", data)
    replace_text(out / "baselines.md", markdown)
    for plot in (out / "plots").glob("lengths_acc*.png"):
        plot.unlink()  # of an earlier report, which may have other cutoffs
    for k, bins_by_label in _lengths_by_label(data).items():
        plot_lengths(bins_by_label, out / "plots" / f"lengths_acc{k}.png", f"acc@{k}")


def report_markdown(data: Mapping[str, Any]) -> str:
    """Return our rows and the published ones in one table, then subsets of the queries.

    Args:
        data: of ``report_data``.
    """
    settings = data["settings"]
    results = data["results"]
    labels = [_label(result) for result in results]
    sections = [
        "# Baselines of the probe",
        ", ".join(f"{name}: {value}" for name, value in settings.items()),
    ]
    queries_per_relation = settings.get("queries_per_relation")
    if queries_per_relation is not None:
        sections.append(
            f"**A random sample of {queries_per_relation} queries of each relation**, "
            "among all candidates."
        )
    remark = REMARK
    if data["published"]["table"]:
        remark = f"{REMARK} {PUBLISHED_REMARK.format(**data['published'])}"
    sections += [remark, _score_markdown(data)]
    sections += _by_tokens(results)
    for k, bins_by_label in _lengths_by_label(data).items():
        header, *rows = length_table(bins_by_label)
        sections += [f"## acc@{k} by length of the answers", markdown_table(header, rows)]
    relation_rows = []
    for relation, num_queries in data["num_queries"].items():
        shares = [result["accuracy"]["1"]["by_relation"][relation] for result in results]
        relation_rows.append([relation, f"{num_queries:,}", *map(_percent, shares)])
    sections += [
        "## acc@1 by relation",
        markdown_table(["relation", "queries", *labels], relation_rows),
    ]
    sections += _examples(data["examples"], labels)
    return "\n\n".join(sections) + "\n"


def _score_markdown(data: Mapping[str, Any]) -> str:
    header = [
        "method",
        "model",
        "acc@1",
        "acc@5",
        "acc@10",
        "macro acc@1",
        "macro acc@10",
        "remark",
    ]
    chance = data["chance"]
    micro = [_percent(chance[f"micro_acc_at_{k}"]) for k in (1, 5, 10)]
    macro = [_percent(chance[f"acc_at_{k}"]) for k in (1, 10)]
    rows = [["chance", "names in random order", *micro, *macro, ""]]
    for name, accuracy in data["rivals"].items():
        rows.append([name, "none", *_accuracy_cells(accuracy), ""])
    for result in data["results"]:
        cells = _accuracy_cells(result["accuracy"])
        rows.append([result["method"], result["model"], *cells, result["remark"]])
    for row in data["published"]["rows_percent"]:
        micro = [_two_digits(row.get(f"acc@{k}")) for k in (1, 5, 10)]
        rows.append([row["method"], f"{row['model']} (published)", *micro, "", "", ""])
    return markdown_table(header, rows, num_left=2)


def _accuracy_cells(accuracy: Mapping[str, Any]) -> list[str]:
    """Return micro accuracies at 1, 5 and 10 and macro accuracies at 1 and 10, if available."""
    micro = [
        _percent_interval(accuracy[k]["micro"]) if k in accuracy else "" for k in ("1", "5", "10")
    ]
    macro = [_percent(accuracy[k]["macro"]) if k in accuracy else "" for k in ("1", "10")]
    return [*micro, *macro]


def _lengths_by_label(data: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Return k -> label -> accuracies by length, for the results with enough answers."""
    lengths: dict[int, dict[str, Any]] = {}
    for k in (1, 10):
        bins_by_label = {
            _label(result): result["by_length"][str(k)]
            for result in data["results"]
            if str(k) in result["by_length"]
        }
        if bins_by_label:
            lengths[k] = bins_by_label
    return lengths


def _label(result: Mapping[str, Any]) -> str:
    return f"{result['method']}, {result['model']}"


def _published(query_set: str, relations: Sequence[str]) -> dict[str, Any]:
    """Return the published rows of MedLAMA or a source of BioLAMA; empty for other benchmarks."""
    rows: list[dict[str, Any]] = []
    if query_set in ("full", "hard") and is_medlama(relations):
        for row in table_3():
            accuracies = {"acc@1": row.acc_at_1, "acc@10": row.acc_at_10}
            rows.append({"method": row.approach, "model": row.model, **accuracies})
        return {"table": "the paper's Table 3, on MedLAMA's full set", "rows_percent": rows}
    if query_set not in BIOLAMA_SOURCES:
        return {"table": "", "rows_percent": []}
    for biolama_row in table_7():
        acc_at_1, acc_at_5 = biolama_row.pair_by_source[query_set]
        accuracies = {"acc@1": acc_at_1, "acc@5": acc_at_5}
        rows.append({"method": biolama_row.approach, "model": biolama_row.model, **accuracies})
    return {"table": f"the paper's Table 7, on BioLAMA's {query_set}", "rows_percent": rows}


def _examples(examples: Sequence[Mapping[str, Any]], labels: Sequence[str]) -> list[str]:
    """Return the answers to example queries, correct ones bold (as in Table 9 of the paper)."""
    if not examples:
        return []
    sections = ["## Random examples: the first answers, correct ones bold"]
    for example in examples:
        gold = {fold(name) for name in example["answers"]}
        rows = []
        for label, texts in zip(labels, example["predictions"], strict=True):
            cells = []
            for text in texts:
                shown = text.strip() or "(nothing)"
                cells.append(f"**{shown}**" if fold(text) in gold else shown)
            rows.append([label, ", ".join(cells)])
        sections += [
            f"{example['query']} Gold: {'; '.join(example['answers'])}",
            markdown_table(["method, model", "answers"], rows, num_left=2),
        ]
    return sections


def _by_tokens(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return accuracies of queries with and without a gold name of one token, if known."""
    rows = []
    for result in results:
        for kind, part in (result["by_tokens"] or {}).items():
            accuracies = [_percent(part["acc@1"]), _percent(part["acc@10"])]
            num_queries = f"{part['num_queries']:,}"
            rows.append([result["method"], result["model"], kind, num_queries, *accuracies])
    if not rows:
        return []
    header = ["method", "model", "answers", "queries", "acc@1", "acc@10"]
    return [
        "## By whether a gold name is one token of the language model",
        markdown_table(header, rows, num_left=3),
    ]


def _result_data(
    result: BaselineResult, relations: Sequence[str], length_Q: np.ndarray, seed: int
) -> dict[str, Any]:
    accuracy = {}
    for k in result.ks:
        rng = np.random.default_rng(derive_seed(seed, result.model, result.method, k))
        shares = zip(relations, result.outcome.by_relation(k).tolist(), strict=True)
        accuracy[str(k)] = {
            "micro": result.outcome.interval(k, "micro", rng)._asdict(),
            "macro": result.outcome.macro(k),
            "by_relation": {
                relation: None if np.isnan(share) else share for relation, share in shares
            },
        }
    by_tokens = None
    if result.is_single_Q is not None:
        by_tokens = {
            "one token": _part_data(result, result.is_single_Q),
            "others": _part_data(result, ~result.is_single_Q),
        }
    return {
        "model": result.model,
        "method": result.method,
        "remark": result.remark,
        "by_length": length_data(result.outcome, result.ks, length_Q),
        "accuracy": accuracy,
        "by_tokens": by_tokens,
    }


def _part_data(result: BaselineResult, is_part_Q: np.ndarray) -> dict[str, Any]:
    """Return the number of queries of a part, and their accuracies."""
    data: dict[str, Any] = {"num_queries": int(is_part_Q.sum())}
    for k in result.ks:
        hits = result.outcome.hits(k)[is_part_Q]
        data[f"acc@{k}"] = float(hits.mean()) if len(hits) else None
    return data


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"


def _percent_interval(interval: Mapping[str, float]) -> str:
    return Interval(interval["value"], interval["low"], interval["high"]).text()


def _two_digits(percent: float | None) -> str:
    return "" if percent is None else f"{percent:.2f}"
