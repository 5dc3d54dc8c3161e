"""Warnings about collapsed embeddings: by their spread, and by a loss that stays at chance."""

import logging
import math
from collections import deque
from collections.abc import Mapping

from raybio.ops.embedding_geometry import EFFECTIVE_RANK, MEAN_COSINE
from raybio.training.optim import num_warmup_steps
from raybio.training.settings import TrainingConfig

MAX_MEAN_COSINE = 0.999
"""Above this mean cosine, embeddings are too similar.

Healthy encoders that were measured stay below: 0.96 to 0.98 with mean-pooled random weights, 0.98
for first tokens of BERT-base with random weights, 0.997 with two layers, 0.70 for first tokens of
MiniLM.
"""


MIN_EFFECTIVE_RANK = 2.0
"""Below this effective rank, embeddings lie on a line. Runs that learn have 3.6 or more."""


NUM_STEPS_AT_CHANCE = 200
"""Consecutive steps at chance before a warning; in runs of under 400 steps, half of them."""


CHANCE_TOLERANCE = 0.01
"""Largest mean distance between loss and chance, as a share of chance.

The mean is over absolute distances, since the loss of an encoder that learns may cross chance on
its way down.
"""


logger = logging.getLogger(__name__)


class CollapseWatch:
    """Warns about collapsed embeddings and about each loss at chance, once per start of a run.

    An objective logs the chance level of ``x_loss`` as ``x_chance``: the loss of equal embeddings.
    For a head with trained biases, equal embeddings mean a constant prediction, and chance is the
    loss of the best one for the training labels. The watch does not change the training.
    """

    def __init__(self, config: TrainingConfig, *, is_pretrained: bool, is_supervised: bool) -> None:
        """Watch one run.

        Args:
            config: schedule and warm-up of the run.
            is_pretrained: whether the encoder begins with trained weights. First tokens of
                untrained encoders are nearly equal, which training changes. So step 0 of an
                untrained encoder gets no warning.
            is_supervised: whether labels may correctly put the embeddings on a line, as two classes
                do.
        """
        num_steps = config.schedule.max_steps
        self._first_step = num_warmup_steps(config.optim, num_steps)
        self._window = max(1, min(NUM_STEPS_AT_CHANCE, num_steps // 2))
        self._peak_lr = config.optim.peak_lr
        self._is_pretrained = is_pretrained
        self._is_supervised = is_supervised
        self._cause = "the embeddings may have collapsed"
        if is_supervised:
            self._cause += ", or carry no information about the labels"
        self._distances: dict[str, deque[float]] = {}
        self._warned: set[str] = set()
        self._spread_text = ""
        self._rate_advice = "raise optim.peak_lr"
        self._has_spread = is_pretrained

    def observe_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Read the losses of update number ``step``; steps of the warm-up do not count."""
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
                    "%s %.3f is at chance (%.3f, the loss of equal embeddings) over the %d steps "
                    "up to step %d: %s%s. Check encoder.source and encoder.pooling, or %s",
                    loss_name,
                    metrics[loss_name],
                    chance,
                    self._window,
                    step,
                    self._cause,
                    self._spread_text,
                    self._rate_advice,
                )

    def observe_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Read the metrics of an evaluation after ``step`` updates."""
        if MEAN_COSINE not in metrics:
            return
        mean_cosine = metrics[MEAN_COSINE]
        effective_rank = metrics[EFFECTIVE_RANK]
        spread = f"mean cosine {mean_cosine:.7g}, effective rank {effective_rank:.2f}"
        self._spread_text = f" ({spread} at step {step})"
        is_on_a_line = effective_rank < MIN_EFFECTIVE_RANK and not self._is_supervised
        is_collapsed = mean_cosine > MAX_MEAN_COSINE or is_on_a_line
        self._has_spread = self._has_spread or not is_collapsed
        if not is_collapsed or "spread" in self._warned or (step == 0 and not self._is_pretrained):
            return
        self._warned.add("spread")
        advice = "Check encoder.source and encoder.pooling"
        if step > 0 and self._has_spread:
            # Steps that are too large collapse an encoder, so the next warning must not advise
            # larger ones. An encoder from scratch begins collapsed, so its steps may have been too
            # small.
            self._rate_advice = "lower optim.peak_lr"
            advice += f", or {self._rate_advice} (now {self._peak_lr:g})"
        logger.warning(
            "step %d: the embeddings have collapsed: %s; want a mean cosine of at most %g and an "
            "effective rank of at least %g. Scores of such an encoder say little. %s",
            step,
            spread,
            MAX_MEAN_COSINE,
            MIN_EFFECTIVE_RANK,
            advice,
        )
