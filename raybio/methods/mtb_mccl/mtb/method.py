"""MTB pre-training, for the table of methods."""

from raybio.core.table_layout import TableLayout
from raybio.methods.mtb_mccl.mtb.config import DEMO, Config
from raybio.training.method import Method, PartEncoder

METHOD = Method(
    name="mtb_pretrain",
    config=Config,
    demo=DEMO,
    system="raybio.methods.mtb_mccl.mtb.system",
    table=TableLayout(
        title="Retrieval of entity pairs",
        measures={"recall_at_1": "recall@1", "recall_at_10": "recall@10", "mrr": "MRR"},
        splits={"train": "pairs of training", "val": "held-out pairs"},
        plain=frozenset({"mrr"}),
    ),
    step_metrics=("val/pair_mrr",),
    part_encoder=PartEncoder(settings="relation.json", parts="pairs of entities"),
)
