"""Files and folders that are written atomically, also in a crash or a power loss."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raybio.core.files import sync

CHUNK_BYTES = 4 * 2**20

_SAFETENSORS_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8",
    torch.bool: "BOOL",
}  # fmt: skip


class FileRecord(NamedTuple):
    """The record of a file in a manifest."""

    sha256: str
    bytes: int


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileRecord:
    """Write a safetensors file and force it to the disk.

    This function is used instead of the safetensors package because it hashes without a second
    read, does not copy the tensors, and releases the interpreter lock for the training thread.

    Args:
        path: file that must not exist.
        tensors: contiguous CPU tensors.

    Raises:
        OSError: with the file and the bytes written and wanted.
    """
    # With wide dtypes first, every tensor starts at a multiple of its element size.
    items = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, dict[str, object]] = {}
    end = 0
    for name, tensor in items:
        start = end
        end += tensor.nbytes
        header[name] = {
            "dtype": _SAFETENSORS_DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    def pieces() -> Iterator[memoryview]:
        yield memoryview(len(text).to_bytes(8, "little") + text)
        for _, tensor in items:
            if tensor.numel():
                yield tensor_bytes(tensor).data

    return _write(path, pieces(), 8 + len(text) + end)


def tensor_bytes(tensor: Tensor) -> np.ndarray:
    """Return the memory of a contiguous CPU tensor of any dtype as uint8."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def write_json(path: Path, value: object) -> FileRecord:
    """Write ``value`` as JSON and force it to the disk.

    Raises:
        OSError: with the file and the bytes written and wanted.
    """
    text = json.dumps(value, indent=1, sort_keys=True).encode()
    return _write(path, iter([memoryview(text)]), len(text))


def copy_file(source: Path, target: Path) -> None:
    """Copy a file's bytes and force them to the disk.

    Raises:
        OSError: if they cannot be read or written.
    """
    shutil.copyfile(source, target)
    sync(target)


def commit_folder(written: Path, final: Path) -> None:
    """Rename a fully written folder to ``final``, in one atomic step that survives a power loss."""
    sync(written)
    os.rename(written, final)
    sync(final.parent)


def remove_folder(folder: Path, doomed: Path) -> None:
    """Rename a folder to ``doomed``, then delete it, so that a kill leaves no partial folder."""
    os.rename(folder, doomed)
    shutil.rmtree(doomed)


def _write(path: Path, pieces: Iterator[memoryview], num_bytes: int) -> FileRecord:
    digest = hashlib.sha256()
    written = 0
    try:
        with open(path, "xb", buffering=0) as file:
            for piece in pieces:
                rest = piece.cast("B")
                while rest:
                    count = os.write(file.fileno(), rest[:CHUNK_BYTES])
                    digest.update(rest[:count])
                    written += count
                    rest = rest[count:]
            os.fsync(file.fileno())
    except OSError as error:
        reason = f"{error.strerror} after {written:,} of {num_bytes:,} bytes"
        raise OSError(error.errno, reason, str(path)) from error
    return FileRecord(digest.hexdigest(), written)
