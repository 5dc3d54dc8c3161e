"""Validation by graphs: the loss on held-out sentences, and how often the true graph is nearest.

Shape letters as in ``RelationGraphBatch``.
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raybio.core.interfaces import Collective
from raybio.core.randomness import derive_seed
from raybio.methods.relation_graphs.batches import RelationGraphBatch
from raybio.methods.relation_graphs.collate import RelationGraphCollate
from raybio.methods.relation_graphs.encoder import WordEncoder
from raybio.methods.relation_graphs.objective import RelationGraphObjective
from raybio.ops.embedding_geometry import spread_metrics
from raybio.training.collective import SingleProcess
from raybio.training.embed import embed_rows


class GraphValidation(NamedTuple):
    """Results on held-out sentences.

    Attributes:
        log_likelihood: minus the loss, whose terms are means over all sentences with a relation,
            and over all words with a sample of their tag; NaN if there are none of these.
        accuracy_S: for each sentence with false graphs, the share of its anchors whose true graph
            is the most similar one; empty for a model without graphs.
        chance_S: chance level of the accuracy: the mean of 1 / (1 + false graphs) over anchors.
        spread: metrics of the spread of the sentences' words.
    """

    log_likelihood: float
    accuracy_S: np.ndarray
    chance_S: np.ndarray
    spread: dict[str, float]

    def metrics(self) -> Mapping[str, float]:
        """Return the metrics to log."""
        metrics = {}
        if not math.isnan(self.log_likelihood):
            metrics["log_likelihood"] = self.log_likelihood
        if len(self.accuracy_S):
            metrics["graph_accuracy"] = float(self.accuracy_S.mean())
        return metrics


def validate_graphs(
    model: WordEncoder,
    objective: RelationGraphObjective,
    collate: RelationGraphCollate,
    rows: np.ndarray,
    collective: Collective,
    *,
    max_tokens: int,
) -> GraphValidation:
    """Compute loss and graph accuracy on held-out sentences; draws are the same at every step.

    Args:
        model: the encoder.
        objective: its loss.
        collate: builds the batches; its own rows are ignored.
        rows: held-out sentences.
        collective: the other workers, which embed a share of the words.
        max_tokens: padded tokens that are encoded at once.
    """
    # Every sentence has the same weight, whatever training averages over, and is compared with its
    # own graphs only, so that the batch size does not matter.
    mean = objective.config.model_copy(update={"reduction": "mean", "in_batch_negatives": False})
    objective = replace(objective, config=mean)
    # The nearest graph is always found for one text (of the true pair, or the sentence), even if
    # the loss pairs each graph with its own text.
    same_text = replace(objective, config=mean.model_copy(update={"pairing": "paper"}))
    word_WD = embed_rows(model, collate.reader.batch, rows, collective, max_tokens=max_tokens)
    totals: dict[str, float] = {}
    counts = Counter[str]()
    accuracies = [np.zeros((2, 0))]
    start_word = 0
    for start in range(0, len(rows), collate.batch_rows):
        batch_rows = rows[start : start + collate.batch_rows]
        arrays = collate.arrays(batch_rows, derive_seed(collate.seed, "validation", start))
        batch = RelationGraphBatch.from_arrays(arrays).to(word_WD.device)
        own_WD = word_WD[start_word : start_word + batch.num_embeddings]
        start_word += batch.num_embeddings
        with torch.no_grad():
            terms = objective.embedding_loss(own_WD, batch, SingleProcess()).terms
            for term, num in objective.num_averaged(batch).items():
                totals[term] = totals.get(term, 0.0) + num * float(terms[term])
                counts[term] += num
            if objective.model != "clner":
                similarity_G = same_text.similarities(own_WD, batch).similarity_G
                accuracies.append(_accuracy(similarity_G, batch))
    is_word_W = torch.from_numpy(collate.reader.is_word(rows.tolist())).to(word_WD.device)
    accuracy_S, chance_S = np.concatenate(accuracies, axis=1)
    return GraphValidation(
        _log_likelihood(objective, totals, counts),
        accuracy_S,
        chance_S,
        spread_metrics(word_WD[is_word_W]),
    )


def _log_likelihood(
    objective: RelationGraphObjective, totals: Mapping[str, float], counts: Mapping[str, int]
) -> float:
    """Return minus the weighted sum of the means of all terms; NaN if a term has no values."""
    if not all(counts.values()):
        return math.nan
    loss = 0.0
    for term, num in counts.items():
        loss += objective.weight_of(term) * totals[term] / num
    return -loss


def _accuracy(similarity_G: Tensor, batch: RelationGraphBatch) -> np.ndarray:
    """Return the share of anchors whose true graph is the most similar, and its chance (2, S).

    Anchors without a false graph are ignored: their true graph would always be the nearest.
    """
    similarity = similarity_G.cpu().numpy()
    anchor = batch.anchor_G.cpu().numpy()
    if not len(anchor):
        return np.zeros((2, 0))
    first_A = np.flatnonzero(np.r_[True, np.diff(anchor) != 0])
    best_false_A = np.full(len(first_A), -np.inf)
    is_false_G = np.ones(len(anchor), dtype=bool)
    is_false_G[first_A] = False
    np.maximum.at(best_false_A, anchor[is_false_G], similarity[is_false_G])
    num_false_A = np.bincount(anchor[is_false_G], minlength=len(first_A))
    has_false_A = num_false_A > 0
    sentence_A = batch.sentence_A.cpu().numpy()[has_false_A]
    is_nearest_A = (similarity[first_A] > best_false_A)[has_false_A]
    num_S = np.bincount(sentence_A)
    sums_2S = np.stack(
        [
            np.bincount(sentence_A, is_nearest_A),
            np.bincount(sentence_A, 1 / (1 + num_false_A[has_false_A])),
        ]
    )
    return np.asarray(sums_2S[:, num_S > 0] / num_S[num_S > 0])
