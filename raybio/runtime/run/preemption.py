"""Notices that a node of the cluster will be preempted, upon which runs write checkpoints."""

import time
from collections.abc import Callable

CHECKPOINT_SECONDS = 10.0
"""Interval of checkpoints of a run that is about to lose a node; the notice does not say when."""

POLL_SECONDS = 2.0
"""Interval of queries to Ray core whether a node is draining."""


class NodeNotice:
    """Decides when a checkpoint is due because a node of the run will be preempted.

    It is due at the notice, and every ``CHECKPOINT_SECONDS`` until the node is gone.
    """

    def __init__(self, is_announced: Callable[[], bool], poll_seconds: float) -> None:
        """Poll for a notice.

        Args:
            is_announced: returns whether a node's end is announced.
            poll_seconds: interval of its calls.
        """
        self._is_announced = is_announced
        self._poll_seconds = poll_seconds
        self._next_poll = 0.0

    def __call__(self) -> bool:
        """Return whether a checkpoint is due."""
        now = time.monotonic()
        if now < self._next_poll:
            return False
        is_due = self._is_announced()
        self._next_poll = now + (CHECKPOINT_SECONDS if is_due else self._poll_seconds)
        return is_due


def notice_of_this_node() -> NodeNotice:
    """Return the notice for this node, in a process that Ray Train did not start."""
    import ray

    node = ray.get_runtime_context().get_node_id()

    def is_announced() -> bool:
        # Ray Train does the same for its own workers.
        return node in ray._private.state.state.get_draining_nodes()

    return NodeNotice(is_announced, POLL_SECONDS)


def notice_of_any_node() -> NodeNotice:
    """Return the notice for the nodes of all workers, in a worker of Ray Train."""
    from ray.train.v2._internal.execution.context import get_train_context

    def is_announced() -> bool:
        # ray.train.get_preemption_info() would be a barrier of all workers at each step.
        return get_train_context().preemption_context.preemption_info is not None

    return NodeNotice(is_announced, poll_seconds=0.0)
