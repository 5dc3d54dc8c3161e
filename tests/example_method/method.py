"""SPPT on proteins with an InfoNCE loss over linked pairs: settings and description."""

from pydantic import Field

from raybio.core.config import BaseConfig
from raybio.methods.sppt.proteins.config import DEMO as SPPT_DEMO
from raybio.methods.sppt.proteins.config import Config as SpptConfig
from raybio.methods.sppt.table import LINK_RETRIEVAL
from raybio.training.method import Method


class LossConfig(BaseConfig):
    """Settings of the loss."""

    temperature: float = Field(0.1, gt=0, description="divides the cosines")


class Config(SpptConfig):
    """Settings of SPPT on proteins, and of the loss that replaces its graph loss."""

    info_nce: LossConfig = LossConfig()


DEMO = Config(**{name: getattr(SPPT_DEMO, name) for name in SPPT_DEMO.model_fields_set})

METHOD = Method(
    name="sppt_info_nce",
    about="Pre-train a protein encoder with InfoNCE over the links of a graph.",
    config=Config,
    demo=DEMO,
    first_settings=("info_nce.temperature", "objective.lambda_spml", "schedule.max_steps"),
    system="tests.example_method.system",
    store_class="raybio.methods.sppt.proteins.store.ProteinStore",
    table=LINK_RETRIEVAL,
    step_metrics=("val/link_mrr",),
    embedding="raybio.methods.sppt.proteins.embedding_model",
    comparison="objective.lambda_spml=0",
)
