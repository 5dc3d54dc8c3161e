"""The slow, obvious versions of what relation-aware embeddings compute, written from the paper's equations."""

import math

import numpy as np
import torch


def cosine(one, other) -> float:
    one, other = np.asarray(one, float), np.asarray(other, float)
    size = np.linalg.norm(one) * np.linalg.norm(other)
    return float(one @ other / size) if size else 0.0


def graph_convolution(feature_ND, adjacency_NN, weight_DD, bias_D):
    """A X W + b, entry by entry."""
    num, width = len(feature_ND), weight_DD.shape[1]
    out = np.zeros((num, width))
    for node in range(num):
        for column in range(width):
            total = bias_D[column]
            for other in range(num):
                for row in range(len(weight_DD)):
                    total += (
                        adjacency_NN[node][other] * feature_ND[other][row] * weight_DD[row][column]
                    )
            out[node, column] = total
    return out


def symmetric_adjacency(num: int, edges) -> np.ndarray:
    """D^-1/2 (A + I) D^-1/2 of undirected edges."""
    matrix = np.eye(num)
    for one, other in edges:
        matrix[one, other] = matrix[other, one] = 1
    degree = matrix.sum(1)
    return matrix / np.sqrt(np.outer(degree, degree))


def softmax_loss(similarities, temperature: float) -> float:
    """-log of the first one's share."""
    powers = [math.exp(one / temperature) for one in similarities]
    return -math.log(powers[0] / sum(powers))


def same_tag_losses(
    vectors, tags, others, samples, sample_tags, temperature: float
) -> list[float | None]:
    losses: list[float | None] = []
    for number, tag in enumerate(tags):
        there = [place for place, word in enumerate(samples[number]) if word >= 0]
        power = {
            place: math.exp(cosine(vectors[number], others[samples[number][place]]) / temperature)
            for place in there
        }
        positive = [power[place] for place in there if sample_tags[number][place] == tag]
        losses.append(
            -math.log(sum(positive) / sum(power.values())) if tag >= 0 and positive else None
        )
    return losses


def cldr_loss(embedding_WD, batch, states_ND, temperature: float, pairing: str) -> float:
    """Mean over sentences of the mean over their relations, from the text of words and the states of nodes."""
    word, graph_of = batch.word_N.tolist(), batch.anchor_G.tolist()

    def text(graph):
        return np.maximum(
            np.concatenate([embedding_WD[word[2 * graph]], embedding_WD[word[2 * graph + 1]]]), 0
        )

    def state(graph):
        return np.concatenate([states_ND[2 * graph], states_ND[2 * graph + 1]])

    by_sentence: dict[int, list[float]] = {}
    for anchor, sentence in enumerate(batch.sentence_A.tolist()):
        graphs = [graph for graph, of in enumerate(graph_of) if of == anchor]
        texts = [text(graphs[0]) if pairing == "paper" else text(graph) for graph in graphs]
        similarities = [cosine(one, state(graph)) for one, graph in zip(texts, graphs, strict=True)]
        by_sentence.setdefault(sentence, []).append(softmax_loss(similarities, temperature))
    return float(np.mean([np.mean(losses) for losses in by_sentence.values()]))


def as_array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()
