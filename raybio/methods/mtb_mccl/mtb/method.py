"""MTB pre-training, for the table of methods."""

from raybio.core.table_layout import TableLayout
from raybio.methods.mtb_mccl.config import CITATION
from raybio.methods.mtb_mccl.mtb.config import DEMO, Config
from raybio.training.method import Method, PartEncoder

METHOD = Method(
    name="mtb_pretrain",
    about="MTB, improved: pre-train an encoder of entity pairs on "
    "documents with annotated entities.",
    config=Config,
    demo=DEMO,
    first_settings=(
        "encoder.source",
        "optim.peak_lr",
        "schedule.max_steps",
        "plan.global_batch_rows",
        "pairs.min_documents",
    ),
    system="raybio.methods.mtb_mccl.mtb.system",
    store_class="raybio.methods.mtb_mccl.documents.store.DocumentStore",
    table=TableLayout(
        title="Retrieval of entity pairs",
        measures={"recall_at_1": "recall@1", "recall_at_10": "recall@10", "mrr": "MRR"},
        splits={"train": "pairs of training", "val": "held-out pairs"},
        plain=frozenset({"mrr"}),
    ),
    step_metrics=("val/pair_mrr",),
    part_encoder=PartEncoder(
        settings="relation.json",
        parts="pairs of entities",
        module="raybio.methods.mtb_mccl.embedding_model",
    ),
    citation=CITATION,
)
