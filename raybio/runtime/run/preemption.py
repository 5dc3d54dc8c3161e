"""When a checkpoint is due because a node will be taken away.

At the notice, and every ``NOTICE_SECONDS`` until the node is gone: the notice does not say when.
"""

import time

NOTICE_SECONDS = 10.0

NOTICE_POLL_SECONDS = 2.0


class NoticeToRun:
    """Whether a node of the run is about to be taken away, as Ray Train tells its workers."""

    def __init__(self) -> None:
        self._next_time = 0.0

    def __call__(self) -> bool:
        """Return whether a checkpoint is due."""
        from ray.train.v2._internal.execution.context import get_train_context

        now = time.monotonic()
        # ray.train.get_preemption_info() would be a barrier of all workers at each step.
        info = get_train_context().preemption_context.preemption_info
        if info is None or now < self._next_time:
            return False
        self._next_time = now + NOTICE_SECONDS
        return True


class NoticeToNode:
    """Whether this node is about to be taken away.

    Ray Train does the same for its own workers, which the process of a task or trial is not.
    """

    def __init__(self) -> None:
        """Find out which node this is."""
        import ray

        self._node = ray.get_runtime_context().get_node_id()
        self._next_poll = 0.0

    def __call__(self) -> bool:
        """Return whether a checkpoint is due, polling every ``NOTICE_POLL_SECONDS`` at most."""
        import ray

        now = time.monotonic()
        if now < self._next_poll:
            return False
        is_draining = self._node in ray._private.state.state.get_draining_nodes()
        self._next_poll = now + (NOTICE_SECONDS if is_draining else NOTICE_POLL_SECONDS)
        return is_draining
