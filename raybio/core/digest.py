"""A digest of all weights of a model."""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor


def weights_digest(named_tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return the sha256 of the names (UTF-8) and bytes (row-major) of tensors, sorted by name.

    Equal digests mean bit-identical weights of one architecture, whatever the devices and the
    order of the tensors. Pass ``model.state_dict().items()``.

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
            # Viewed as bytes, because numpy has no bfloat16.
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
