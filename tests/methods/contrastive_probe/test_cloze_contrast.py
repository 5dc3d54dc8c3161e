import math

import numpy as np
import pytest
import torch

from raybio.methods.contrastive_probe.batches import ClozeBatch
from raybio.methods.contrastive_probe.config import ClozeContrastConfig
from raybio.methods.contrastive_probe.loss import ClozeContrast
from raybio.training.collective import SingleProcess
from tests.oracles import cosine


def batch_of(
    num: int,
    same_sentence: tuple[tuple[int, int], ...] = (),
    same_text: tuple[tuple[int, int], ...] = (),
) -> ClozeBatch:
    """A batch without tokens, with pairs of equal sentences, and pairs of sequences of one text."""
    sentence = np.arange(num)
    for one, other in same_sentence:
        sentence[other] = sentence[one]
    text = np.arange(2 * num)
    for one, other in same_text:
        text[other] = text[one]
    return ClozeBatch.from_arrays(
        {
            "token_T": np.zeros(0),
            "indptr_R1": np.zeros(1, dtype=np.int64),
            "label_T": np.zeros(0),
            "sentence_key_R": np.tile(sentence, 2),
            "text_key_R": text,
        }
    )


def nt_xent(embedding: np.ndarray, temperature: float, ignored: set[tuple[int, int]]) -> float:
    """The authors' loss: both ordered pairs of each positive; all other sequences are negatives."""
    num = len(embedding) // 2
    total = 0.0
    for a in range(2 * num):
        p = (a + num) % (2 * num)
        negatives = [k for k in range(2 * num) if k % num != a % num and (a, k) not in ignored]
        score = {k: cosine(embedding[a], embedding[k]) / temperature for k in [p, *negatives]}
        total += -score[p] + math.log(sum(math.exp(one) for one in score.values()))
    return total / (2 * num)


@pytest.mark.parametrize("temperature", [0.04, 0.5])
@pytest.mark.parametrize("same_text", [(), ((0, 3), (8, 2))])
def test_the_loss_is_the_authors_over_both_directions(
    temperature: float, same_text: tuple[tuple[int, int], ...]
) -> None:
    embedding = np.random.default_rng(0).normal(size=(14, 5))
    objective = ClozeContrast(ClozeContrastConfig(temperature=temperature))
    report = objective.embedding_loss(
        torch.from_numpy(embedding), batch_of(7, same_text=same_text), SingleProcess()
    )
    # A copy of a text is no negative of that text, nor of its partner.
    ignored = {
        (anchor, other)
        for pair in same_text
        for one, other in (pair, pair[::-1])
        for anchor in (one, (one + 7) % 14)
    }
    assert float(report.loss) == pytest.approx(nt_xent(embedding, temperature, ignored), rel=1e-9)
    assert float(report.terms["ignored_pair_rate"]) == pytest.approx(len(ignored) / (14 * 12))


def test_queries_and_answers_can_be_swapped() -> None:
    embedding = torch.randn(12, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    objective = ClozeContrast(ClozeContrastConfig())
    there = objective.embedding_loss(embedding, batch_of(6), SingleProcess()).loss
    back = objective.embedding_loss(embedding.roll(6, 0), batch_of(6), SingleProcess()).loss
    torch.testing.assert_close(there, back)


def test_a_repeated_sentence_does_not_change_the_loss() -> None:
    """Two sequences of one text are one point: as negatives they would keep the loss at log 2."""
    corner = torch.eye(4, dtype=torch.float64)
    embedding = torch.cat([corner[[0, 0, 1, 2]], corner[[0, 0, 1, 2]]])
    objective = ClozeContrast(ClozeContrastConfig())
    twice = batch_of(4, same_sentence=((0, 1),))
    aware = objective.embedding_loss(embedding, twice, SingleProcess()).loss
    unaware = objective.embedding_loss(embedding, batch_of(4), SingleProcess()).loss
    assert float(aware) < 1e-6
    assert float(unaware) > math.log(2) / 2
