"""The paper of SPPT, for model cards."""

CITATION = (
    "McDermott, Yap, Szolovits, Zitnik. *Structure-inducing pre-training.* Nature Machine "
    "Intelligence 5, 612–621 (2023). Preprint: arXiv:2103.10334."
)
