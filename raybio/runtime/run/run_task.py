"""A run as a Ray task, seen by the driver: its start, progress and end."""

from typing import Any

from raybio.core.errors import LongRunError, StopFileError
from raybio.methods import METHODS
from raybio.runtime.cluster.resources import Resources
from raybio.runtime.console import PrintableConsole
from raybio.runtime.run.follower import Follower
from raybio.runtime.run.open_run import OpenRun
from raybio.runtime.run.progress import ProgressView
from raybio.runtime.run.result import status_of_run
from raybio.runtime.run.tasks import MAX_RETRIES
from raybio.runtime.spool.lease import LostLeaseError
from raybio.training.settings import COMPLETE


class RunTask:
    """A run that has begun, as a Ray task.

    Attributes:
        run: the run.
        follower: what the worker has written.
        view: view that prints progress.
        status: status of the result; None before the run has ended.
        error: why it has failed or was refused.
    """

    def __init__(
        self,
        run: OpenRun,
        resources: Resources,
        start: str,
        relay: Any,
        console: PrintableConsole,
        warned: set[str],
    ) -> None:
        max_steps = run.spec.config.schedule.max_steps
        measures = METHODS[run.spec.method].table.measures
        self.run = run
        self.follower = Follower(run.spec, resources)
        self.view = ProgressView(
            run.spec.name, max_steps, console, warned=warned, measures=measures
        )
        self.status: str | None = None
        self.error: Exception | None = None
        self._resources = resources
        self._start = start
        self._relay = relay
        self._is_tracked = False

    def submit(self) -> Any:
        """Submit the task to Ray, which starts it when there is room; return its reference."""
        import ray

        from raybio.runtime.run.task_worker import train_in_task

        remote = ray.remote(train_in_task).options(
            num_cpus=self._resources.cpus_per_worker,
            num_gpus=self._resources.gpus_per_worker,
            max_retries=MAX_RETRIES,
            # Retry after any error, like Ray Train.
            retry_exceptions=True,
        )
        spec = self.run.worker_spec(self._resources.threads_per_worker, self._start, self._relay)
        return remote.remote(spec, use_gpu=self._resources.gpus_per_worker > 0)

    def follow(self) -> None:
        """Print new messages and reports, and track the run from its first step on."""
        self.follower.update(self.view)
        if self.follower.has_started:
            self._track()

    def end(self, caught: list[int], error: BaseException | None) -> None:
        """Conclude the run, unless it is concluded already.

        Errors are stored in ``error``, since the other runs have to be concluded too.

        Args:
            caught: signals that were received.
            error: the error that ended the task, if any.
        """
        if self.status is not None:
            return
        try:
            self._conclude(caught, error)
        except Exception as failure:  # such as a damaged record, or a full disk
            self.status = "failed"
            self.error = failure
            self.view.note(f"failed: {failure}")
            self._track()
            self.run.conclude(self.status)

    def _conclude(self, caught: list[int], error: BaseException | None) -> None:
        self.follow()
        self._track()
        self.follower.close()
        self.status = status_of_run(self.run.folder, caught, error)
        is_over = self.status not in COMPLETE and not caught
        if is_over and self.follower.refusal is not None:
            self.status = "stopped"
            self.error = LongRunError(self.follower.refusal)
        elif is_over and self.status == "stopped":
            stop = self.run.folder.stop
            text = f"{stop}: the run is stopped; the same command resumes it"
            self.error = StopFileError(text)
        elif self.status == "failed" and isinstance(error, LostLeaseError):
            self.error = error
            self.view.note(f"given up: {error}")
        elif self.status == "failed":
            from raybio.runtime.run.worker_group import explained

            self.error = explained(self.run.folder, error)
            self.error.__cause__ = error
            self.view.note(f"failed: {self.error}")
        self.run.conclude(self.status)

    def settle(self, seconds: float) -> bool:
        """Wait until MLflow has the concluded run; see ``OpenRun.settle``.

        Errors are stored in ``error``, as in ``end``.
        """
        assert self.status is not None
        try:
            return self.run.settle(self.status, seconds)
        except Exception as failure:
            self.error = self.error or failure
            return False

    def _track(self) -> None:
        if not self._is_tracked:
            self._is_tracked = True
            self.run.tracker.start()
