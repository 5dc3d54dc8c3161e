"""CLDR, CLGS and CLNER against loops over the paper's equations."""

import numpy as np
import pytest
import torch

from raybio.encoders.transformer import seeded_weights
from raybio.methods.relation_graphs.batches import RelationGraphBatch
from raybio.methods.relation_graphs.config import GraphObjectiveConfig
from raybio.methods.relation_graphs.encoders.graph_encoder import GraphEncoder
from raybio.methods.relation_graphs.objective import RelationGraphHead, RelationGraphObjective
from raybio.training.collective import SingleProcess
from tests import graph_oracles

WIDTH = 4
PAIRS = [[(1, 3), (1, 2), (5, 3)], [(1, 4), (2, 4)], [(8, 9), (8, 10), (8, 11), (10, 9)]]
"""Words of the graphs of three anchors, of which two are the first sentence's."""


def batch_of(graphs, edges, sentence_A, sizes, samples=0, seed=0) -> RelationGraphBatch:
    rng = np.random.default_rng(seed)
    words = [word for anchor in graphs for graph in anchor for word in graph]
    lengths = [len(graph) for anchor in graphs for graph in anchor]
    indptr = np.cumsum([0, *lengths])
    both = [
        (one + start, other + start)
        for of, start in zip(edges, indptr, strict=False)
        for one, other in of
    ]
    both += [(other, one) for one, other in both]
    num_words = int(np.sum(sizes))
    tag_W = rng.integers(-1, 3, num_words)
    sample_WK = rng.integers(-1, num_words, (num_words, samples))
    arrays = {
        "token_T": np.zeros(num_words, int),
        "indptr_R1": np.cumsum([0, *sizes]),
        "label_T": np.zeros(num_words, int),
        "word_T": np.zeros(num_words, int),
        "word_indptr_R1": np.cumsum([0, *sizes]),
        "feature_UF": rng.normal(size=(len(words), WIDTH)),
        "feature_N": rng.permutation(len(words)),
        "word_N": np.array(words),
        "node_indptr_G1": indptr,
        "head_E": np.array([one for one, _ in both], int),
        "tail_E": np.array([other for _, other in both], int),
        "anchor_G": np.repeat(np.arange(len(graphs)), [len(anchor) for anchor in graphs]),
        "sentence_A": np.array(sentence_A),
        "tag_W": tag_W,
        "sample_WK": sample_WK,
        "sample_tag_WK": np.where(sample_WK < 0, -1, tag_W[sample_WK]),
    }
    return RelationGraphBatch.from_arrays(arrays)


def pair_batch(samples: int = 0) -> RelationGraphBatch:
    num_graphs = sum(map(len, PAIRS))
    # The third sentence has no relation.
    return batch_of(PAIRS, [[(0, 1)]] * num_graphs, [0, 0, 1], [7, 5, 4], samples)


def objective_of(model: str, **settings) -> RelationGraphObjective:
    config = GraphObjectiveConfig(**settings)
    with seeded_weights(1):
        graph = None
        if model != "clner":
            self_loop = None if model == "clgs" else config.self_loop
            graph = GraphEncoder(
                WIDTH, self_loop=self_loop, activation="tanh" if model == "clgs" else "relu"
            ).double()
        has_tags = model in ("clner", "joint")
        width = config.projection_width if model == "clgs" else None
        head = RelationGraphHead(graph, WIDTH, has_tags=has_tags, projection_width=width).double()
    return RelationGraphObjective(config, model, head)


def words(num: int = 16) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(7).normal(size=(num, WIDTH))).requires_grad_()


def states(objective: RelationGraphObjective, batch: RelationGraphBatch) -> np.ndarray:
    return graph_oracles.as_array(
        objective.head.graph(batch.feature_UF[batch.feature_N], batch.head_E, batch.tail_E)
    )


@pytest.mark.parametrize("pairing", ["paper", "diagonal"])
def test_cldr_is_its_equation_in_both_pairings(pairing):
    objective, batch, word_WD = objective_of("cldr", pairing=pairing), pair_batch(), words()
    report = objective.embedding_loss(word_WD, batch, SingleProcess())
    expected = graph_oracles.cldr_loss(
        word_WD.detach().numpy(), batch, states(objective, batch), 0.1, pairing
    )
    assert report.loss.item() == pytest.approx(expected)
    assert report.terms["graph_loss"].item() == pytest.approx(expected)


def test_the_pairings_differ_and_the_sum_counts_sentences():
    batch, word_WD = pair_batch(), words()
    paper, diagonal, total = (
        objective_of("cldr", **settings).embedding_loss(word_WD, batch, SingleProcess()).loss.item()
        for settings in ({"pairing": "paper"}, {}, {"pairing": "paper", "reduction": "sum"})
    )
    assert paper != pytest.approx(diagonal)
    assert total == pytest.approx(2 * paper)


