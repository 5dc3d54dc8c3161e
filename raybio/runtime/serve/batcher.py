"""Dynamic batching: inputs that arrive while a batch is computed form the next one."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any


class Batcher:
    """Joins the inputs of concurrent calls.

    A call waits only for the batch that is being computed. All calls come from one event loop.
    """

    def __init__(
        self,
        compute: Callable[[list[Any]], Any],
        max_inputs: int,
        executor: Executor,
        *,
        size: Callable[[list[Any]], int] = len,
    ) -> None:
        """Store the function that computes results, and limits.

        Args:
            compute: returns a sequence or an array with a result for each input, in order.
            max_inputs: maximum number of inputs of a batch; a call with more is a batch of its own.
            executor: runs ``compute``.
            size: number of inputs of a call; by default each element of its list is one.
        """
        self._compute = compute
        self._max_inputs = max_inputs
        self._executor = executor
        self._size = size
        self._waiting: deque[tuple[list[Any], asyncio.Future[Any]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def __call__(self, inputs: list[Any]) -> Any:
        """Return the results of these inputs; what ``compute`` raises is raised here."""
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((inputs, result))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return await result

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch = self._next_batch()
            joined = [value for inputs, _ in batch for value in inputs]
            try:
                computed = await loop.run_in_executor(self._executor, self._compute, joined)
            except Exception as error:
                for _, result in batch:
                    if not result.done():
                        result.set_exception(error)
                continue
            start = 0
            for inputs, result in batch:
                end = start + len(inputs)
                # The call is cancelled if its client has disconnected.
                if not result.done():
                    result.set_result(computed[start:end])
                start = end

    def _next_batch(self) -> list[tuple[list[Any], "asyncio.Future[Any]"]]:
        batch = [self._waiting.popleft()]
        num_inputs = self._size(batch[0][0])
        while self._waiting and num_inputs + self._size(self._waiting[0][0]) <= self._max_inputs:
            batch.append(self._waiting.popleft())
            num_inputs += self._size(batch[-1][0])
        return batch
