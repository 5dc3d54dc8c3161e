"""Settings that SPPT on proteins, articles and synthetic graphs share."""

from typing import Annotated, Literal

from pydantic import Field

from raybio.core.config import BaseConfig
from raybio.core.distance import Distance


class PlanConfig(BaseConfig):
    """Rows of a step."""

    global_batch_rows: int = Field(64, ge=1, description="anchors of a step, over all workers")
    anchor_order: Literal["uniform", "group_first"] = Field(
        "uniform",
        description="uniform: every node is an anchor once an epoch; group_first: a group, drawn "
        "in proportion to its nodes, then anchors of that group without replacement",
    )
    num_positives_per_anchor: int = Field(1, ge=1, description="linked nodes drawn for each anchor")
    num_negatives_per_anchor: int = Field(
        1, ge=0, description="unlinked nodes of the anchor's group drawn for it"
    )


NO_MINING = 10.0
"""A mining margin of 2 or more filters nothing; this is the authors' value."""

PRESETS: dict[str, dict[str, float]] = {
    # The defaults of the metric-learning code that the authors ported the loss from.
    "metric_learning": {
        "positive_weight": 2.0,
        "negative_weight": 40.0,
        "threshold": 0.5,
        "mining_margin": 0.1,
    },
    # The defaults of the authors' own code.
    "authors": {
        "positive_weight": 1.0,
        "negative_weight": 1.0,
        "threshold": 0.1,
        "mining_margin": NO_MINING,
    },
    # Run names left in the authors' scripts.
    "authors_2_2": {
        "positive_weight": 2.0,
        "negative_weight": 2.0,
        "threshold": 0.1,
        "mining_margin": NO_MINING,
    },
    "authors_2_40": {
        "positive_weight": 2.0,
        "negative_weight": 40.0,
        "threshold": 0.1,
        "mining_margin": NO_MINING,
    },
}


class MaskConfig(BaseConfig):
    """Masking of the anchors' tokens."""

    mask_rate: float = Field(
        0.15, gt=0, lt=1, description="fraction of an anchor's tokens that are masked and predicted"
    )
    mask_style: Literal["always", "bert"] = Field(
        "always",
        description="always: the mask token; bert: 80 % mask token, 10 % random token, 10 % "
        "unchanged",
    )


class LinkEvaluationConfig(BaseConfig):
    """Evaluation by link retrieval, during training and at the end."""

    num_nodes_per_group: int = Field(
        50,
        ge=0,
        description="nodes drawn from each group for evaluations during training; their neighbors "
        "are added; 0: whole groups",
    )
    num_nodes_per_group_at_the_end: int = Field(
        0,
        ge=0,
        description="the same for the final table; 0: whole groups, at a cost that grows with the "
        "square of their sizes",
    )
    num_groups: int = Field(
        100,
        ge=0,
        description="groups drawn for evaluations during training, from which nodes are drawn; "
        "0: all groups",
    )
    num_groups_at_the_end: int = Field(
        0, ge=0, description="the same for the final table; 0: all groups"
    )
    max_neighbors: int = Field(
        100_000,
        ge=0,
        description="most neighbors that are added to all drawn nodes for evaluations during "
        "training; nodes with most links lose neighbors first; 0: all are added",
    )
    max_neighbors_at_the_end: int = Field(
        0, ge=0, description="the same for the final table; 0: all are added"
    )
    metric: Distance = Field("euclidean", description="distance by which candidates are ranked")
    block_rows: int = Field(
        1024, ge=1, description="most nodes whose candidates are scored at once"
    )
    rivals: bool = Field(
        True,
        description="rows of the final table that need no encoder: degree, common neighbors, "
        "content, look-up and, of proteins, composition",
    )
    gnn: bool = Field(
        False,
        description="a row of the final table by a graph network over the frozen embeddings of the "
        "initial encoder; of at most 50,000 nodes",
    )


