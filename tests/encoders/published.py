"""Tiny checkpoints in the layouts of published repositories."""

import json
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoTokenizer,
)

from tests.encoders.tiny_text import save_tiny

PARTS = 2


def pickle_weights(folder: Path, tensors: dict[str, Tensor], *, in_parts: bool = False) -> None:
    """Replace a folder's weights by ``pytorch_model.bin``, or by parts of it and their list."""
    for path in folder.glob("model*.safetensors*"):
        path.unlink()
    if not in_parts:
        torch.save(tensors, folder / "pytorch_model.bin")
        return
    names = list(tensors)
    file_by_tensor = {}
    for part in range(PARTS):
        file = f"pytorch_model-0000{part + 1}-of-0000{PARTS}.bin"
        own = names[part::PARTS]
        torch.save({name: tensors[name] for name in own}, folder / file)
        file_by_tensor |= dict.fromkeys(own, file)
    index = {"metadata": {"total_size": 1}, "weight_map": file_by_tensor}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def bluebert(folder: Path) -> None:
    """BlueBERT: BERT's first settings, which do not name its type, and a vocab.txt."""
    pickled_text(folder, "bert")
    settings = json.loads((folder / "config.json").read_text())
    for name in ("model_type", "architectures", "transformers_version", "dtype"):
        settings.pop(name, None)
    (folder / "config.json").write_text(json.dumps(settings))
    id_by_token = AutoTokenizer.from_pretrained(folder).get_vocab()
    _leave_only_vocabulary(folder, sorted(id_by_token, key=id_by_token.get))


def clinicalbert(folder: Path) -> None:
    """ClinicalBERT: a cased BERT with a vocab.txt, and no file that says that it is cased."""
    pickled_text(folder, "bert")
    num_pieces = len(AutoTokenizer.from_pretrained(folder))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = ["Aspirin", "aspirin", "Café", "cafe", "##s"]
    unused = [f"[unused{number}]" for number in range(num_pieces - len(special) - len(pieces))]
    _leave_only_vocabulary(folder, [*special, *pieces, *unused])


def _leave_only_vocabulary(folder: Path, tokens: list[str]) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    (folder / "vocab.txt").write_text("\n".join(tokens))


def pickled_text(folder: Path, architecture: str, *, in_parts: bool = False) -> dict[str, Tensor]:
    """A text encoder with its heads of pre-training, pickled; return its weights.

    BERT has TensorFlow's names of layer norms, as BiomedBERT and BlueBERT have.
    """
    save_tiny(folder, architecture)
    config = AutoConfig.from_pretrained(folder)
    kind = AutoModelForPreTraining if architecture == "electra" else AutoModelForMaskedLM
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = kind.from_config(config)
    tensors = model.state_dict()
    old = tensors
    if architecture == "bert":
        endings = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        old = {}
        for name, tensor in tensors.items():
            for new, tf in endings.items():
                name = name.replace(new, tf)
            old[name] = tensor
    pickle_weights(folder, old, in_parts=in_parts)
    return tensors
