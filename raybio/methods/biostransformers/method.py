"""Description of BioSTransformers, for the table of methods."""

from raybio.core.table_layout import TableLayout
from raybio.methods.biostransformers.config import DEMO, Config
from raybio.training.method import Method

METHOD = Method(
    name="biostransformers",
    about="Train a siamese text encoder on (text, MeSH term) pairs.",
    config=Config,
    demo=DEMO,
    first_settings=(
        "encoder.source",
        "optim.peak_lr",
        "schedule.max_steps",
        "plan.global_batch_rows",
        "plan.fields",
    ),
    system="raybio.methods.biostransformers.system",
    store_class="raybio.methods.biostransformers.store.ArticleStore",
    table=TableLayout(
        title="Term retrieval",
        measures={
            "recall_at_1": "recall@1",
            "recall_at_10": "recall@10",
            "recall_at_100": "recall@100",
            "r_precision": "R-precision",
        },
        splits={
            "text_to_term": "held-out texts to terms",
            "term_to_text": "terms to held-out texts",
        },
    ),
    step_metrics=("val/text_to_term_recall_at_10",),
    citation=(
        "Menad, Laddada, Abdeddaïm, Soualmia. *BioSTransformers: modèles de langage siamois.* EGC."
    ),
)
