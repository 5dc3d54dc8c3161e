"""The report of a probe's baselines: plain data for JSON, and Markdown, with the paper's rows beside ours.

Published rows are those of Contrastive-Probe's Table 3 (MedLAMA's full set) and Table 7 (BioLAMA), in per cent.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raybio.core.markdown import markdown_table
from raybio.core.randomness import derive_seed
from raybio.methods.contrastive_probe.accuracy import Questions, answer_lengths
from raybio.methods.contrastive_probe.baselines.evaluate import Baseline, Example, fold
from raybio.methods.contrastive_probe.report import (
    BIOLAMA,
    TABLE_3,
    TABLE_7,
    length_data,
    length_table,
)

REMARK = (
    "acc@k: share of queries with a right answer among the first k, in per cent; micro: over all queries, with a 95 % "
    "bootstrap interval; macro: mean over relations."
)


PUBLISHED_REMARK = "Published rows are of {table}, with all its queries."


def report_data(
    results: Sequence[Baseline],
    questions: Questions,
    examples: Sequence[Example],
    settings: Mapping[str, Any],
    *,
    chance: Mapping[str, Mapping[str, float]],
    query_set: str = "full",
    seed: int = 0,
) -> dict[str, Any]:
    """Everything as plain JSON; shares are between 0 and 1, published ones in per cent as published.

    Args:
        results: of models and methods.
        questions: what was asked.
        examples: the queries that each result has answers to.
        settings: what the numbers depend on.
        chance: accuracies of ranked names in random order, of ``evaluation.probe.chance_scores``.
        query_set: "full", "hard" or a source of BioLAMA (``BIOLAMA``): whose published rows stand beside ours.
        seed: of the intervals.
    """
    relations, length_Q = questions.relations, answer_lengths(questions)
    return {
        "settings": dict(settings),
        "num_queries": {
            relation: num
            for relation, num in zip(relations, _counts(results, relations), strict=True)
        },
        "chance": {name: one["value"] for name, one in chance.items()},
        "results": [_result_data(one, relations, length_Q, seed) for one in results],
        "examples": [
            {
                "query": example.query,
                "answers": list(example.gold),
                "predictions": [list(one.examples[number]) for one in results],
            }
            for number, example in enumerate(examples)
        ],
        "published": _published(query_set),
    }


def report_markdown(data: Mapping[str, Any]) -> str:
    """Our rows and the published ones in one table, then parts of the queries; ``data`` is of ``report_data``."""
    settings, results = data["settings"], data["results"]
    sections = [
        "# Baselines of the probe",
        ", ".join(f"{name}: {value}" for name, value in settings.items()),
    ]
    if settings.get("queries_per_relation") is not None:
        num = settings["queries_per_relation"]
        sections.append(
            f"**Only {num} queries of each relation were asked**, drawn by chance, among all candidates."
        )
    chance = data["chance"]
    micro = [_percent(chance[f"micro_acc_at_{k}"]) for k in (1, 5, 10)]
    macro = [_percent(chance[f"acc_at_{k}"]) for k in (1, 10)]
    rows = [["chance", "names in random order", *micro, *macro, ""]]
    for one in results:
        at = one["accuracy"]
        micro = [_percent_interval(at[k]["micro"]) if k in at else "" for k in ("1", "5", "10")]
        macro = [_percent(at[k]["macro"]) if k in at else "" for k in ("1", "10")]
        rows.append([one["method"], one["model"], *micro, *macro, one["remark"]])
    published = data["published"]
    rows += [
        [
            row["method"],
            f"{row['model']} (published)",
            *(_two(row.get(f"acc@{k}")) for k in (1, 5, 10)),
            "",
            "",
            "",
        ]
        for row in published["rows_percent"]
    ]
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
    remark = f"{REMARK} {PUBLISHED_REMARK.format(**published)}" if published["table"] else REMARK
    sections += [remark, markdown_table(header, rows, num_left=2)]
    sections += [*_by_tokens(results)]
    for k, bins_by_label in lengths_by_label(data).items():
        table = length_table(bins_by_label)
        sections += [f"## acc@{k} by length of the answers", markdown_table(table[0], table[1:])]
    sections.append("## acc@1 by relation")
    columns = [_label(one) for one in results]
    sections.append(
        markdown_table(
            ["relation", "queries", *columns],
            [
                [
                    relation,
                    f"{num:,}",
                    *(_percent(one["accuracy"]["1"]["by_relation"][relation]) for one in results),
                ]
                for relation, num in data["num_queries"].items()
            ],
        )
    )
    return "\n\n".join([*sections, *_examples(data["examples"], columns)]) + "\n"


def lengths_by_label(data: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """By k and label: accuracies by length of the answers, of the results that have so many answers to a query."""
    return {
        k: {
            _label(one): one["by_length"][str(k)]
            for one in data["results"]
            if str(k) in one["by_length"]
        }
        for k in (1, 10)
        if any(str(k) in one["by_length"] for one in data["results"])
    }


def _label(one: Mapping[str, Any]) -> str:
    return f"{one['method']}, {one['model']}"


def _published(query_set: str) -> dict[str, Any]:
    if query_set in ("full", "hard"):
        rows = [
            {"method": row.approach, "model": row.model, "acc@1": row.at_1, "acc@10": row.at_10}
            for row in TABLE_3
        ]
        return {"table": "the paper's Table 3, on MedLAMA's full set", "rows_percent": rows}
    if query_set not in BIOLAMA:
        return {"table": "", "rows_percent": []}
    place = BIOLAMA.index(query_set)
    rows = [
        {"method": method, "model": model, "acc@1": pairs[place][0], "acc@5": pairs[place][1]}
        for (method, model), pairs in TABLE_7.items()
    ]
    return {"table": f"the paper's Table 7, on BioLAMA's {query_set}", "rows_percent": rows}


def _examples(examples: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
    """Answers to drawn queries, side by side, right ones bold (the paper's Table 9)."""
    sections = ["## Examples, drawn by chance: the first answers, right ones bold"]
    for one in examples:
        right = {fold(name) for name in one["answers"]}
        shown = [
            [f"**{_cell(text)}**" if fold(text) in right else _cell(text) for text in texts]
            for texts in one["predictions"]
        ]
        rows = [[column, ", ".join(texts)] for column, texts in zip(columns, shown, strict=True)]
        question = f"{one['query']} Right: {'; '.join(one['answers'])}"
        sections += [question, markdown_table(["method, model", "answers"], rows, num_left=2)]
    return sections if examples else []


def _cell(text: str) -> str:
    return text.strip() or "(nothing)"


def _by_tokens(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Heading and table of the results that know which queries have an answer of one token."""
    rows = [
        [
            one["method"],
            one["model"],
            kind,
            f"{part['num_queries']:,}",
            _percent(part["acc@1"]),
            _percent(part["acc@10"]),
        ]
        for one in results
        for kind, part in (one["by_tokens"] or {}).items()
    ]
    header = ["method", "model", "answers", "queries", "acc@1", "acc@10"]
    return (
        [
            "## By whether a right answer is one token of the language model",
            markdown_table(header, rows, num_left=3),
        ]
        if rows
        else []
    )


def _counts(results: Sequence[Baseline], relations: Sequence[str]) -> list[int]:
    return (
        np.bincount(results[0].outcome.relation_Q, minlength=len(relations)).tolist()
        if results
        else [0] * len(relations)
    )


def _result_data(
    one: Baseline, relations: Sequence[str], length_Q: np.ndarray, seed: int
) -> dict[str, Any]:
    accuracy = {}
    for k in one.ks:
        rng = np.random.default_rng(derive_seed(seed, one.model, one.method, k))
        share_R = one.outcome.by_relation(k)
        accuracy[str(k)] = {
            "micro": one.outcome.interval(k, "micro", rng)._asdict(),
            "macro": one.outcome.macro(k),
            "by_relation": {
                relation: None if np.isnan(share) else float(share)
                for relation, share in zip(relations, share_R, strict=True)
            },
        }
    parts = (
        {}
        if one.is_single_Q is None
        else {"one token": one.is_single_Q, "others": ~one.is_single_Q}
    )
    by_tokens = {
        kind: {
            "num_queries": int(is_part_Q.sum()),
            **{
                f"acc@{k}": float(one.outcome.hits(k)[is_part_Q].mean())
                if is_part_Q.any()
                else None
                for k in one.ks
            },
        }
        for kind, is_part_Q in parts.items()
    }
    facts: dict[str, Any] = {"model": one.model, "method": one.method, "remark": one.remark}
    facts |= {"by_length": length_data(one.outcome, one.ks, length_Q)}
    return facts | {"accuracy": accuracy, "by_tokens": by_tokens or None}


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"


def _percent_interval(interval: Mapping[str, float]) -> str:
    return (
        f"{_percent(interval['value'])} [{_percent(interval['low'])}, {_percent(interval['high'])}]"
    )


def _two(percent: float | None) -> str:
    return "" if percent is None else f"{percent:.2f}"
