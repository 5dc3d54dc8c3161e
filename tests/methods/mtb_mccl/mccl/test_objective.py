"""MCCL over labeled pairs: the loss with any number of proxies, against loops."""

import logging
import math

import numpy as np
import pytest
import torch

from raybio.core.interfaces import Collective
from raybio.methods import METHODS
from raybio.methods.mtb_mccl.batches import LabeledDocumentBatch
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mccl.adaptive_threshold import adaptive_threshold
from raybio.methods.mtb_mccl.mccl.config import RelationObjectiveConfig
from raybio.methods.mtb_mccl.mccl.labeled_pairs import LabeledPairs
from raybio.methods.mtb_mccl.mccl.objective import RelationHead, RelationObjective
from raybio.training.collective import SingleProcess
from raybio.training.loop import fit
from tests import relation_oracles
from tests.device_operations import DeviceOperations
from tests.methods.conformance_cases import tiny_config
from tests.ops.threads import in_threads


def batch_of(label_PC: torch.Tensor) -> LabeledDocumentBatch:
    """Pairs of one document without tokens."""
    nothing, zero = torch.zeros(0, dtype=torch.long), torch.zeros(1, dtype=torch.long)
    names = LabeledDocumentBatch.__dataclass_fields__
    parts = {name: zero if name.endswith("1") else nothing for name in names}
    pair_G, class_G = label_PC.nonzero().unbind(1)
    labels = {"label_PC": label_PC, "pair_G": pair_G, "class_G": class_G}
    return LabeledDocumentBatch(**parts | labels)


@pytest.mark.parametrize("num_proxies", [0, 1, 3])
def test_the_loss_is_the_mean_of_the_loop_over_pairs_and_every_proxy_is_trained(
    num_proxies: int,
) -> None:
    torch.manual_seed(0)
    embedding_PD = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    label_PC = torch.nn.functional.one_hot(torch.tensor([0, 0, 0, 0, 1, 1, 1, 0, 2]), 4).bool()
    config = RelationObjectiveConfig(num_proxies=num_proxies)
    head = RelationHead(config, num_classes=4, width=4).double()
    assert (0 if head.proxy_CD is None else len(head.proxy_CD)) == 4 * num_proxies
    with torch.no_grad():
        head.bias_C.copy_(torch.tensor([0.3, -0.1, 0.0, 0.2]))
    report = RelationObjective(config, head, is_multi_label=False).embedding_loss(
        embedding_PD, batch_of(label_PC), SingleProcess()
    )
    pairs, proxies = (
        embedding_PD.detach(),
        None if head.proxy_CD is None else head.proxy_CD.detach(),
    )
    bias = head.bias_C.detach()
    logits = relation_oracles.multi_center_logits(
        pairs, label_PC, proxies, bias, 0.2, 0.2, pairs, label_PC, 0
    )
    expected = 0.0
    for logit, label in zip(logits, label_PC.int().argmax(1).tolist(), strict=True):
        if logit[label] > -math.inf:  # else it is alone in its class, which has no proxy
            expected -= logit[label] - math.log(sum(math.exp(one) for one in logit))
    assert report.loss.item() == pytest.approx(expected / 9, rel=1e-9)
    report.loss.backward()
    if head.proxy_CD is not None:
        assert (head.proxy_CD.grad.abs().sum(1) > 0).all()


@pytest.mark.parametrize("is_multi_label", [False, True])
@pytest.mark.parametrize("kind", ["mccl", "supcon", "ce"])
def test_the_host_does_not_wait_for_labels_on_a_gpu(kind: str, is_multi_label: bool) -> None:
    config = RelationObjectiveConfig(kind=kind)
    head = RelationHead(config, num_classes=3, width=4)
    label_PC = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 1, is_multi_label], [1, 0, 0]]).bool()
    batch = batch_of(label_PC)
    embedding_PD = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    with DeviceOperations() as operations:
        objective = RelationObjective(config, head, is_multi_label, torch.zeros(3))
        objective.embedding_loss(embedding_PD, batch, SingleProcess()).loss.backward()
    assert not operations.synchronizing
    assert embedding_PD.grad.abs().max() > 0


