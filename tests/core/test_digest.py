import hashlib

import pytest
import torch
from torch import nn

from raybio.core.digest import file_digest, modules_digest, weights_digest


@pytest.mark.parametrize("num_bytes", [0, 5, 3 << 20])
def test_the_digest_of_a_file_is_that_of_its_bytes(tmp_path, num_bytes):
    content = bytes(range(256)) * (num_bytes // 256 + 1)
    (tmp_path / "x").write_bytes(content[:num_bytes])
    assert file_digest(tmp_path / "x") == hashlib.sha256(content[:num_bytes]).hexdigest()
    assert file_digest(tmp_path / "x", "md5") == hashlib.md5(content[:num_bytes]).hexdigest()


def test_digest_is_the_sha256_of_the_documented_bytes():
    weight = torch.tensor([[1.0, -2.0]])
    expected = hashlib.sha256(b"w" + weight.numpy().tobytes()).hexdigest()
    assert weights_digest([("w", weight)]) == expected


def test_digest_does_not_depend_on_order_or_memory_layout():
    first, second = torch.arange(6.0).reshape(2, 3), torch.zeros(0)
    scattered = first.T.contiguous().T
    assert weights_digest([("a", first), ("b", second)]) == weights_digest(
        [("b", second), ("a", scattered)]
    )


@pytest.mark.parametrize(
    "other",
    [
        [("a", torch.tensor([0.0, 1.0 + 2**-23]))],
        [("a", torch.tensor([-0.0, 1.0]))],
        [("b", torch.tensor([0.0, 1.0]))],
        [("a", torch.tensor([0.0])), ("a.", torch.tensor([1.0]))],
    ],
    ids=["last bit", "sign of zero", "name", "split"],
)
def test_digest_changes_with(other):
    assert weights_digest(other) != weights_digest([("a", torch.tensor([0.0, 1.0]))])


def test_digest_takes_bfloat16_scalars_and_parameters():
    assert weights_digest([("a", torch.nn.Parameter(torch.tensor(1.0, dtype=torch.bfloat16)))])


def test_two_tensors_of_one_name_are_an_error():
    with pytest.raises(ValueError, match="two tensors are called 'a'"):
        weights_digest([("a", torch.zeros(1)), ("a", torch.zeros(1))])


def test_the_digest_of_modules_changes_with_what_weights_do_not_show() -> None:
    def model(heads: int = 2, eps: float = 1e-5, dropout: float = 0.0) -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, heads, 16, dropout, layer_norm_eps=eps)
        return nn.Sequential(layer, nn.Linear(8, 2))

    first = model()
    assert modules_digest(model()) == modules_digest(first)
    with torch.no_grad():
        first[1].weight.add_(1)
    assert modules_digest(first.eval()) == modules_digest(model())
    others = [model(heads=4), model(eps=1e-6), model(dropout=0.5), nn.Sequential(first)]
    pooled = model()
    pooled.pooling = "cls"
    digests = {modules_digest(other) for other in [first, *others, pooled]}
    assert len(digests) == 6
