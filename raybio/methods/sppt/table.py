"""Table of the scores of link retrieval."""

from raybio.core.table_layout import TableLayout

LINK_RETRIEVAL = TableLayout(
    title="Link retrieval",
    measures={"lrap": "LRAP", "ndcg": "nDCG", "average_precision": "AP", "mrr": "MRR"},
    splits={
        "train": "training links",
        # The last one that is tested counts most: not all stores have links without a twin.
        "no_twins": "held-out links without a twin",
        "val": "held-out links",
        "c1": "held-out links, both ends seen (C1)",
        "c2": "held-out links, one end seen (C2)",
        "c3": "held-out links, no end seen (C3)",
        "samples": "samples of test graphs",
    },
    plain=frozenset({"mrr"}),
    secondary=frozenset({"samples", "c1", "c2", "c3"}),
)
