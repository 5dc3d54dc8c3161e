"""The example method, wired: everything of SPPT on proteins but the loss."""

from dataclasses import replace
from pathlib import Path

from raybio.core.interfaces import System
from raybio.methods.sppt.proteins import system as sppt
from tests.example_method.loss import InfoNceObjective
from tests.example_method.method import Config

DEMO_CORPUS = sppt.DEMO_CORPUS
check = sppt.check
input_lengths = sppt.input_lengths
steps_per_epoch = sppt.steps_per_epoch


def build(config: Config, store_path: str | Path) -> System:
    """Wire the method over a prepared protein store."""
    objective = InfoNceObjective(
        config.objective, config.plan.num_positives_per_anchor, config.info_nce.temperature
    )
    return replace(sppt.build(config, store_path), name="sppt_info_nce", objective=objective)
