"""How each system is put to the test: small enough settings, a tiny store, and what it then must achieve."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from raybio.core.config import override_all
from raybio.methods import METHODS as SHIPPED
from raybio.methods.biostransformers.store import ArticleStore
from raybio.methods.contrastive_probe.store import ClozeStore
from raybio.methods.sppt.graph_store import GraphStore
from raybio.methods.sppt.synthetic.config import SyntheticConfig
from raybio.methods.sppt.synthetic.graphs import synthetic_graph
from raybio.methods.sppt.synthetic.store import TopicStore
from raybio.training.settings import TrainingConfig
from tests.example_method.method import METHOD as EXAMPLE

METHODS = SHIPPED | {EXAMPLE.name: EXAMPLE}
"""What the suite tests: the methods of raybio, and the example of docs/contributing.md."""

COMMON = {
    "encoder.num_layers": 2,
    "encoder.width": 32,
    "encoder.num_heads": 2,
    "encoder.ffn_width": 64,
    "optim.peak_lr": 3e-3,
    "precision": "fp32",
    "schedule.max_steps": 6,
    "schedule.checkpoint_every_steps": 2,
    "schedule.evaluate_every_steps": 0,
    "schedule.log_every_steps": 1,
    "memory.max_tokens_per_micro_batch": 256,
}


BY_COSINE = {"objective.loss": "multi_similarity", "objective.lambda_spml": 0.9}
"""What learns a graph by heart in few steps: the margin loss of the paper's texts takes many more."""


def density(store: GraphStore, num_groups: int = 2) -> float:
    """Average precision of link retrieval where all scores tie: links over pairs, in groups of equal size."""
    graph = store.graph
    return 2 * graph.num_edges / (graph.num_nodes * (graph.num_nodes / num_groups - 1))


def gold_among_the_first(store: ArticleStore) -> float:
    """R-precision of term retrieval where all scores tie, and terms stand in their own order."""
    shares = []
    for row in np.flatnonzero(store.is_validation_N):
        gold = store.term_E[store.term_indptr_N1[row] : store.term_indptr_N1[row + 1]]
        shares += [(gold < len(gold)).mean()] if len(gold) else []
    return float(np.mean(shares))


def names_that_come_first(store: ClozeStore) -> float:
    """acc@10, mean over relations, where all distances tie: the first ten names answer every query."""
    queries = store.benchmarks["full"]
    first_Q = np.minimum.reduceat(queries.answer_P, queries.indptr_Q1[:-1])
    return float(
        np.mean(
            [(first_Q[queries.relation_Q == r] < 10).mean() for r in range(len(queries.relations))]
        )
    )


def votes_of_the_first(store: TopicStore) -> float:
    """Accuracy of leave-one-out neighbors where all nodes are equally near: everyone asks the first three others."""
    label_N = synthetic_graph(store, SyntheticConfig(num_nodes=40)).label_N
    nearest = [[other for other in range(4) if other != node][:3] for node in range(len(label_N))]
    votes = [np.bincount(label_N[near]).argmax() for near in nearest]
    return float(np.mean(votes == label_N))


class Case(NamedTuple):
    """How a system is put to the test.

    Attributes:
        settings: what makes it small enough.
        store: the fixture with a tiny store of its kind.
        overfit: what lets it learn that store by heart.
        learned: split and score of the final evaluation that then are near 1.
        constant: split and score that an encoder without weights gives, and the value, by the store.
    """

    settings: dict[str, object]
    store: str
    overfit: dict[str, object]
    learned: tuple[str, str]
    constant: tuple[str, str, Callable[[Any], float]]


