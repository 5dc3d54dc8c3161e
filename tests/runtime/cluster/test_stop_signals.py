import os
import signal
from pathlib import Path

import pytest

from raybio.core.errors import InterruptedRunError
from raybio.runtime.cluster.stop_signals import StopSignals
from tests.runtime_fixtures import set_read_only

pytestmark = pytest.mark.usefixtures("answered_hangup")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_becomes_a_file_and_what_handled_it_before_does_so_again(
    number: int, tmp_path: Path
) -> None:
    before = signal.getsignal(number)
    with StopSignals(tmp_path / "stop") as signals:
        signals.ray_has_started()
        os.kill(os.getpid(), number)
        assert signals.caught == [number]
        assert (tmp_path / "stop").exists()
    assert signal.getsignal(number) == before
    assert not (tmp_path / "stop").exists()


def test_a_signal_while_ray_starts_is_answered_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Starting takes seconds, and the run is only left when that is over; or by a second signal."""
    with StopSignals(tmp_path / "stop") as signals:
        os.kill(os.getpid(), signal.SIGINT)
        said = capsys.readouterr().err
        assert "SIGINT: stopping when Ray has started (a second signal stops at once)" in said
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        signals.caught.pop()
        signals.ray_has_started()
        os.kill(os.getpid(), signal.SIGINT)
        assert capsys.readouterr().err == ""
        assert len(signals.caught) == 2


def test_a_closed_terminal_counts_once_and_not_under_nohup(tmp_path: Path) -> None:
    with StopSignals(tmp_path / "stop") as signals:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        assert signals.caught == [signal.SIGHUP]
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals(tmp_path / "stop") as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signals.caught == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_stop_file_that_cannot_be_removed_hides_no_error(small_disk: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        with (
            pytest.raises(InterruptedRunError, match="stopped at step 3"),
            StopSignals(small_disk / "stop") as signals,
        ):
            signals.ray_has_started()
            os.kill(os.getpid(), signal.SIGINT)
            set_read_only(small_disk, is_read_only=True)
            raise InterruptedRunError(signals.caught[0], "SIGINT: stopped at step 3")
    finally:
        set_read_only(small_disk, is_read_only=False)
    assert signal.getsignal(signal.SIGINT) == before
    assert (small_disk / "stop").exists()


def test_the_exit_of_rays_own_handler_counts_as_its_signal_and_another_exit_is_none() -> None:
    signals = StopSignals()
    with pytest.raises(SystemExit):
        signals.count_exit(SystemExit(2))
    assert signals.caught == []
    signals.count_exit(SystemExit(signal.SIGTERM))
    assert signals.caught == [signal.SIGTERM]
    signals.count_exit(KeyboardInterrupt())
    assert signals.caught == [signal.SIGTERM]
