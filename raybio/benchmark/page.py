"""``report.html``: one file without scripts that needs no network, readable on a phone."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from raybio.benchmark.report import (
    BenchmarkReport,
    ModelReport,
    RowReport,
    TaskReport,
    best_rival,
    changes,
    difference_text,
    interval_text,
    number,
    pair_test,
)
from raybio.benchmark.task import PROTOCOL, RIVAL_ROWS
from raybio.core.files import replace_text
from raybio.core.text import count_of
from raybio.runtime.compare.run_test import LEVEL

PLACE = "@@BODY@@"
"""Placeholder of the body in the template."""


def write_page(path: Path, report: BenchmarkReport) -> None:
    """Write the page, replacing a file of that name in one step.

    Names and messages are escaped: none of their characters becomes HTML.
    """
    template = (files(__package__) / "page.html").read_text(encoding="utf-8")
    before, after = template.split(PLACE)
    replace_text(path, before + "\n".join(_body(report)) + after)


def _body(report: BenchmarkReport) -> Iterator[str]:
    ran = [task for task in report.tasks if task.rows]
    num_models = sum(not model.seeds for model in report.models)
    yield f"<header><h1>Benchmark: {escape(report.title)}</h1>"
    yield (
        f'<p class="soft">{count_of(num_models, "model")}, {len(ran)} of '
        f"{count_of(len(report.tasks), 'task')}. "
        "Brackets and bars are 95 % bootstrap intervals over the units of a task (queries, rows, "
        "nodes, documents). p: paired permutation tests, adjusted by Holm within each task. "
        "Higher scores are better.</p></header><main>"
    )
    yield from _leaderboard(report)
    yield from _changes(report)
    for family in dict.fromkeys(task.family for task in ran):
        yield f"<section><h2>{escape(family)}</h2>"
        for task in ran:
            if task.family == family:
                yield from _task(task)
        yield "</section>"
    yield from _skipped(report)
    yield "</main>"


def _leaderboard(report: BenchmarkReport) -> Iterator[str]:
    header = (
        "model",
        "mean of common tasks",
        "rival higher in",
        "rows/s",
        "peak memory",
        "weights",
    )
    yield "<section><h2>Models</h2><div class=scroll><table><thead><tr>"
    yield "".join(f"<th>{name}</th>" for name in header) + "</tr></thead><tbody>"
    ranked = sorted(
        report.models, key=lambda model: math.inf if model.mean is None else -model.mean
    )
    for model in ranked:
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in _cells(model)) + "</tr>"
    yield (
        '</tbody></table></div><p class="soft">Mean: over the tasks that all encoders of the same '
        "inputs have; a rival has one if it has all of them. Measures differ, so read the tasks "
        "below. Its interval is the mean of theirs: a wide one, since tasks may share inputs, "
        "and none where a task has none. "
        "Rows/s: inputs that are embedded in a second, of elapsed time on a GPU (cuda), of "
        "processor time on CPUs; the encoder is loaded before. Peak memory: while embedding, what "
        "torch has on the GPU, weights included; on CPUs, what the process grows by. A rival needs "
        "no training of an encoder; one that reads gold answers is no rival to beat.</p></section>"
    )


def _changes(report: BenchmarkReport) -> Iterator[str]:
    """Yield what training gained and cost, if a run is compared with its initial encoder."""
    if not report.after:
        return
    after = escape(report.after)
    before = escape(report.before)
    yield f"<section><h2>What training changed: {after} against {before}</h2>"
    found = changes(report)
    if not found:
        yield "<p>No task has both of them.</p></section>"
        return
    yield _table(
        ("task", "before", "after", "difference", "p (Holm)", ""),
        [
            (
                each.task.title,
                number(each.before.value),
                number(each.after.value),
                difference_text(each.test),
                _p(each.test.p_holm),
                each.word,
            )
            for each in found
        ],
    )
    yield (
        '<p class="soft">Before: the encoder that the run began from. Brackets are 95 % bootstrap '
        "intervals of the paired difference.</p></section>"
    )


def _cells(model: ModelReport) -> Iterator[str]:
    yield f"<b>{escape(model.name)}</b>"
    mean = "—"
    if model.mean is not None:
        mean = f"{interval_text(model)}, {count_of(model.num_common_tasks, 'task')}"
    yield mean
    wins = f"{model.num_rival_higher} of {model.num_tasks}"
    yield f'<span class="mark">{wins}</span>' if model.num_rival_higher else wins
    cost = model.cost
    if cost is None:
        yield from ("—", "—", "—")
        return
    speeds = [f"{speed:,.0f} ({device})" for device, speed in cost.rows_per_second.items()]
    yield ", ".join(speeds) or "—"
    peaks = [f"{peak / 1e6:,.0f} MB ({device})" for device, peak in cost.peak_bytes.items()]
    yield ", ".join(peaks) or "not measured"
    yield f"{cost.weight_bytes / 1e6:,.0f} MB"


def _task(task: TaskReport) -> Iterator[str]:
    yield f"<article><h3>{escape(task.title)} <small>{escape(task.measure)}</small></h3>"
    yield from _dots(task)
    yield "<details><summary>Protocol, tests, further measures</summary>"
    yield f"<p>{escape(task.protocol)}</p>"
    size = f"Data: {escape(task.size)}. " if task.size else ""
    yield f'<p class="soft">{size}{task.num_units:,} units.</p>'
    yield f"<p><b>Leakage.</b> {escape(task.leakage)}</p>"
    for row in task.rows:
        for remark in row.remarks:
            yield f'<p class="soft">{escape(row.name)}: {escape(remark)}.</p>'
    for name, reason in task.skipped.items():
        has = "has no row"
        if name in (RIVAL_ROWS, PROTOCOL):
            has = "have no row" if name == RIVAL_ROWS else "is unknown"
        yield f'<p class="soft">{escape(name)} {has}: {escape(reason)}.</p>'
    if task.tests:
        yield _table(
            ("first", "second", "difference", "p", "p (Holm)"),
            [
                (each.first, each.second, difference_text(each), _p(each.p), _p(each.p_holm))
                for each in task.tests
            ],
        )
    measures = list(dict.fromkeys(name for row in task.rows for name in row.others))
    if measures:
        yield _table(
            ("row", *measures),
            [(row.name, *_others(row, measures)) for row in task.rows if row.others],
        )
    yield "</details></article>"


def _others(row: RowReport, measures: Sequence[str]) -> list[str]:
    return [number(row.others[name]) if name in row.others else "" for name in measures]


def _dots(task: TaskReport) -> Iterator[str]:
    """Yield a dot with its interval for each row, on one scale; a line marks chance."""
    chance = task.chance.get(task.measure)
    values = [0.0] if chance is None else [0.0, chance]
    for row in task.rows:
        values += [each for each in (row.value, row.low, row.high) if each is not None]
    low = min(values)
    span = (max(values) - low) or 1.0

    def percent(value: float) -> float:
        return round(100 * (value - low) / span, 2)

    rival = best_rival(task)
    for row in task.rows:
        yield f'<div class="row{" rival" if row.is_rival else ""}">'
        yield f'<span class="name">{escape(row.name)}</span><span class="track">'
        if chance is not None:
            yield f'<i class="chance" style="left:{percent(chance)}%"></i>'
        if row.value is not None:
            if row.low is not None and row.high is not None:
                left = percent(row.low)
                width = f"{max(percent(row.high) - left, 0.3):.2f}"
                yield f'<i class="bar" style="left:{left}%;width:{width}%"></i>'
            yield f'<i class="dot" style="left:{percent(row.value)}%"></i>'
        yield f'</span><span class="value">{interval_text(row)}</span></div>'
        mark = "" if row.is_rival or rival is None else _mark(task, row, rival)
        if mark:
            yield f'<p class="mark">{mark}</p>'
    if chance is not None:
        yield f'<p class="soft">The line marks chance: {chance:.3f}.</p>'


def _mark(task: TaskReport, row: RowReport, rival: RowReport) -> str:
    """Return a note if a rival scores higher than a model; else an empty text."""
    if row.value is None or rival.value is None or rival.value <= row.value:
        return ""
    test = pair_test(task, row.name, rival.name)
    words = f"{escape(rival.name)}, without training, is higher than {escape(row.name)}"
    if test is None:
        return words
    significance = "significant" if test.p_holm < LEVEL else "not significant"
    return f"{words} ({significance}, p {_p(test.p_holm)})"


def _skipped(report: BenchmarkReport) -> Iterator[str]:
    skipped = [task for task in report.tasks if not task.rows]
    if not skipped:
        return
    yield "<section><h2>Tasks that did not run</h2>"
    for task in skipped:
        reasons = "; ".join(dict.fromkeys(task.skipped.values())) or "no model fits"
        yield f"<p><b>{escape(task.name)}</b>: {escape(reasons)}</p>"
    yield "</section>"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    lines = [
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>" for cells in rows
    ]
    return (
        f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
        "</table></div>"
    )


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
