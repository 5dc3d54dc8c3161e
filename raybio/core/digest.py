"""One number for all weights of a model."""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor


def weights_digest(named_tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Sha256 over the name (UTF-8) and the bytes (row-major) of each tensor, in order of name; 64 hex digits.

    Equal digests mean bit-identical weights of one architecture, wherever the tensors live and in whatever order they
    come. Pass ``model.state_dict().items()``.

    Raises:
        ValueError: if two tensors have the same name.
    """
    digest = hashlib.sha256()
    previous = None
    for name, tensor in sorted(named_tensors, key=lambda item: item[0]):
        if name == previous:
            raise ValueError(f"two tensors are called {name!r}; want one tensor a name")
        previous = name
        digest.update(name.encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            # As bytes, because numpy has no bfloat16.
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
