"""SPPT on protein interaction graphs, for the table of methods."""

from raybio.methods.sppt.citation import CITATION
from raybio.methods.sppt.proteins.config import DEMO, Config
from raybio.methods.sppt.table import LINK_RETRIEVAL
from raybio.training.method import Method

METHOD = Method(
    name="sppt_protein",
    about="Structure-preserving pre-training of a protein encoder on interaction graphs.",
    config=Config,
    demo=DEMO,
    first_settings=(
        "objective.lambda_spml",
        "encoder.source",
        "optim.peak_lr",
        "schedule.max_steps",
        "plan.global_batch_rows",
    ),
    system="raybio.methods.sppt.proteins.system",
    store_class="raybio.methods.sppt.proteins.store.ProteinStore",
    table=LINK_RETRIEVAL,
    step_metrics=("val/link_mrr",),
    embedding="raybio.methods.sppt.proteins.embedding_model",
    epoch_rows="proteins with training links",
    comparison="objective.lambda_spml=0",
    citation=CITATION,
)
