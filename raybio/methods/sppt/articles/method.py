"""Description of SPPT on citation graphs, for the table of methods."""

from raybio.methods.sppt.articles.config import DEMO, Config
from raybio.methods.sppt.citation import CITATION
from raybio.methods.sppt.table import LINK_RETRIEVAL
from raybio.training.method import Method

METHOD = Method(
    name="sppt_mag",
    about="Structure-preserving pre-training of a text encoder on articles and their citations.",
    config=Config,
    demo=DEMO,
    first_settings=(
        "objective.lambda_spml",
        "encoder.source",
        "optim.peak_lr",
        "schedule.max_steps",
        "plan.global_batch_rows",
    ),
    system="raybio.methods.sppt.articles.system",
    store_class="raybio.methods.sppt.articles.store.LinkedTextStore",
    table=LINK_RETRIEVAL,
    step_metrics=("val/link_mrr",),
    epoch_rows="articles with training links",
    comparison="objective.lambda_spml=0",
    citation=CITATION,
)
