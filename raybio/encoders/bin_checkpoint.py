"""A checkpoint that its authors published as ``pytorch_model.bin`` alone, as a folder that ``encoder.source`` takes.

PubMedBERT, BlueBERT, CharacterBERT and many of their age are published as pickles. Fetch one
(``hf download ID --local-dir FOLDER``) and convert it once:

    python -m raybio.encoders.bin_checkpoint SOURCE_FOLDER OUTPUT_FOLDER

The weights go to ``model.safetensors``, all other files along; TensorFlow's names of layer norms become torch's.
"""

import shutil
import sys
from pathlib import Path

from safetensors.torch import save_file

from raybio.encoders.convert_command import convert_command
from raybio.encoders.tape_checkpoint import read_tensors
from raybio.errors import DataError
from raybio.folders import whole_folder

WEIGHTS = "pytorch_model.bin"
LEFT_OUT = {".bin", ".h5", ".msgpack", ".ot", ".ckpt", ".safetensors", ".pt", ".pkl"}
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
        raise DataError(f"{source}: holds no {WEIGHTS}, want a folder with one (a checkpoint in parts is not read)")
    # Tied weights share memory in a pickle; safetensors wants each tensor to have its own.
    tensors = {_torch_name(name): tensor.clone() for name, tensor in read_tensors(source / WEIGHTS).items()}
    with whole_folder(Path(out_dir)) as folder:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        for file in source.iterdir():
            if file.is_file() and file.suffix not in LEFT_OUT and not file.name.startswith("."):
                shutil.copyfile(file, folder / file.name)
    return Path(out_dir)


def _torch_name(name: str) -> str:
    for ending, right in _TORCH_NAMES.items():
        if name.endswith(f"LayerNorm{ending}"):
            return name.removesuffix(ending) + right
    return name


if __name__ == "__main__":
    sys.exit(convert_command(convert_bin_checkpoint, sys.argv))
