"""AdamW whose state is sharded over the workers (ZeRO-1: Rajbhandari et al., 2020).

Every parameter has an owner. Only the owner holds its moments, updates it, and sends it to the
other workers, in flat buckets of about 32 MB. All workers have the same gradients and AdamW is
elementwise, so the weights are bit-identical to those of an unsharded optimizer.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from raybio.core.interfaces import Collective
from raybio.training.gradient_sum import cut_into_buckets

_MOMENTS = ("exp_avg", "exp_avg_sq")

_MAX_OPEN_BROADCASTS = 2
"""Buckets that exist at the same time: one is sent while another one is copied."""


class ShardedAdamW(torch.optim.AdamW):
    """AdamW over all parameters, with the state of those that this worker owns.

    Parameter groups are as in ``torch.optim.AdamW``. All workers call ``step`` and ``gather_state``
    together.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], collective: Collective, **options: Any
    ) -> None:
        """Choose the owners.

        Args:
            groups: parameter groups, the same on every worker.
            collective: the workers.
            options: options of AdamW.
        """
        super().__init__(groups, **options)
        self._collective = collective
        parameters = [each for group in self.param_groups for each in group["params"]]
        self._owner_by_parameter = owners(parameters, collective.world)
        self._buckets: list[tuple[int, list[nn.Parameter]]] = []
        for rank in range(collective.world):
            owned = [each for each in parameters if self._owner_by_parameter[each] == rank]
            self._buckets += [(rank, bucket) for bucket in cut_into_buckets(owned)]

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the parameters of this worker, and receive those of the other workers."""
        for parameter, owner in self._owner_by_parameter.items():
            if owner != self._collective.rank:
                # AdamW skips it, and makes no state for it.
                parameter.grad = None
        super().step()
        waits: deque[Callable[[], None]] = deque()
        for owner, bucket in self._buckets:
            if len(waits) == _MAX_OPEN_BROADCASTS:
                waits.popleft()()
            waits.append(self._start_broadcast(bucket, owner))
        for wait in waits:
            wait()

    def _start_broadcast(self, bucket: list[nn.Parameter], owner: int) -> Callable[[], None]:
        """Start to copy the parameters of ``owner`` to the other workers.

        Return a function that waits for the copies.
        """
        values = [parameter.detach() for parameter in bucket]
        if len(values) == 1:
            return self._collective.start_broadcast(values[0], owner)
        sizes = [value.numel() for value in values]
        flat = values[0].new_empty(sum(sizes))
        pieces = [
            piece.view(value.shape) for piece, value in zip(flat.split(sizes), values, strict=True)
        ]
        is_owner = owner == self._collective.rank
        if is_owner:
            torch._foreach_copy_(pieces, values)
        wait_for_flat = self._collective.start_broadcast(flat, owner)

        def wait() -> None:
            wait_for_flat()
            if not is_owner:
                torch._foreach_copy_(values, pieces)

        return wait

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of this worker's parameters from the state of all parameters."""
        own = set()
        for saved, group in zip(state_dict["param_groups"], self.param_groups, strict=True):
            for index, parameter in zip(saved["params"], group["params"], strict=True):
                if self._owner_by_parameter[parameter] == self._collective.rank:
                    own.add(index)
        entries = {index: each for index, each in state_dict["state"].items() if index in own}
        super().load_state_dict(state_dict | {"state": entries})

    def gather_state(self) -> dict[nn.Parameter, dict[str, Tensor]]:
        """Return the state of all parameters on the first worker, and nothing on the others.

        The state that other workers own is on the CPU.
        """
        rank = self._collective.rank
        parameters = list(self._owner_by_parameter)
        # A parameter that never had a gradient has no state.
        is_there = self._collective.host_sum([each in self.state for each in parameters])
        gathered: dict[nn.Parameter, dict[str, Tensor]] = {}
        for parameter, is_held in zip(parameters, is_there, strict=True):
            if not is_held:
                continue
            owner = self._owner_by_parameter[parameter]
            entries = self.state[parameter] if owner == rank else _empty_state(parameter)
            for kind in ("step", *_MOMENTS):
                self._collective.start_broadcast(entries[kind], owner)()
            if rank == 0 and owner != rank:
                entries = {kind: tensor.cpu() for kind, tensor in entries.items()}
            if rank == 0:
                gathered[parameter] = entries
        return gathered


def owners(parameters: Iterable[nn.Parameter], world: int) -> dict[nn.Parameter, int]:
    """Assign each parameter, the largest first, to the worker that owns least so far."""
    num_owned_W = [0] * world
    owner_by_parameter = {}
    for parameter in sorted(parameters, key=lambda parameter: -parameter.numel()):
        owner = num_owned_W.index(min(num_owned_W))
        num_owned_W[owner] += parameter.numel()
        owner_by_parameter[parameter] = owner
    return owner_by_parameter


def _empty_state(parameter: nn.Parameter) -> dict[str, Tensor]:
    """Return memory for the state of a parameter of another worker."""
    step = torch.empty((), dtype=torch.float32, device=parameter.device)
    return {"step": step} | {kind: torch.empty_like(parameter) for kind in _MOMENTS}
