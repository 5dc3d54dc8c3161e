"""Description of fine-tuning on downstream tasks, for the table of methods."""

from raybio.core.table_layout import TableLayout
from raybio.methods.sppt.citation import CITATION
from raybio.methods.sppt.downstream.config import DEMO, Config
from raybio.training.method import Method, PredictorModule

METHOD = Method(
    name="finetune",
    about="Fine-tune an encoder on downstream tasks of proteins or texts.",
    config=Config,
    demo=DEMO,
    first_settings=(
        "optim.peak_lr",
        "schedule.max_epochs",
        "plan.global_batch_rows",
        "encoder.head",
        "encoder.max_length",
    ),
    system="raybio.methods.sppt.downstream.system",
    store_class="raybio.methods.sppt.downstream.store.TaskStore",
    table=TableLayout(
        title="Downstream task",
        measures={"score": "score"},
        splits={
            "dev": "validation rows",
            "test": "test rows",
            "new_test": "test rows that are not in training",
        },
        chance="the most frequent class, all classes, or the mean number, of the training rows",
        secondary=frozenset({"new_test"}),
        if_passed="Raise schedule.max_epochs, change optim.peak_lr (lower it where the embeddings "
        "have collapsed), or use the rival",
    ),
    step_metrics=("val/score",),
    predictor=PredictorModule("head.json", "raybio.methods.sppt.downstream.predict"),
    citation=CITATION,
)
