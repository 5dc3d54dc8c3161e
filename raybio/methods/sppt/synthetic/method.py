"""Description of SPPT on synthetic graphs, for the table of methods."""

from raybio.core.table_layout import TableLayout
from raybio.methods.sppt.citation import CITATION
from raybio.methods.sppt.synthetic.config import DEMO, Config
from raybio.training.method import Method

METHOD = Method(
    name="sppt_synthetic",
    about="Synthetic graphs: embeddings trained with and without the graph loss of SPPT.",
    config=Config,
    demo=DEMO,
    first_settings=(
        "objective.lambda_spml",
        "encoder.source",
        "optim.peak_lr",
        "schedule.max_steps",
        "graph.num_nodes",
    ),
    system="raybio.methods.sppt.synthetic.system",
    store_class="raybio.methods.sppt.synthetic.store.TopicStore",
    table=TableLayout(
        title="Leave-one-out 3-NN classification of nodes",
        measures={"auroc": "AUROC", "accuracy": "accuracy"},
        splits={"nodes": "nodes of the graph, each left out once"},
        chance="AUROC of scores independent of the class; accuracy of the most frequent class",
    ),
    step_metrics=("nodes/auroc",),
    comparison="objective.lambda_spml=0",
    citation=CITATION,
)
