"""Description of fine-tuning on downstream tasks, for the table of methods."""

from raybio.core.table_layout import TableLayout
from raybio.methods.sppt.downstream.config import DEMO, Config
from raybio.training.method import Method

METHOD = Method(
    name="finetune",
    config=Config,
    demo=DEMO,
    system="raybio.methods.sppt.downstream.system",
    table=TableLayout(
        title="Downstream task (accuracy, macro F1 or Spearman's rank correlation)",
        measures={"score": "score"},
        splits={
            "dev": "validation rows",
            "test": "test rows",
            "new_test": "test rows that are not in training",
        },
        chance="the most frequent class, or the mean number, of the training rows",
        secondary=frozenset({"new_test"}),
    ),
    step_metrics=("val/score",),
)
