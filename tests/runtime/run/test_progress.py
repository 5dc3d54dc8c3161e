import io
import sys

import pytest
from rich.console import Console

from raybio.core.terminal import PrintableStream
from raybio.runtime.run.progress import ProgressView, _clock


def report(step: int, **metrics: float) -> dict:
    """Return the report of a run that takes two seconds a step."""
    metrics = {"loss": 2.5, "tokens_per_second": 1234.0, **metrics}
    return {"step": step, "time_ms": 2000 * step, "metrics": metrics}


def test_without_a_terminal_it_prints_plain_lines_with_step_rate_losses_and_evaluation() -> None:
    text = io.StringIO()
    with ProgressView("first", 100, Console(file=text, force_terminal=False, width=200)) as view:
        view.update([report(10)])
        view.update([report(20, **{"val/mrr": 0.25})])
    lines = text.getvalue().splitlines()
    assert lines[0] == "first: starting"
    assert lines[1].startswith("first: step 10/100 | 1,234 tokens/s | loss 2.5")
    assert "| 2:40 left |" in lines[2] and "val/mrr 0.25" in lines[2]


def test_what_is_left_follows_from_the_times_of_reports_that_are_read_at_once() -> None:
    text = io.StringIO()
    with ProgressView("first", 100_000, Console(file=text, width=200)) as view:
        view.update([report(0), report(1, **{"val/mrr": 0.25})])
    assert "step 1/100,000 | 2 days left" in text.getvalue()
    view = ProgressView("second", 10, Console(file=text))
    view.update([report(3), report(4) | {"time_ms": 6000}])
    assert view.seconds_left is None  # the clock was set back


def test_plain_lines_do_not_flood_a_log() -> None:
    text = io.StringIO()
    with ProgressView("first", 1000, Console(file=text, force_terminal=False)) as view:
        for step in range(1, 500):
            view.update([report(step)])
    assert len(text.getvalue().splitlines()) < 10


def test_a_report_without_losses_leaves_no_empty_column() -> None:
    text = io.StringIO()
    with ProgressView("first", 100, Console(file=text, force_terminal=False, width=200)) as view:
        view.update([{"step": 0, "time_ms": 0, "metrics": {"val/mrr": 0.25}}])
    assert text.getvalue().splitlines()[1] == "first: step 0/100 | val/mrr 0.25"


def test_the_first_loss_is_shown_at_once_and_a_note_stays() -> None:
    for is_terminal in (False, True):
        text = io.StringIO()
        with ProgressView(
            "first", 100, Console(file=text, force_terminal=is_terminal, width=200)
        ) as view:
            view.note("100 steps = 10 epochs")
            view.update(
                [{"step": 0, "time_ms": 0, "metrics": {"val/mrr": 0.25}}, report(1), report(2)]
            )
        assert text.getvalue().count("first: 100 steps = 10 epochs") == 1
        if not is_terminal:
            assert [line.split(" | ")[0] for line in text.getvalue().splitlines()[2:]] == [
                "first: step 0/100",
                "first: step 1/100",
            ]


def test_a_log_shows_at_each_minute_that_a_run_is_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = io.StringIO()
    now = 1000.0
    monkeypatch.setattr("raybio.runtime.run.progress.time.monotonic", lambda: now)
    with ProgressView("first", 10, Console(file=text, force_terminal=False)) as view:
        for now in (1000.2, 1059.0, 1060.1, 1061.0, 1125.0):  # noqa: B007
            view.wait()
    assert text.getvalue().splitlines() == [
        "first: starting",
        "first: starting, for a minute now",
        "first: starting, for 2 minutes now",
    ]


def test_a_message_is_said_once() -> None:
    text = io.StringIO()
    with ProgressView("first", 10, Console(file=text, force_terminal=False)) as view:
        for step in range(5):
            view.say("stopping")
            view.update([report(step)])
    assert text.getvalue().count("stopping") == 1


def test_control_characters_of_others_lines_are_shown_above_the_panel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = io.StringIO()
    text.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    # As in a command.
    monkeypatch.setattr(sys, "stderr", PrintableStream(text))
    before = sys.stdout, sys.stderr
    with ProgressView("first", 10) as view:
        view.update([report(5, **{"val/mrr": 0.5})])
        print("remark \x1b[31mred")
        print("error \x1b[31mred", file=sys.stderr)
        view.warn("warning \x1b[31mred")
    assert (sys.stdout, sys.stderr) == before
    shown = text.getvalue()
    for word in ("remark", "error", "warning"):
        assert rf"{word} \x1b[31mred" in shown
    assert "\x1b[31m" not in shown
    # The panel's own color.
    assert "\x1b[36m" in shown


def test_a_terminal_gets_one_live_panel() -> None:
    text = io.StringIO()
    with ProgressView("first", 100, Console(file=text, force_terminal=True, width=120)) as view:
        view.update([report(10), report(50, **{"val/mrr": 0.5})])
    shown = text.getvalue()
    assert "50/100" in shown
    assert "evaluation at step 50" in shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(59.9, "0:59"), (3661, "1:01:01"), (170_000, "47:13:20"), (3e6, "34 days")],
)
def test_what_is_left_is_shown_in_hours_and_above_two_days_in_days(
    seconds: float, shown: str
) -> None:
    assert _clock(seconds) == shown


def test_evaluations_show_the_measures_of_the_table_and_count_the_others() -> None:
    text = io.StringIO()
    metrics = {"loss": 1.0, "val/link_lrap": 0.25, "val/link_recall_at_5": 0.5, "spread/rank": 3.0}
    console = Console(file=text, force_terminal=False, width=400)
    with ProgressView("first", 10, console, measures=("lrap", "mrr")) as view:
        view.update([report(5, **metrics)])
    assert "val/link_lrap 0.25  spread/rank 3  (1 more in metrics.jsonl)" in text.getvalue()
    assert "recall_at_5" not in text.getvalue()
