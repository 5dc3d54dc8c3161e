"""Tiny checkpoints in the layouts of published repositories."""

import json
from pathlib import Path

import torch
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoTokenizer,
    RobertaConfig,
    RobertaForMaskedLM,
)

from tests.encoders.tiny_text import MAX_POSITIONS, SENTENCES, save_tiny

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
    _leave_only_vocabulary(folder, _tokens_of(folder))


def bioelectra(folder: Path) -> None:
    """BioELECTRA: config.json of ElectraForPreTraining, pytorch_model.bin and a vocab.txt."""
    pickled_text(folder, "electra")
    settings = json.loads((folder / "config.json").read_text())
    settings["architectures"] = ["ElectraForPreTraining"]
    (folder / "config.json").write_text(json.dumps(settings))
    _leave_only_vocabulary(folder, _tokens_of(folder))


def cs_roberta(folder: Path) -> None:
    """CS-RoBERTa: vocab.json and merges.txt, padding 1, and settings that name no class."""
    folder.mkdir()
    tokenizer = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(SENTENCES, vocab_size=300, special_tokens=special)
    tokenizer.save_model(str(folder))
    id_by_token = tokenizer.get_vocab() | {"<mask>": tokenizer.get_vocab_size()}
    (folder / "vocab.json").write_text(json.dumps(id_by_token))
    names = dict(zip(("bos", "pad", "eos", "unk", "mask"), [*special, "<mask>"], strict=True))
    names |= {"sep": "</s>", "cls": "<s>"}
    tokens = {f"{name}_token": token for name, token in names.items()}
    (folder / "special_tokens_map.json").write_text(json.dumps(tokens))
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    (folder / "added_tokens.json").write_text("{}")
    config = RobertaConfig(
        vocab_size=len(id_by_token),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=MAX_POSITIONS + 2,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = RobertaForMaskedLM(config)
    config.save_pretrained(folder)
    pickle_weights(folder, model.state_dict())


def clinicalbert(folder: Path) -> None:
    """ClinicalBERT: a cased BERT with a vocab.txt, and no file that says that it is cased."""
    pickled_text(folder, "bert")
    num_pieces = len(AutoTokenizer.from_pretrained(folder))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = ["Aspirin", "aspirin", "Café", "cafe", "##s"]
    unused = [f"[unused{number}]" for number in range(num_pieces - len(special) - len(pieces))]
    _leave_only_vocabulary(folder, [*special, *pieces, *unused])


def _tokens_of(folder: Path) -> list[str]:
    id_by_token = AutoTokenizer.from_pretrained(folder).get_vocab()
    return sorted(id_by_token, key=id_by_token.get)


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
