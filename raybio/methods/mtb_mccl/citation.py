"""The paper of MTB and MCCL, for model cards."""

CITATION = (
    "Zhou, Zhang, Naumann, Chen, Poon. *Continual Contrastive Finetuning Improves Low-Resource "
    "Relation Extraction.* ACL 2023. Preprint: arXiv:2212.10823."
)
