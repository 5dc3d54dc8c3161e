"""Digests of files, of JSON, and of a model's weights and other attributes."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raybio.core.errors import DataError, RaybioError

if TYPE_CHECKING:
    from torch import Tensor, nn

PLAIN = (str, int, float, bool, tuple, type(None))
"""Types of attributes that ``modules_digest`` reads."""


def file_digest(path: str | Path, algorithm: str = "sha256") -> str:
    """Return the digest of a file, in hex.

    Args:
        path: the file.
        algorithm: a name that ``hashlib.new`` knows.

    Raises:
        OSError: if it cannot be read.
    """
    with open(path, "rb") as file:
        new = partial(hashlib.new, algorithm, usedforsecurity=False)
        return hashlib.file_digest(file, new).hexdigest()


def sha256_of(path: str | Path, error: type[RaybioError] = DataError) -> str:
    """Return the sha256 of a file, in hex.

    Args:
        path: the file.
        error: the error to raise if it cannot be read; by default it is the user's input.

    Raises:
        RaybioError: ``error``.
    """
    try:
        return file_digest(path)
    except OSError as problem:
        raise error(f"{path}: cannot be read ({problem.strerror})") from None


def cached_file_digest(path: Path) -> str:
    """Return ``file_digest``, computed once per process for a file of the same size and time."""
    state = path.stat()
    return _digest_of_state(path, state.st_size, state.st_mtime_ns)


@cache
def _digest_of_state(path: Path, size: int, mtime_ns: int) -> str:
    return file_digest(path)


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys and no spaces, as UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def json_digest(value: Any) -> str:
    """Return the sha256 of ``canonical_json``, in hex."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def digest_of(content: Mapping[str, Any]) -> str:
    """Return the sha256 of JSON with sorted keys and spaces, in hex.

    Embeddings, indexes and shared scores on disk have digests of this form.
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def weights_digest(named_tensors: Iterable[tuple[str, "Tensor"]]) -> str:
    """Return the sha256 of the names (UTF-8) and bytes (row-major) of tensors, sorted by name.

    Equal digests mean bit-identical weights of one architecture, whatever the devices and the
    order of the tensors. Pass ``model.state_dict().items()``.

    Raises:
        ValueError: if two tensors have the same name.
    """
    import torch  # here, since digests of files need none, and it takes seconds

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


def modules_digest(model: "nn.Module") -> str:
    """Return the sha256 of the attributes, besides weights, that a model computes with.

    It covers the name and class of every module, and all attributes that are plain values, such as
    a pooling, a number of heads or an epsilon.
    """
    digest = hashlib.sha256()
    for name, module in model.named_modules():
        digest.update(f"{name} {type(module).__module__}.{type(module).__qualname__}".encode())
        for attribute, value in sorted(vars(module).items()):
            if isinstance(value, PLAIN) and attribute != "training":
                digest.update(f" {attribute}={value!r}".encode())
        digest.update(f" {module.extra_repr()}\n".encode())
    return digest.hexdigest()