@pytest.mark.parametrize("num_proxies", [0, 2])
@pytest.mark.parametrize("is_multi_label", [False, True])
def test_chance_of_mccl_is_the_loss_of_equal_embeddings_with_the_trained_biases(
    is_multi_label: bool, num_proxies: int
) -> None:
    config = RelationObjectiveConfig(num_proxies=num_proxies)
    head = RelationHead(config, num_classes=4, width=3)
    with torch.no_grad():
        head.bias_C.copy_(torch.tensor([0.9, -0.1, 0.0, 0.2]))
    label_PC = torch.nn.functional.one_hot(torch.tensor([0, 0, 0, 1, 1, 2]), 4).bool()
    label_PC[3, 2] = is_multi_label
    objective = RelationObjective(config, head, is_multi_label)
    # Zero vectors have equal cosines with everything, proxies included.
    terms = objective.embedding_loss(torch.zeros(6, 3), batch_of(label_PC), SingleProcess()).terms
    assert terms["mccl_chance"] == pytest.approx(float(terms["mccl_loss"]), rel=1e-6)
    spread_PD = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    other = objective.embedding_loss(spread_PD, batch_of(label_PC), SingleProcess()).terms
    assert other["mccl_chance"] == pytest.approx(float(terms["mccl_chance"]), rel=1e-6)
    assert other["mccl_chance"] != pytest.approx(float(other["mccl_loss"]), rel=1e-3)


@pytest.mark.parametrize("is_coarse", [False, True])
def test_chance_of_a_classifier_is_the_cross_entropy_under_the_shares_of_the_training_labels(
    tiny_documents: DocumentStore, is_coarse: bool
) -> None:
    """One worker has the loop's value, and two workers' shares add up to it."""
    settings = {
        "objective.ce_weight": 0.5,
        "data.label_fraction": 0.5,
        "data.is_coarse": is_coarse,
    }
    config = tiny_config("relation_finetune", **settings)
    system = METHODS["relation_finetune"].build(config, tiny_documents.path)
    labeled = LabeledPairs(tiny_documents, "train", 0.5, config.seed)
    num_C = sum(labeled.labels(row).sum(axis=0) for row in labeled.rows.tolist())
    if is_coarse:
        num_C = np.array([num_C[0], num_C[1:].sum()])

    def terms(collective: Collective) -> dict[str, float]:
        arrays = system.collate(0, collective.rank, collective.world)
        batch = system.batch_type.from_arrays(arrays)
        with torch.no_grad():
            embedding_PD = torch.arange(1.0, len(batch.label_PC) + 1)[:, None]
            embedding_PD = embedding_PD.expand(-1, system.model.width)
            report = system.objective.embedding_loss(embedding_PD, batch, collective)
        return {name: float(value) for name, value in report.terms.items()}

    label_PC = system.collate(0, 0, 1)["label_PC"]
    expected = 0.0
    for label_C in label_PC:
        expected -= math.log(num_C[label_C.argmax()] / num_C.sum()) / len(label_PC)
    whole = terms(SingleProcess())
    assert whole["ce_chance"] == pytest.approx(expected, rel=1e-5)
    shares = in_threads(2, terms)
    for name in ("ce_chance", "mccl_chance"):
        assert sum(share[name] for share in shares) == pytest.approx(whole[name], rel=1e-5)
        assert all(share[name] > 0 for share in shares)


@pytest.mark.parametrize("predicts_prior", [True, False])
def test_a_classifier_that_predicts_the_shares_of_the_labels_is_warned_about(
    tiny_documents: DocumentStore, caplog: pytest.LogCaptureFixture, predicts_prior: bool
) -> None:
    settings = {
        "objective.kind": "ce",
        "optim.peak_lr": 1e-9,
        "schedule.evaluate_every_steps": 0,
    }
    config = tiny_config("relation_finetune", **settings)
    system = METHODS["relation_finetune"].build(config, tiny_documents.path)
    classifier = system.model.head.classifier
    with torch.no_grad():
        classifier.weight.zero_()
        classifier.bias.zero_()
        if predicts_prior:
            classifier.bias.copy_(system.objective.constant_logits_C.clamp(min=-30))
    list(fit(system, config))
    warned = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warned) == predicts_prior
    if predicts_prior:
        assert warned[0].startswith("ce_loss ")
        assert "collapsed, or carry no information about the labels" in warned[0]


def test_log_shares_are_nearly_the_best_constant_logits_of_pairs_with_several_relations() -> None:
    """Nine in ten pairs have no relation, and three in ten of the others have two."""
    label_SC = torch.eye(6).bool()
    label_SC = torch.cat([label_SC, label_SC[1:5] | label_SC[2:]])
    share_S = torch.tensor([0.9] + [0.07 / 5] * 5 + [0.03 / 4] * 4, dtype=torch.float64)

    def mean_loss(logits_C: torch.Tensor) -> torch.Tensor:
        loss_S = adaptive_threshold(logits_C.expand(label_SC.shape), label_SC, na_index=0)
        return (loss_S * share_S).sum()

    start_C = (label_SC * share_S[:, None]).sum(0).log()
    logits_C = start_C.clone().requires_grad_()
    optimizer = torch.optim.Adam([logits_C], lr=0.01)
    for _ in range(500):
        optimizer.zero_grad()
        loss = mean_loss(logits_C)
        loss.backward()
        optimizer.step()
    least = float(loss.detach())
    assert least < mean_loss(start_C) < 1.0001 * least
