"""Multiple negatives ranking (Henderson et al. 2017): a text's term against the terms of all pairs.

Shape letters: N pairs of this worker, G pairs of all workers, R = 2 N sequences (texts, then
terms), D width.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raybio.core.interfaces import Collective, Gathered, LossReport
from raybio.methods.biostransformers.batches import PairBatch
from raybio.methods.biostransformers.config import MIN_TEMPERATURE, RankingConfig
from raybio.ops.contrastive import equal_rows, info_nce
from raybio.ops.grouped import lists_contain
from raybio.training.objectives import CouplingObjective


@dataclass(frozen=True)
class MultipleNegativesRanking(CouplingObjective):
    """InfoNCE over the pairs of all workers, without false negatives.

    Minimizes the mean over pairs i of -log(exp(S_ii) / sum_j exp(S_ij)), S_ij = cos(text_i,
    term_j) / τ. The sum skips other terms of text i's own article. With ``symmetric`` the loss is
    the mean of this loss and the same loss with texts and terms exchanged.

    Attributes:
        config: settings.
        log_temperature: the trained parameter, or None for a fixed τ.
    """

    config: RankingConfig
    log_temperature: Tensor | None = None

    def embedding_loss(
        self, embedding_RD: Tensor, batch: PairBatch, collective: Collective
    ) -> LossReport:
        """Return this worker's share of the mean over all pairs."""
        text_ND, term_ND = embedding_RD.chunk(2)
        num_pairs = len(text_ND)
        temperature: Any = self.config.temperature
        if self.log_temperature is not None:
            # Clamp the parameter itself, as in CLIP: clamped in the loss, it would get no gradient.
            with torch.no_grad():
                self.log_temperature.clamp_(min=math.log(MIN_TEMPERATURE))
            temperature = self.log_temperature.exp()
        gathered = collective.all_gather(term_ND)
        own_N = gathered.offset + torch.arange(num_pairs, device=embedding_RD.device)
        term_GD = gathered.row_MD
        num_global = len(term_GD)
        ignore_NG = other_terms_of_text(batch, own_N, collective, gathered)
        text_GD = None
        ignore_reverse_NG = None
        if self.config.symmetric:
            text_GD = collective.all_gather(text_ND, gathered).row_MD
            ignore_reverse_NG = other_texts_of_term(batch, own_N, num_global, collective)

        def mean_loss(
            texts: Tensor, terms: Tensor, all_texts: Tensor | None, all_terms: Tensor
        ) -> Tensor:
            loss = info_nce(texts, all_terms, own_N, temperature=temperature, ignore_NM=ignore_NG)
            if all_texts is None:
                return loss
            reverse_loss = info_nce(
                terms, all_texts, own_N, temperature=temperature, ignore_NM=ignore_reverse_NG
            )
            return (loss + reverse_loss) / 2

        local_share = num_pairs / num_global
        share = mean_loss(text_ND, term_ND, text_GD, term_GD) * local_share
        with torch.no_grad():
            equal_G1 = equal_rows(term_GD)
            equal_N1 = equal_rows(text_ND)
            all_texts = None if text_GD is None else equal_G1
            chance = mean_loss(equal_N1, equal_N1, all_texts, equal_G1)
        terms = {
            "ranking_chance": chance * local_share,
            "ignored_pair_rate": ignore_NG.sum() / (num_global * max(num_global - 1, 1)),
            "deferred_pair_rate": batch.num_deferred / num_global,
            "forced_pair_rate": batch.num_forced / num_global,
            "dropped_pairs_per_pair": batch.num_dropped / num_global,
        }
        if self.log_temperature is not None:
            terms["temperature"] = temperature.detach() / collective.world
        return LossReport(share, {"ranking_loss": share.detach(), **terms})


def other_terms_of_text(
    batch: PairBatch, own_N: Tensor, collective: Collective, gathered: Gathered | None = None
) -> Tensor:
    """Return the mask of other pairs' terms that belong to the text's own article, bool (N, G).

    Args:
        batch: this worker's shard.
        own_N: number of each pair in the global batch.
        collective: the other workers.
        gathered: the embeddings of all terms, if they were gathered before.
    """
    term_G = collective.all_gather(batch.term_N, gathered).row_MD
    has_term_NG = lists_contain(batch.pair_E, batch.term_E, term_G, len(own_N))
    return has_term_NG.scatter(1, own_N[:, None], False)


def other_texts_of_term(
    batch: PairBatch, own_N: Tensor, num_global: int, collective: Collective
) -> Tensor:
    """Return the mask of other pairs' texts whose article has the term, bool (N, G).

    Args:
        batch: this worker's shard.
        own_N: number of each pair in the global batch.
        num_global: G.
        collective: the other workers.
    """
    entry_E2 = torch.stack([own_N.index_select(0, batch.pair_E), batch.term_E], dim=1)
    pair_F, term_F = collective.all_gather(entry_E2).row_MD.unbind(1)  # F entries of all workers
    has_term_GN = lists_contain(pair_F, term_F, batch.term_N, num_global)
    return has_term_GN.T.scatter(1, own_N[:, None], False)
