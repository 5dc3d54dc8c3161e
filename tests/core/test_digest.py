import hashlib

import pytest
import torch

from raybio.core.digest import weights_digest


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
