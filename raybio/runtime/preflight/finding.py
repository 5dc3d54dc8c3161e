"""Findings of the checks before a start; checks have time limits and fail independently."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rich.table import Column, Table
from rich.text import Text

from raybio.core.errors import RaybioError
from raybio.runtime.console import PrintableConsole

OK = "ok"
WARNING = "warning"
ERROR = "ERROR"


STYLES = {OK: "green", WARNING: "yellow", ERROR: "bold red"}


SHOWN_NODES = 4


@dataclass(frozen=True)
class Finding:
    """One line of the table.

    Attributes:
        check: what was looked at.
        state: ``OK``, ``WARNING`` or ``ERROR``.
        found: what was found, and what to do about it.
    """

    check: str
    state: str
    found: str


def run_guarded(
    check: str, look: Callable[[], Iterable[Finding]], seconds: float | None, late: str = ""
) -> list[Finding]:
    """Return the findings of ``look``; an exception or a timeout becomes a finding too.

    Args:
        check: name of the findings.
        look: the check; it runs in a thread, which is abandoned after a timeout.
        seconds: time limit; None: no limit, and the check runs in this thread.
        late: a possible reason for a timeout, if known.
    """
    if seconds is None:
        return _run_and_catch(check, look)
    results: list[list[Finding]] = []
    thread = threading.Thread(
        target=lambda: results.append(_run_and_catch(check, look)), daemon=True
    )
    thread.start()
    thread.join(seconds)
    if results:
        return results[0]
    why = (
        f"not done within {seconds:g} s: {late or 'it hangs, or is slow'}; --seconds gives it "
        "longer"
    )
    return [Finding(check, ERROR, why)]


def over_nodes(
    check: str, problems: Mapping[str, str], num_nodes: int, fine: str, state: str = ERROR
) -> Finding:
    """Merge findings of nodes into one.

    Args:
        check: name of the check.
        problems: node -> its fault; empty if none.
        num_nodes: number of nodes that answered.
        fine: text of the finding if no node has a fault.
        state: state of the finding if one has.
    """
    bad = {node: problem for node, problem in problems.items() if problem}
    if not bad:
        return Finding(check, OK, f"{fine}, on {num_nodes} node{'s' if num_nodes > 1 else ''}")
    shown = [f"{node}: {problem}" for node, problem in list(bad.items())[:SHOWN_NODES]]
    more = [f"and {len(bad) - SHOWN_NODES} more nodes"] if len(bad) > SHOWN_NODES else []
    return Finding(check, state, "; ".join([*shown, *more]))


def _run_and_catch(check: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    findings: list[Finding] = []
    try:
        findings.extend(look())
    except RaybioError as error:
        findings.append(Finding(check, ERROR, str(error)))
    # A check may call any library, and any error is a finding.
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        findings.append(Finding(check, ERROR, f"{type(error).__name__}: {lines[0][:300]}"))
    return findings


def show(findings: Iterable[Finding]) -> None:
    """Print the findings as a table, and the number in each state."""
    findings = list(findings)
    console = PrintableConsole()
    table = Table(
        "check", "state", Column("found, and what to do", overflow="fold"), title="Before the start"
    )
    for finding in findings:
        table.add_row(
            finding.check, Text(finding.state, STYLES[finding.state]), Text(finding.found)
        )
    console.print(table)
    counts = Counter(finding.state for finding in findings)
    console.print(", ".join(f"{counts[state]} {state}" for state in STYLES), highlight=False)
