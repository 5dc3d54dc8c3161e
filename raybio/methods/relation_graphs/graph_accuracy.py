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
from raybio.methods.relation_graphs.batches import RelationGraphBatch, WordBatch
from raybio.methods.relation_graphs.collate import RelationGraphCollate
from raybio.methods.relation_graphs.encoder import WordEncoder
from raybio.methods.relation_graphs.objective import RelationGraphObjective
from raybio.ops.spread import spread_metrics
from raybio.training.collective import SingleProcess
from raybio.training.embed import embed_rows


class GraphValidation(NamedTuple):
    """Results on held-out sentences.

    Attributes:
        log_likelihood: minus the loss, whose terms are means over all sentences with a relation,
            and over all words with a sample of their tag; NaN if there are none of these.
        accuracy_S: of each sentence with false graphs, the share of its anchors whose true graph is
            the most similar one; empty for a model without graphs.
        spread: metrics of the spread of their words.
    """

    log_likelihood: float
    accuracy_S: np.ndarray
    spread: dict[str, float]

    def metrics(self) -> Mapping[str, float]:
        """Return the metrics to log."""
        found = {} if math.isnan(self.log_likelihood) else {"log_likelihood": self.log_likelihood}
        return found | (
            {"graph_accuracy": float(self.accuracy_S.mean())} if len(self.accuracy_S) else {}
        )


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
        collective: the other workers, who embed a share of the words.
        max_tokens: padded tokens that are encoded at once.
    """
    device = next(model.parameters()).device
    # Whatever training averages, sentences here count alike, and those beside them in a batch are
    # no matter.
    mean = objective.config.model_copy(update={"reduction": "mean", "in_batch_negatives": False})
    objective = replace(objective, config=mean)
    # Whatever the loss compares, the nearest graph is one text's: that of the true pair, or of the
    # sentence.
    same_text = replace(objective, config=mean.model_copy(update={"pairing": "paper"}))

    def read(some: np.ndarray) -> WordBatch:
        return WordBatch.from_arrays(collate.reader.arrays(some.tolist()))

    word_WD = embed_rows(model, read, rows, collective, max_tokens=max_tokens)
    start = 0
    counts, totals = Counter[str](), dict[str, float]()
    accuracies = [np.zeros(0)]
    for first in range(0, len(rows), collate.batch_rows):
        some = rows[first : first + collate.batch_rows]
        arrays = collate.arrays(some, derive_seed(collate.seed, "validation", first))
        batch = RelationGraphBatch.from_arrays(arrays).to(device)
        own_WD = word_WD[start : start + batch.num_embeddings]
        start += batch.num_embeddings
        with torch.no_grad():
            terms = objective.embedding_loss(own_WD, batch, SingleProcess()).terms
            for term, num in objective.num_averaged(batch).items():
                totals[term] = totals.get(term, 0.0) + num * float(terms[term])
                counts[term] += num
            if objective.model != "clner":
                accuracies.append(
                    _accuracy(same_text.similarities(own_WD, batch).similarity_G, batch)
                )
    has_all = all(counts.values())
    means = {
        term: objective.weight_of(term) * totals[term] / counts[term] for term in counts if has_all
    }
    is_word_W = torch.ones(len(word_WD), dtype=torch.bool, device=device)
    is_word_W[torch.from_numpy(collate.reader.word_pointers(rows.tolist())[:-1]).to(device)] = False
    log_likelihood = -sum(means.values()) if has_all else math.nan
    return GraphValidation(
        log_likelihood, np.concatenate(accuracies), spread_metrics(word_WD[is_word_W])
    )


def _accuracy(similarity_G: Tensor, batch: RelationGraphBatch) -> np.ndarray:
    """Return, for each sentence, the fraction of anchors whose true graph is the most similar."""
    similarity, anchor = similarity_G.cpu().numpy(), batch.anchor_G.cpu().numpy()
    if not len(anchor):
        return np.zeros(0)
    first_A = np.flatnonzero(np.r_[True, np.diff(anchor) != 0])
    best_other_A = np.full(len(first_A), -np.inf)
    others = np.setdiff1d(np.arange(len(anchor)), first_A)
    np.maximum.at(best_other_A, anchor[others], similarity[others])
    has_false_graph_A = (
        best_other_A > -np.inf
    )  # an anchor without a false graph would always be right
    sentence_A = batch.sentence_A.cpu().numpy()[has_false_graph_A]
    is_found_A = (similarity[first_A] > best_other_A)[has_false_graph_A]
    num_S = np.bincount(sentence_A)
    return np.bincount(sentence_A, is_found_A)[num_S > 0] / num_S[num_S > 0]
