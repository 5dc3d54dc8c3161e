"""MCCL over labeled pairs: the loss with any number of proxies, against loops."""

import math

import pytest
import torch

from raybio.methods.mtb_mccl.batches import LabeledDocumentBatch
from raybio.methods.mtb_mccl.mccl.config import RelationObjectiveConfig
from raybio.methods.mtb_mccl.mccl.objective import RelationHead, RelationObjective
from raybio.training.collective import SingleProcess
from tests import relation_oracles
from tests.device_operations import DeviceOperations


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
        objective = RelationObjective(config, head, is_multi_label)
        objective.embedding_loss(embedding_PD, batch, SingleProcess()).loss.backward()
    assert not operations.synchronizing
    assert embedding_PD.grad.abs().max() > 0
