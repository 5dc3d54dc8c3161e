"""Convert a checkpoint whose weights are published as ``pytorch_model.bin`` only.

``encoder.source`` takes safetensors. PubMedBERT, BlueBERT, CharacterBERT and other older
checkpoints are pickles. Fetch one (``hf download ID --local-dir FOLDER``) and convert it once:

    python -m raybio.encoders.bin_checkpoint SOURCE_FOLDER OUTPUT_FOLDER

The weights go to ``model.safetensors`` and all other files are copied. TensorFlow's names of layer
norms become torch's.
"""

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from raybio.core.errors import DataError
from raybio.core.files import atomic_folder

WEIGHTS = "pytorch_model.bin"

SKIPPED_SUFFIXES = {".bin", ".h5", ".msgpack", ".ot", ".ckpt", ".safetensors", ".pt", ".pkl"}
"""Files of weights, which are not copied."""

_TORCH_NAMES = {".gamma": ".weight", ".beta": ".bias"}


def convert_bin_checkpoint(source_dir: str | Path, out_dir: str | Path) -> Path:
    """Write the checkpoint in ``source_dir`` to ``out_dir`` with its weights as safetensors.

    Returns:
        ``out_dir``, which appears whole or not at all.

    Raises:
        DataError: if the weights are missing, in several files, damaged, or more than tensors.
    """
    source = Path(source_dir)
    if not (source / WEIGHTS).is_file():
        raise DataError(
            f"{source}: holds no {WEIGHTS}, want a folder with one (a checkpoint in parts is not "
            "read)"
        )
    # Tied weights share memory in a pickle; safetensors wants each tensor to have its own.
    tensors = {
        _torch_name(name): tensor.clone() for name, tensor in read_tensors(source / WEIGHTS).items()
    }
    with atomic_folder(Path(out_dir)) as folder:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        for file in source.iterdir():
            is_hidden = file.name.startswith(".")
            if file.is_file() and file.suffix not in SKIPPED_SUFFIXES and not is_hidden:
                shutil.copyfile(file, folder / file.name)
    return Path(out_dir)


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
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # The restricted unpickler of torch raises any kind of exception for damaged bytes.
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{path}: cannot be read as a file of tensors ({reason}). Download it again."
        ) from None
    is_mapping = isinstance(tensors, Mapping) and all(
        isinstance(tensor, Tensor) for tensor in tensors.values()
    )
    if not is_mapping:
        raise DataError(
            f"{path}: holds {type(tensors).__name__}, want a mapping of names to tensors"
        )
    return dict(tensors)


def convert_command(
    module: str, convert: Callable[[str, str], Path], folders: Sequence[str]
) -> str | None:
    """Run ``python -m MODULE SOURCE OUTPUT``; return the error message, None on success."""
    if len(folders) != 2:
        return f"usage: python -m {module} SOURCE_FOLDER OUTPUT_FOLDER"
    try:
        sys.stdout.write(f"{convert(*folders)}\n")
    except (DataError, OSError) as error:
        return f"error: {error}"
    return None


if __name__ == "__main__":
    sys.exit(
        convert_command("raybio.encoders.bin_checkpoint", convert_bin_checkpoint, sys.argv[1:])
    )
