"""Contrastive-Probe, for the table of methods."""

from raybio.core.table_layout import TableLayout
from raybio.methods.contrastive_probe.config import DEMO, Config
from raybio.training.method import Method

METHOD = Method(
    name="contrastive_probe",
    about="Rewire a text encoder with cloze pairs of sentences, and probe it for facts "
    "at every saved step.",
    config=Config,
    demo=DEMO,
    first_settings=(
        "encoder.source",
        "optim.peak_lr",
        "schedule.max_steps",
        "plan.global_batch_rows",
        "plan.num_sentences",
    ),
    system="raybio.methods.contrastive_probe.system",
    store_class="raybio.methods.contrastive_probe.store.ClozeStore",
    table=TableLayout(
        title="Probing",
        measures={
            "acc_at_1": "acc@1",
            "acc_at_5": "acc@5",
            "acc_at_10": "acc@10",
            "micro_acc_at_1": "acc@1 (micro)",
            "micro_acc_at_10": "acc@10 (micro)",
        },
        splits={"full": "full set", "hard": "hard set"},
        oracles={"oracle prior": "a head-blind baseline that sees other queries' gold answers"},
    ),
    step_metrics=("val/acc_at_10", "val/hard_acc_at_10"),
    citation=(
        "Meng, Liu, Shareghi, Su, Collins, Collier. *Rewire-then-Probe: A Contrastive Recipe for "
        "Probing Biomedical Knowledge of Pre-trained Language Models.* ACL 2022. Preprint: "
        "arXiv:2110.08173."
    ),
)