def test_true_graphs_of_other_sentences_may_be_false_ones():
    objective, batch, word_WD = (
        objective_of("cldr", in_batch_negatives=True, pairing="paper"),
        pair_batch(),
        words(),
    )
    found = objective.similarities(word_WD, batch)
    own = found.similarity_G.tolist()
    text, graph = graph_oracles.as_array(found.text_AD), graph_oracles.as_array(found.graph_AD)
    # Anchors 0 and 1 are of one sentence: neither is the other's false graph.
    more = {0: [2], 1: [2], 2: [0, 1]}
    bounds = [0, 3, 5, 9]
    losses = []
    for anchor, others in more.items():
        far = [graph_oracles.cosine(text[anchor], graph[other]) for other in others]
        losses.append(
            graph_oracles.softmax_loss(own[bounds[anchor] : bounds[anchor + 1]] + far, 0.1)
        )
    expected = ((losses[0] + losses[1]) / 2 + losses[2]) / 2
    assert objective.embedding_loss(word_WD, batch, SingleProcess()).loss.item() == pytest.approx(
        expected
    )


@pytest.mark.parametrize("text_pooling", ["mean", "max", "cls"])
@pytest.mark.parametrize("graph_pooling", ["mean", "max"])
@pytest.mark.parametrize("projection_width", [None, 3])
def test_clgs_compares_sentences_with_graphs(text_pooling, graph_pooling, projection_width):
    graphs = [[(1, 2, 4), (1, 3, 4), (2, 5)], [(1, 3), (2, 3)]]
    shifted = [graphs[0], [tuple(word + 6 for word in graph) for graph in graphs[1]]]
    edges = [[(0, 1), (1, 2)], [(0, 1), (1, 2)], [(0, 1)], [(0, 1)], [(0, 1)]]
    batch, word_WD = batch_of(shifted, edges, [0, 1], [6, 4]), words(10)
    settings = {
        "text_pooling": text_pooling,
        "graph_pooling": graph_pooling,
        "projection_width": projection_width,
    }
    objective = objective_of("clgs", **settings)
    head, state_ND, vector_WD = objective.head, states(objective, batch), word_WD.detach().numpy()
    pool = {"mean": lambda rows: rows.mean(0), "max": lambda rows: rows.max(0)}

    def projected(layer, vector):
        if layer is None:
            return vector
        return np.maximum(
            graph_oracles.as_array(layer.weight) @ vector + graph_oracles.as_array(layer.bias), 0
        )

    losses, node = [], 0
    for start, stop, of_sentence in ((0, 6, graphs[0]), (6, 10, graphs[1])):
        own = vector_WD[start + 1 : stop]
        text = projected(
            head.text_projection,
            vector_WD[start] if text_pooling == "cls" else pool[text_pooling](own),
        )
        similar = []
        for graph in of_sentence:
            pooled = pool[graph_pooling](state_ND[node : node + len(graph)])
            similar.append(graph_oracles.cosine(text, projected(head.graph_projection, pooled)))
            node += len(graph)
        losses.append(graph_oracles.softmax_loss(similar, 0.1))
    assert objective.embedding_loss(word_WD, batch, SingleProcess()).loss.item() == pytest.approx(
        np.mean(losses)
    )


def tag_loss(
    objective: RelationGraphObjective, batch: RelationGraphBatch, word_WD: torch.Tensor
) -> float:
    mapped = graph_oracles.as_array(objective.head.tag_space(word_WD))
    arrays = (batch.tag_W.numpy(), mapped, batch.sample_WK.numpy(), batch.sample_tag_WK.numpy())
    return float(
        np.mean(
            [one for one in graph_oracles.same_tag_losses(mapped, *arrays, 0.1) if one is not None]
        )
    )


def test_clner_draws_words_of_one_tag_together_in_a_space_of_its_own():
    objective, batch, word_WD = objective_of("clner"), pair_batch(samples=6), words()
    loss = objective.embedding_loss(word_WD, batch, SingleProcess()).loss
    assert loss.item() == pytest.approx(tag_loss(objective, batch, word_WD))
    loss.backward()
    assert objective.head.entity.weight.grad.abs().sum() > 0


def test_joint_is_both_losses():
    objective, batch, word_WD = (
        objective_of("joint", tag_weight=0.5, pairing="paper"),
        pair_batch(samples=6),
        words(),
    )
    report = objective.embedding_loss(word_WD, batch, SingleProcess())
    pairs = graph_oracles.cldr_loss(
        word_WD.detach().numpy(), batch, states(objective, batch), 0.1, "paper"
    )
    tags = tag_loss(objective, batch, word_WD)
    assert report.loss.item() == pytest.approx(pairs + 0.5 * tags)
    losses = {name: value.item() for name, value in report.terms.items() if name.endswith("_loss")}
    assert losses == pytest.approx({"graph_loss": pairs, "tag_loss": tags})


def test_a_batch_without_a_relation_has_no_loss_and_a_gradient_of_zero():
    batch, word_WD = batch_of([], [], [], [3, 2]), words(5)
    batch = RelationGraphBatch(
        **{**vars(batch), "sentence_A": torch.zeros(0).long(), "word_N": torch.zeros(0).long()}
    )
    loss = objective_of("cldr").embedding_loss(word_WD, batch, SingleProcess()).loss
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(word_WD.grad, torch.zeros_like(word_WD))
