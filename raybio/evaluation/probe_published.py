"""What the paper of Contrastive-Probe published, in percent: its Tables 3, 4 and 10, and 7.

The X-FACTR and mask-average rows are read from a table whose layout was lost; their order is BERT, BlueBERT, BioBERT.
Table 4 is the part of Table 10 that the paper shows in its text.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Approach(NamedTuple):
    """A row of Table 3: accuracies on the full set; X-FACTR predicts one name, and so has no acc@10."""

    approach: str
    model: str
    at_1: float
    at_10: float | None


TABLE_3 = (
    Approach("generative", "BART-base", 0.16, 1.39),
    Approach("generative", "SciFive-base", 0.53, 2.02),
    Approach("generative", "SciFive-large", 0.55, 2.03),
    Approach("generative", "T5-small", 0.70, 1.72),
    Approach("generative", "T5-base", 0.06, 0.19),
    Approach("X-FACTR, confidence", "BERT", 0.05, None),
    Approach("X-FACTR, confidence", "BlueBERT", 0.74, None),
    Approach("X-FACTR, confidence", "BioBERT", 0.17, None),
    Approach("X-FACTR, order + order", "BERT", 0.06, None),
    Approach("X-FACTR, order + order", "BlueBERT", 0.50, None),
    Approach("X-FACTR, order + order", "BioBERT", 0.11, None),
    Approach("mask average", "BERT", 0.06, 0.73),
    Approach("mask average", "BlueBERT", 0.05, 1.39),
    Approach("mask average", "BioBERT", 0.28, 3.03),
    Approach("Contrastive-Probe", "BERT", 0.94, 4.96),
    Approach("Contrastive-Probe", "BlueBERT", 5.20, 20.06),
    Approach("Contrastive-Probe", "BioBERT", 4.54, 19.59),
    Approach("Contrastive-Probe", "PubMedBERT", 7.32, 27.70),
)

TABLE_10_COLUMNS = (("full", "macro"), ("full", "micro"), ("hard", "macro"), ("hard", "micro"))
"""(set, mean) of each column; on the full set both means are one number."""

Pair = tuple[float, float]
TABLE_10: Mapping[str, tuple[Pair, Pair, Pair, Pair]] = {
    model: (full, full, macro, micro)
    for model, (full, macro, micro) in {
        "BERT": ((0.94, 4.96), (0.74, 2.31), (0.68, 2.13)),
        "BlueBERT": ((5.20, 20.06), (4.34, 18.91), (4.49, 18.51)),
        "BioBERT": ((4.54, 19.59), (3.84, 15.01), (3.90, 14.91)),
        "ClinicalBERT": ((1.03, 5.61), (0.66, 4.38), (0.61, 3.74)),
        "SciBERT": ((4.17, 16.90), (2.83, 14.78), (2.81, 14.08)),
        "PubMedBERT": ((7.32, 27.70), (4.86, 23.51), (4.71, 22.88)),
        "SapBERT": ((4.65, 24.53), (2.02, 21.78), (1.96, 18.98)),
        "CoderBERT": ((8.38, 24.05), (6.40, 21.79), (6.24, 20.32)),
        "UmlsBERT": ((1.68, 7.19), (0.94, 5.68), (0.85, 5.00)),
    }.items()
}
"""acc@1 and acc@10 of rewired models, by the columns of ``TABLE_10_COLUMNS``."""

BIOLAMA = ("CTD", "wikidata", "UMLS")
TABLE_7: Mapping[tuple[str, str], tuple[Pair, Pair, Pair]] = {
    ("mask predict", "BERT"): ((0.06, 1.20), (1.16, 6.04), (0.82, 1.99)),
    ("mask predict", "BioBERT"): ((0.42, 3.25), (3.67, 11.20), (1.16, 3.82)),
    ("mask predict", "Bio-LM"): ((1.17, 7.30), (11.97, 25.92), (3.44, 8.88)),
    ("OptiPrompt, trained", "BERT"): ((3.56, 6.97), (3.29, 8.13), (1.44, 3.65)),
    ("OptiPrompt, trained", "BioBERT"): ((4.82, 9.74), (4.21, 12.91), (5.08, 13.28)),
    ("OptiPrompt, trained", "Bio-LM"): ((2.99, 10.19), (10.60, 25.15), (8.25, 20.19)),
    ("Contrastive-Probe", "BlueBERT"): ((1.62, 5.84), (6.64, 25.97), (2.63, 11.46)),
    ("Contrastive-Probe", "BioBERT"): ((0.20, 0.99), (1.04, 4.51), (0.89, 3.89)),
    ("Contrastive-Probe", "Bio-LM"): ((1.70, 4.26), (4.32, 18.74), (1.27, 5.01)),
    ("Contrastive-Probe", "PubMedBERT"): ((2.60, 8.87), (10.20, 35.14), (4.93, 18.33)),
}
"""acc@1 and acc@5 on BioLAMA, by (approach, model) and the sources of ``BIOLAMA``."""