class ObjectiveConfig(BaseConfig):
    """The loss."""

    lambda_spml: float = Field(
        0.1,
        ge=0,
        le=1,
        description="weight λ of the graph loss; the language-model loss has weight 1 - λ",
    )
    loss: Literal["multi_similarity", "multi_similarity_global", "margin_contrastive"] = Field(
        "multi_similarity",
        description="the graph loss; multi_similarity_global is the formula as the paper prints "
        "it, with inner products and one logarithm over all pairs",
    )
    preset: Literal["metric_learning", "authors", "authors_2_2", "authors_2_40"] = Field(
        "metric_learning",
        description="named settings of the Multi-Similarity loss: w+, w-, threshold, mining margin",
    )
    positive_weight: float | None = Field(
        None, gt=0, description="w+ of Multi-Similarity; null: the preset's"
    )
    negative_weight: float | None = Field(
        None, gt=0, description="w- of Multi-Similarity; null: the preset's"
    )
    threshold: float | None = Field(
        None, ge=-1, le=1, description="cosine threshold t; null: the preset's"
    )
    mining_margin: float | None = Field(
        None,
        ge=0,
        description="mining margin of Multi-Similarity (2 or more filters nothing); null: the "
        "preset's",
    )
    positive_margin: float = Field(
        0.0,
        ge=0,
        description="margin_contrastive: distance below which a linked pair costs nothing",
    )
    negative_margin: float = Field(
        10.0,
        ge=0,
        description="margin_contrastive: distance above which an unlinked pair costs nothing",
    )
    same_node: Literal["ignore", "positive", "negative"] = Field(
        "ignore",
        description="relation between two copies of a node in one batch (authors' code: negative)",
    )
    masked_anchors: bool = Field(
        True,
        description="the graph loss sees the anchors' masked view, so that one forward pass "
        "serves both losses; false only with lambda_spml 1",
    )

    def multi_similarity(self) -> dict[str, float]:
        """Return the preset's values, replaced by those that are set explicitly."""
        given = {name: getattr(self, name) for name in PRESETS[self.preset]}
        return PRESETS[self.preset] | {
            name: value for name, value in given.items() if value is not None
        }


def check_sampling(plan: PlanConfig, objective: ObjectiveConfig) -> None:
    """Refuse combinations of settings that cannot be trained.

    Raises:
        ValueError: the message names both settings.
    """
    if not objective.masked_anchors and objective.lambda_spml < 1:
        raise ValueError(
            f"objective.masked_anchors is false with lambda_spml {objective.lambda_spml}: the "
            "language model needs masked anchors, and one forward pass serves both losses. Set "
            "it with lambda_spml = 1 only"
        )
    unequal = plan.num_positives_per_anchor != plan.num_negatives_per_anchor
    if unequal and objective.lambda_spml > 0 and objective.loss == "margin_contrastive":
        raise ValueError(
            "objective.loss margin_contrastive pairs each positive with a negative, but plan has "
            f"num_positives_per_anchor {plan.num_positives_per_anchor} and "
            f"num_negatives_per_anchor {plan.num_negatives_per_anchor}: want equal numbers"
        )


DEFAULT_MAX_LENGTH = 100_000
"""Longest protein sequence that is kept, in residues."""


class LinkedRowsConfig(BaseConfig):
    """Settings that turn raw files into a store of linked rows; the store's manifest has them."""

    heldout_share: float = Field(
        0.05, ge=0, lt=1, description="fraction of each group's links that is kept out of training"
    )
    seed: int = Field(0, ge=0, description="seed of the draw of held-out links")
    max_bad_share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="maximum fraction of invalid records; the input is refused beyond it",
    )


class LinkedTextConfig(LinkedRowsConfig):
    """Settings that turn raw files into a store of linked texts."""

    split_by_date: bool = Field(
        False, description="hold out the links of the newest articles instead of random ones"
    )
    language: str = Field(
        "", description="only OpenAlex's works in this language, such as en; empty: in all"
    )


Taxid = Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,9})$")]

HeldOut = Literal["random", "homology", "proteins", "date"]


class PrepareConfig(LinkedRowsConfig):
    """Settings that turn raw files into a store of proteins."""

    held_out: Literal["random", "homology", "proteins"] = Field(
        "random",
        description="random: links; proteins: all links of some proteins; homology: all links of "
        "some clusters of relatives",
    )
    identity: float = Field(
        0.5, gt=0, le=1, description="fraction of equal residues that makes two proteins relatives"
    )
    relatives: Literal["kmers", "mmseqs2"] = Field(
        "kmers",
        description="how relatives are found; kmers: by shared 5-mers, for identities from 0.5 on; "
        "mmseqs2: by alignments of the program mmseqs, which must be installed",
    )
    min_score: float = Field(
        0,
        ge=0,
        description="least score of a link; 0: all links; STRING's run to 1000, 700 is its high "
        "confidence",
    )
    taxids: tuple[Taxid, ...] = Field(
        (),
        description="NCBI taxid of a species that is kept; none: all. A single one is the species "
        "of proteins whose file states none",
    )
    strip_prefixes: tuple[str, ...] = Field(
        (), description="text that is removed from the beginning of ids of links and proteins"
    )
    strip_version: bool = Field(
        False, description="remove a dot and a number at the end of ids of links and proteins"
    )
    strip_stop: bool = Field(False, description="remove a '*' at the end of a sequence")
    max_length: int = Field(
        DEFAULT_MAX_LENGTH, ge=1, description="longest sequence that is kept, in letters"
    )
