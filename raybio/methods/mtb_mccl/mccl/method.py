"""Relation extraction (MCCL, CE, SupCon), for the table of methods."""

from raybio.core.table_layout import TableLayout
from raybio.methods.mtb_mccl.mccl.config import DEMO, Config
from raybio.training.method import Method, PartEncoder

METHOD = Method(
    name="relation_finetune",
    config=Config,
    demo=DEMO,
    system="raybio.methods.mtb_mccl.mccl.system",
    table=TableLayout(
        title="Relation extraction",
        measures={"f1": "F1", "precision": "precision", "recall": "recall", "macro_f1": "macro F1"},
        splits={"dev": "validation documents", "test": "test documents"},
        optional={"ign_f1": "Ign-F1"},
        chance="every pair has the most frequent relation of the training pairs",
    ),
    step_metrics=("val/f1",),
    part_encoder=PartEncoder(settings="relation.json", parts="pairs of entities"),
)
