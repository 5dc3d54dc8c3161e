"""A training step of each method on its built-in corpus, with a given number of micro-batches."""

from pathlib import Path

from raybio.core.batch import TokenBatch
from raybio.core.config import override_all
from raybio.core.interfaces import System
from raybio.methods import METHODS
from raybio.training.collective import SingleProcess
from raybio.training.micro_batches import packed_micro_batches
from raybio.training.precision import Precision
from raybio.training.settings import MemoryConfig, TrainingConfig
from raybio.training.step import TrainStep

WHOLE = 1 << 24
"""Tokens of a micro-batch that holds any shard."""


LONG = {"schedule.max_steps": 10**7}
"""Steps of a run that reads its texts often enough to keep their tokens."""


class DemoStep:
    """Steps of a method, whose micro-batches are packed as on a GPU."""

    def __init__(
        self, name: str, folder: Path, store: Path | None = None, **settings: object
    ) -> None:
        """Build a method over a store; None: over its built-in corpus, prepared in the folder."""
        method = METHODS[name]
        store = store or method.prepare_demo(folder / name)
        self.config: TrainingConfig = override_all(method.demo, {"precision": "fp32"} | settings)
        self.system: System = method.build(self.config, store)

    def prepare_node(self) -> bool:
        """Make what a node makes once for a run; whether there is anything."""
        if self.system.prepare_node is None:
            return False
        self.system.prepare_node()
        return True

    def batch(self, step: int) -> TokenBatch:
        return self.system.batch_type.from_arrays(self.system.collate(step, 0, 1))

    def taker(self, num_micro_batches: int, precision: str = "fp32") -> TrainStep:
        """Return what takes step 1 in that number of micro-batches, or in the nearest one."""
        max_tokens = self._max_tokens(num_micro_batches)
        memory = MemoryConfig(max_tokens_per_micro_batch=max_tokens, packing=True)
        config = self.config.model_copy(update={"memory": memory})
        return TrainStep(self.system, config, SingleProcess(), Precision(precision, "cpu"))

    def _max_tokens(self, num_micro_batches: int) -> int:
        length_R = self.batch(1).length_R
        if num_micro_batches == 1:
            return WHOLE
        budgets = (int(length_R.sum()) * share // 100 for share in range(200, 5, -1))
        return min(
            budgets,
            key=lambda budget: abs(
                len(packed_micro_batches(length_R, max_tokens=budget)) - num_micro_batches
            ),
        )
