"""Relation extraction (MCCL, CE, SupCon), for the table of methods."""

from raybio.core.table_layout import TableLayout
from raybio.methods.mtb_mccl.config import CITATION
from raybio.methods.mtb_mccl.mccl.config import DEMO, Config
from raybio.training.method import Method, PartEncoder, PredictorModule

METHOD = Method(
    name="relation_finetune",
    about="Fine-tune an encoder of entity pairs on labeled relations: MCCL, "
    "cross entropy or SupCon.",
    config=Config,
    demo=DEMO,
    first_settings=(
        "objective.kind",
        "encoder.source",
        "optim.peak_lr",
        "schedule.max_epochs",
        "data.label_fraction",
    ),
    system="raybio.methods.mtb_mccl.mccl.system",
    store_class="raybio.methods.mtb_mccl.documents.store.DocumentStore",
    table=TableLayout(
        title="Relation extraction",
        measures={"f1": "F1", "precision": "precision", "recall": "recall", "macro_f1": "macro F1"},
        splits={"dev": "validation documents", "test": "test documents"},
        optional={"ign_f1": "Ign-F1"},
        chance="every pair has the most frequent relation of the training pairs",
    ),
    step_metrics=("val/f1",),
    part_encoder=PartEncoder(
        settings="relation.json",
        parts="pairs of entities",
        module="raybio.methods.mtb_mccl.embedding_model",
    ),
    predictor=PredictorModule(
        "relation.json", "raybio.methods.mtb_mccl.mccl.predict", (".pubtator", ".json")
    ),
    citation=CITATION,
)
