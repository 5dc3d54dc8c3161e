"""Report of zero-shot tasks as JSON and Markdown, with the published rows of the paper.

Published rows are from BioSTransformers (Menad et al.), Tables 1 and 2. The paper does not state
which classes, documents and answers it ranked, so these rows are marked as published and excluded
from tests.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from raybio.core.markdown import markdown_table
from raybio.core.published import published
from raybio.methods.biostransformers.zero_shot.names import DATA_SETS
from raybio.methods.biostransformers.zero_shot.scores import TaskResult
from raybio.ops.significance import Interval

_PUBLISHED = published("raybio.methods.biostransformers")

PUBLISHED_ZERO_SHOT: Mapping[str, Mapping[str, float]] = _PUBLISHED["table_1"]
PUBLISHED_FINE_TUNED: Mapping[str, Mapping[str, float]] = _PUBLISHED["table_2"]

REMARK_FINE_TUNED = (
    "Fine-tuned by Gu et al. on labeled training splits. HoC: micro F1 of the 10 hallmarks over "
    "test abstracts. PubMedQA and BioASQ: accuracies of yes/no(/maybe), although the paper calls "
    "them F1, and so not comparable with the zero-shot tables."
)

REMARK_INTERVALS = (
    "Micro: all hits / all gold; macro: mean over queries. In brackets 95 % bootstrap intervals "
    "over queries (or over pairs, if there is one ranking), too narrow for few queries. p: "
    "two-sided paired permutation test against {first}. Chance is exact. Published rows are single "
    "numbers from the paper's Table 1, whose protocol is not fully known. No label and no answer "
    "is used here, but the articles are in PubMed, so a model may have been trained on their "
    "texts; each task reports the number for runs whose store still exists."
)

HEADLINES = {data_set.title: data_set.tasks[0] for data_set in DATA_SETS.values()}
"""The task that represents each data set of the paper's Table 1."""


def report_data(results: Sequence[TaskResult], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report as plain JSON; ``settings`` are those that the numbers depend on."""
    return {
        "settings": dict(settings),
        "tasks": [_task_data(result) for result in results],
        "published_zero_shot": {name: dict(row) for name, row in PUBLISHED_ZERO_SHOT.items()},
        "published_fine_tuned": {name: dict(row) for name, row in PUBLISHED_FINE_TUNED.items()},
        "remark_fine_tuned": REMARK_FINE_TUNED,
    }


def report_markdown(results: Sequence[TaskResult], settings: Mapping[str, Any]) -> str:
    """Return the report: Table 1, a section for each task with protocol and scorers, Table 2."""
    sections = [
        "# Zero-shot evaluation",
        ", ".join(f"{name}: {value}" for name, value in settings.items()),
    ]
    sections += _summary({result.task.name: result for result in results})
    if results:
        sections.append(REMARK_INTERVALS.format(first=results[0].scorers[0].scorer))
    for result in results:
        task = result.task
        sections.append(f"## {task.name}")
        counts = (
            f"{len(task.queries):,} queries, {len(task.documents):,} documents, "
            f"{task.num_gold:,} gold"
        )
        seen = []
        for name, num in result.num_trained_on.items():
            if isinstance(num, str):
                seen.append(f"The training articles of {name} are unknown: {num}")
            else:
                seen.append(
                    f"Of its {len(task.pmids):,} articles, {num:,} were in the training set of "
                    f"{name}."
                )
        cuts = [
            f"{name} truncates texts: {'; '.join(remarks)}."
            for name, remarks in result.cuts.items()
        ]
        sections.append(" ".join([f"{task.protocol} ({counts})", *seen, *cuts]))
        sections.append(
            markdown_table(["scorer", "micro", "macro", "p micro", "p macro"], _rows(result))
        )
    sections.append("## Published, fine-tuned (the paper's Table 2)")
    sections.append(REMARK_FINE_TUNED)
    models = list(next(iter(PUBLISHED_FINE_TUNED.values())))
    rows = [
        [name, *(f"{row[model]:.3f}" for model in models)]
        for name, row in PUBLISHED_FINE_TUNED.items()
    ]
    sections.append(markdown_table(["data set", *models], rows))
    return "\n\n".join(sections) + "\n"


def _summary(by_name: Mapping[str, TaskResult]) -> list[str]:
    """Return the table of scorers by data set: micro R-precision of the headline tasks."""
    columns = {data_set: by_name[name] for data_set, name in HEADLINES.items() if name in by_name}
    if not columns:
        return []
    names = [scorer.scorer for scorer in next(iter(columns.values())).scorers]
    rows = [
        [name, *(f"{result.scorers[index].micro.value:.3f}" for result in columns.values())]
        for index, name in enumerate(names)
    ]
    rows.append(["chance", *(f"{result.chance.micro:.3f}" for result in columns.values())])
    rows += [
        [f"{model} (published)", *(f"{PUBLISHED_ZERO_SHOT[name][model]:.3f}" for name in columns)]
        for model in next(iter(PUBLISHED_ZERO_SHOT.values()))
    ]
    heading = "## The paper's Table 1: micro R-precision (F1) of " + ", ".join(
        HEADLINES[name] for name in columns
    )
    return [heading, markdown_table(["scorer", *columns], rows)]


def _task_data(result: TaskResult) -> dict[str, Any]:
    task = result.task
    return {
        "name": task.name,
        "dataset": task.dataset,
        "protocol": task.protocol,
        "num_queries": len(task.queries),
        "num_documents": len(task.documents),
        "num_gold": task.num_gold,
        "num_articles": len(task.pmids),
        "num_trained_on": dict(result.num_trained_on),
        "cuts": {name: list(remarks) for name, remarks in result.cuts.items()},
        "chance": result.chance._asdict(),
        "scorers": [
            {
                "scorer": scorer.scorer,
                "micro": scorer.micro._asdict(),
                "macro": scorer.macro and scorer.macro._asdict(),
                "micro_test": scorer.micro_test and scorer.micro_test._asdict(),
                "macro_test": scorer.macro_test and scorer.macro_test._asdict(),
            }
            for scorer in result.scorers
        ],
    }


def _rows(result: TaskResult) -> list[list[str]]:
    rows = []
    for scorer in result.scorers:
        ps = [f"{test.p:.4f}" if test else "" for test in (scorer.micro_test, scorer.macro_test)]
        rows.append([scorer.scorer, _interval(scorer.micro), _interval(scorer.macro), *ps])
    micro, macro = result.chance
    rows.append(["chance", f"{micro:.3f}", "" if macro is None else f"{macro:.3f}", "", ""])
    for model, value in PUBLISHED_ZERO_SHOT.get(result.task.dataset, {}).items():
        rows.append([f"{model} (published)", f"{value:.3f}", "", "", ""])
    return rows


def _interval(interval: Interval | None) -> str:
    if interval is None:
        return ""
    return interval.text(digits=3, scale=1)