CASES = {
    "sppt_protein": Case(
        settings=COMMON
        | {
            "encoder.max_positions": 64,
            "encoder.pooling": "mean",
            "input.max_length": 40,
            "plan.global_batch_rows": 12,
            "objective.lambda_spml": 0.5,
        },
        store="tiny_store",
        overfit={"schedule.max_steps": 200, "plan.global_batch_rows": 32, "input.mask_rate": 0.05},
        learned=("train", "lrap"),
        constant=("train", "average_precision", density),
    ),
    "sppt_mag": Case(
        settings=COMMON
        | {
            "encoder.source": "scratch",
            "encoder.dropout": 0.0,
            "encoder.max_length": 32,
            "encoder.vocabulary_size": 300,
            "encoder.pooling": "mean",
            "plan.global_batch_rows": 12,
            "objective.lambda_spml": 0.5,
        },
        store="tiny_citations",
        overfit={"schedule.max_steps": 250, "plan.global_batch_rows": 32, "input.mask_rate": 0.05}
        | BY_COSINE,
        learned=("train", "lrap"),
        constant=("train", "average_precision", lambda store: density(store, num_groups=1)),
    ),
    "sppt_synthetic": Case(
        settings=COMMON
        | {
            "encoder.source": "scratch",
            "encoder.dropout": 0.0,
            "encoder.max_length": 40,
            "encoder.pooling": "mean",
            "graph.num_nodes": 40,
            "plan.global_batch_rows": 12,
            "objective.lambda_spml": 0.5,
        },
        store="tiny_topics",
        overfit={"schedule.max_steps": 250, "plan.global_batch_rows": 32, "input.mask_rate": 0.05}
        | BY_COSINE,
        learned=("nodes", "accuracy"),
        # All nodes tie: the neighbors of each are the first ones.
        constant=("nodes", "accuracy", votes_of_the_first),
    ),
    "finetune": Case(
        settings=COMMON
        | {
            "encoder.source": "scratch",
            "encoder.dropout": 0.0,
            "encoder.max_length": 64,
            "encoder.pooling": "mean",
            "plan.global_batch_rows": 12,
        },
        store="tiny_task",
        overfit={"schedule.max_steps": 250, "plan.global_batch_rows": 32},
        learned=("dev", "accuracy"),
        # One score for all: the class that is told is right for its share of the rows.
        constant=("dev", "accuracy", lambda store: 1 / len(store.class_names)),
    ),
    "biostransformers": Case(
        settings=COMMON
        | {
            "encoder.source": "scratch",
            "encoder.dropout": 0.0,
            "encoder.max_length": 32,
            "encoder.vocabulary_size": 200,
            "plan.global_batch_rows": 12,
            "plan.window_steps": 4,
            "optim.num_warmup_steps": 0,
            "objective.symmetric": True,
            "objective.learn_temperature": True,
        },
        store="tiny_articles",
        overfit={"schedule.max_steps": 150, "plan.global_batch_rows": 32},
        learned=("text_to_term", "r_precision"),
        constant=("text_to_term", "r_precision", gold_among_the_first),
    ),
    "contrastive_probe": Case(
        settings=COMMON
        | {
            "encoder.source": "scratch",
            "encoder.dropout": 0.0,
            "encoder.max_length": 32,
            "encoder.vocabulary_size": 400,
            "encoder.pooling": "mean",
            "cloze.max_tokens": 32,
            "evaluation.max_query_tokens": 32,
            "cloze.mask_ratio": 0.3,
            "objective.temperature": 0.1,
            "plan.global_batch_rows": 12,
        },
        store="tiny_sentences",
        overfit={"schedule.max_steps": 250, "plan.global_batch_rows": 48},
        learned=("full", "acc_at_10"),
        constant=("full", "acc_at_10", names_that_come_first),
    ),
    "mtb_pretrain": Case(
        settings=COMMON
        | {
            "encoder.source": "scratch",
            "encoder.dropout": 0.0,
            "encoder.max_length": 64,
            "encoder.max_document_tokens": 240,
            "encoder.vocabulary_size": 400,
            "pairs.min_documents": 2,
            "pairs.held_out_share": 0.4,
            "plan.global_batch_rows": 12,
            "plan.max_pairs_per_document": 8,
            "optim.warmup_ratio": 0.0,
        },
        store="tiny_documents",
        overfit={
            "schedule.max_steps": 200,
            "blanks.blank_rate": 0.0,
            "evaluation.blank_rate": 0.0,
            "blanks.mask_rate": 0.0,
            "objective.mlm_weight": 0.0,
            "pairs.held_out_share": 0.0,
        },
        learned=("train", "recall_at_1"),
        constant=("train", "recall_at_1", lambda store: 0.0),
    ),
    "relation_finetune": Case(
        settings=COMMON
        | {
            "encoder.source": "scratch",
            "encoder.dropout": 0.0,
            "encoder.max_length": 64,
            "encoder.max_document_tokens": 240,
            "encoder.vocabulary_size": 400,
            "plan.global_batch_rows": 6,
            "optim.warmup_ratio": 0.0,
        },
        store="tiny_documents",
        # One nearest neighbor finds each document among the training ones by itself.
        overfit={
            "schedule.max_steps": 250,
            "plan.global_batch_rows": 16,
            "evaluation.num_neighbors": [20],
        },
        learned=("dev", "f1"),
        constant=("dev", "f1", lambda store: 0.0),
    ),
    "relation_graphs": Case(
        settings=COMMON
        | {
            "model": "joint",
            "encoder.source": "scratch",
            "encoder.dropout": 0.0,
            "encoder.max_length": 64,
            "encoder.vocabulary_size": 400,
            "encoder.num_frozen_layers": 0,
            "schedule.early_stopping_metric": "null",
            "plan.global_batch_rows": 6,
        },
        store="tiny_words",
        overfit={"schedule.max_steps": 250, "plan.global_batch_rows": 16},
        learned=("dev", "re_minus_f1"),
        # All words tie, and the first pairs of the first sentence are not related.
        constant=("dev", "re_minus_f1", lambda store: 0.0),
    ),
}


CASES["sppt_info_nce"] = CASES["sppt_protein"]


def tiny_config(name: str, **more: object) -> TrainingConfig:
    return override_all(METHODS[name].config(), CASES[name].settings | more)
