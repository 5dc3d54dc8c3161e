import torch

from raybio.ops.similarity import cosine
from tests import oracles


def vectors(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(num, 6, generator=generator, dtype=torch.float64).to(dtype) for num in (7, 5)
    ]


def test_the_matrix_equals_the_loop():
    anchor, candidate = vectors()
    expected = torch.tensor(
        [[oracles.cosine(a, c) for c in candidate] for a in anchor], dtype=torch.float64
    )
    assert torch.allclose(cosine(anchor, candidate), expected, atol=1e-12)
    assert torch.allclose(cosine(anchor.float(), candidate.float()).double(), expected, atol=1e-5)


def test_cosine_does_not_depend_on_the_length_of_vectors():
    anchor, candidate = vectors(torch.float32)
    scale = torch.tensor([1e-30, 1e-20, 1e-5, 1.0, 1e5, 1e20, 1e30])[:, None]
    assert torch.allclose(cosine(anchor * scale, candidate), cosine(anchor, candidate), atol=1e-6)


def test_zero_vectors_have_cosine_zero_and_no_gradient():
    anchor, candidate = vectors()
    anchor[2] = 0
    anchor.requires_grad_()
    result = cosine(anchor, candidate)
    result.sum().backward()
    assert torch.equal(result[2], torch.zeros(5))
    assert torch.equal(anchor.grad[2], torch.zeros(6))
    assert torch.isfinite(anchor.grad).all()


def test_cosine_has_the_numeric_gradient():
    anchor, candidate = vectors()
    assert torch.autograd.gradcheck(cosine, (anchor.requires_grad_(), candidate.requires_grad_()))


def test_half_precision_is_computed_in_single():
    anchor, candidate = vectors(torch.bfloat16)
    assert torch.equal(cosine(anchor, candidate), cosine(anchor.float(), candidate.float()))
