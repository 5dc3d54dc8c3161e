"""Weights that are published as ``pytorch_model.bin`` only: read safely, and kept as safetensors.

PubMedBERT, BlueBERT, CharacterBERT and other older checkpoints are pickles. The restricted
unpickler of torch reads them (``weights_only=True``): anything but tensors is refused. The result
goes to the cache (``raybio.core.cache``), by commit for a hub id and by sha256 for a folder, and is
read from there later on. TensorFlow's names of layer norms become torch's.
"""

import hashlib
import json
import posixpath
import re
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from raybio.core.cache import cache_folder, cached_folder
from raybio.core.errors import DataError, one_line
from raybio.core.files import atomic_folder
from raybio.encoders.sources import (
    CONFIG,
    CONVERTED,
    INDEX,
    PICKLE,
    SAFETENSORS,
    fetch_file,
    find_source,
    find_weights,
    require_file,
    sha256_of_weights,
    unloadable,
    weights_files,
)

_TORCH_NAMES = {".gamma": ".weight", ".beta": ".bias"}

_FOREIGN = re.compile(r"(?:GLOBAL|unrecognized\s+function)\s+([\w.]+)")
"""Finds in torch's message the name of an object that is not part of a tensor."""

_SETTINGS = (CONFIG, "generation_config.json")
"""Files that ``from_pretrained`` wants next to weights."""


def cache_key(source: str, revision: str) -> str:
    """Return the relative path in the cache for files made from the weights of a source.

    Raises:
        ConfigError: if its weights cannot be found.
    """
    at = find_source(source, revision)
    if at.commit is None:
        settings = require_file(source, _beside(source, revision, CONFIG), revision).read_bytes()
        both = sha256_of_weights(source, revision).encode() + settings
        return f"{CONVERTED}/folders/{hashlib.sha256(both).hexdigest()}"
    return f"{CONVERTED}/hub/{source.replace('/', '--')}/{at.commit}"


def is_unconverted(source: str, revision: str) -> bool:
    """Return whether a hub id has pickled weights that are not in this machine's cache.

    Raises:
        ConfigError: if the source or its weights cannot be found or reached.
    """
    if find_source(source, revision).commit is None or not find_weights(source, revision).is_pickle:
        return False
    return not (cache_folder() / cache_key(source, revision)).is_dir()


def converted_weights(source: str, revision: str) -> Path:
    """Return a folder with the pickled weights of a source as safetensors, from the cache.

    Raises:
        ConfigError: if the source's weights are missing, damaged, or more than tensors.
    """

    def convert(folder: Path) -> None:
        try:
            convert_weights(source, revision, folder)
        except DataError as error:
            raise unloadable(source, str(error)) from None

    return cached_folder(cache_key(source, revision), convert)


def convert_weights(source: str, revision: str, out_dir: Path) -> None:
    """Write the pickled weights of a source as safetensors, one file for each of its parts.

    Args:
        source: a folder or hub id whose weights are pickled.
        revision: of a hub id.
        out_dir: the folder, which appears whole or not at all.

    Raises:
        ConfigError: if a file is missing.
        DataError: if a file is damaged, or more than tensors.
    """
    weights = find_weights(source, revision)
    file_by_tensor: dict[str, str] = {}
    with atomic_folder(out_dir) as folder:
        for name in weights_files(source, revision):
            # Tied weights share memory in a pickle, and weights from TensorFlow may be transposed
            # views. safetensors wants each tensor contiguous, in memory of its own.
            tensors = {
                _torch_name(tensor_name): tensor.clone(memory_format=torch.contiguous_format)
                for tensor_name, tensor in read_tensors(
                    require_file(source, name, revision)
                ).items()
            }
            part = SAFETENSORS
            if weights.name.endswith(INDEX):
                part = f"{Path(name).stem}.safetensors"
            save_file(tensors, folder / part, metadata={"format": "pt"})
            file_by_tensor |= dict.fromkeys(tensors, part)
        if weights.name.endswith(INDEX):
            index = {"metadata": {}, "weight_map": file_by_tensor}
            (folder / f"{SAFETENSORS}{INDEX}").write_text(json.dumps(index), encoding="utf-8")
        for name in _SETTINGS:
            path = fetch_file(source, _beside(source, revision, name), revision)
            if path is not None:
                shutil.copyfile(path, folder / name)


def _beside(source: str, revision: str, name: str) -> str:
    """Return the path inside a source of a file next to its weights."""
    return posixpath.join(find_weights(source, revision).subfolder, name)


def _torch_name(name: str) -> str:
    for ending, right in _TORCH_NAMES.items():
        if name.endswith(f"LayerNorm{ending}"):
            return name.removesuffix(ending) + right
    return name


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a pickled checkpoint by name; refuse anything else in it.

    Raises:
        DataError: if the file is missing, damaged, or no mapping of names to tensors.
    """
    try:
        # Memory-map the file where its format allows it, to copy weights once instead of twice.
        tensors = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except Exception as error:
        # The restricted unpickler of torch raises any kind of exception for damaged bytes.
        if foreign := _FOREIGN.search(str(error)):
            raise DataError(
                f"{path.name} holds more than tensors, and reading it would run code "
                f"({foreign[1]}). It is not read. Want a checkpoint of tensors alone, best as "
                f"{SAFETENSORS}"
            ) from None
        raise DataError(
            f"{path.name} cannot be read as a file of tensors ({one_line(error)}). Fetch it again"
        ) from None
    is_mapping = isinstance(tensors, Mapping) and all(
        isinstance(tensor, Tensor) for tensor in tensors.values()
    )
    if not is_mapping:
        raise DataError(
            f"{path.name} holds {type(tensors).__name__}, want a mapping of names to tensors, "
            f"which {PICKLE} of transformers is"
        )
    return dict(tensors)
