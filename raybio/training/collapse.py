"""Warnings about collapsed embeddings: by their spread at evaluations, and by a loss that stays at chance."""

import logging
import math
from collections import deque
from collections.abc import Mapping

from raybio.ops.spread import EFFECTIVE_RANK, MEAN_COSINE
from raybio.training.optim import num_warmup_steps
from raybio.training.settings import TrainingConfig

MAX_MEAN_COSINE = 0.999
"""Embeddings above are too alike. Healthy encoders measured with this package stay below: mean-pooled random weights
0.96 to 0.98, first tokens of BERT-base with random weights 0.98, with two layers 0.997, first tokens of MiniLM 0.70."""


MIN_EFFECTIVE_RANK = 2.0
"""Below, the embeddings lie on a line. Runs of this package that learn well have 3.6 or more."""


NUM_STEPS_AT_CHANCE = 200
"""So many steps in a row, or half of a run that has fewer than 400, tell that a loss stays at chance."""


CHANCE_TOLERANCE = 0.01
"""Mean distance between loss and chance, as a share of chance. A mean distance, and not the distance of the mean: the
loss of an encoder that learns may cross chance on its way down."""


logger = logging.getLogger(__name__)


class CollapseWatch:
    """Warns once a start of a run about the spread of the embeddings, and once about each loss at chance.

    An objective logs the chance level of ``x_loss`` as ``x_chance``: the loss that equal embeddings have. Nothing here
    changes the training.
    """

    def __init__(self, config: TrainingConfig, *, is_pretrained: bool, is_supervised: bool) -> None:
        """Watch one run.

        Args:
            config: its schedule and warm-up.
            is_pretrained: whether the encoder begins with trained weights. First tokens of untrained encoders are
                nearly equal, which training cures; so an untrained encoder is not warned about at step 0.
            is_supervised: whether labels may rightly put the embeddings on a line, as two classes do.
        """
        num_steps = config.schedule.max_steps
        self._first_step = num_warmup_steps(config.optim, num_steps)
        self._window = max(1, min(NUM_STEPS_AT_CHANCE, num_steps // 2))
        self._is_pretrained, self._is_supervised = is_pretrained, is_supervised
        self._distances: dict[str, deque[float]] = {}
        self._warned: set[str] = set()
        self._spread_text = ""

    def observe_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the losses of the update that made it ``step`` updates; steps of the warm-up do not count."""
        if step <= self._first_step:
            return
        for name, chance in metrics.items():
            loss_name = name.removesuffix("_chance") + "_loss"
            if not name.endswith("_chance") or loss_name not in metrics or not chance > 0:
                continue
            distances = self._distances.setdefault(loss_name, deque(maxlen=self._window))
            distances.append(abs(metrics[loss_name] - chance) / chance)
            is_at_chance = (
                len(distances) == self._window
                and math.fsum(distances) <= CHANCE_TOLERANCE * self._window
            )
            if is_at_chance and loss_name not in self._warned:
                self._warned.add(loss_name)
                logger.warning(
                    "%s %.3f is at chance (%.3f, the loss of equal embeddings) over the %d steps up to step %d: the "
                    "embeddings may have collapsed%s. Check encoder.source and encoder.pooling, or raise optim.peak_lr",
                    loss_name,
                    metrics[loss_name],
                    chance,
                    self._window,
                    step,
                    self._spread_text,
                )

    def observe_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of an evaluation after ``step`` updates."""
        if MEAN_COSINE not in metrics:
            return
        mean_cosine, effective_rank = metrics[MEAN_COSINE], metrics[EFFECTIVE_RANK]
        spread = f"mean cosine {mean_cosine:.7g}, effective rank {effective_rank:.2f}"
        self._spread_text = f" ({spread} at step {step})"
        is_on_a_line = effective_rank < MIN_EFFECTIVE_RANK and not self._is_supervised
        is_collapsed = mean_cosine > MAX_MEAN_COSINE or is_on_a_line
        if not is_collapsed or "spread" in self._warned or (step == 0 and not self._is_pretrained):
            return
        self._warned.add("spread")
        logger.warning(
            "step %d: the embeddings have collapsed: %s; want a mean cosine of at most %g and an effective rank of at "
            "least %g. Scores of such an encoder say little. Check encoder.source and encoder.pooling",
            step,
            spread,
            MAX_MEAN_COSINE,
            MIN_EFFECTIVE_RANK,
        )
