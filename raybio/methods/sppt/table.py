"""Table of the scores of link retrieval."""

from raybio.core.table_layout import TableLayout

LINK_RETRIEVAL = TableLayout(
    title="Link retrieval",
    measures={"lrap": "LRAP", "ndcg": "nDCG", "average_precision": "AP", "mrr": "MRR"},
    splits={
        "train": "training links",
        "val": "held-out links",
        "samples": "samples of test graphs",
    },
    plain=frozenset({"mrr"}),
    secondary=frozenset({"samples"}),
)
