"""Tiny protein encoders in the layouts of published repositories."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Tokenizer, decoders, models, processors
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    EsmcConfig,
    EsmcForMaskedLM,
    EsmConfig,
    EsmcTokenizer,
    EsmForMaskedLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from raybio.methods.sppt.proteins.vocabulary import ESM
from tests.encoders.published import pickle_weights

PROTT5_LETTERS = "ALGVSREDTIPKFQNYMHWCXBOUZ"
PROTBERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"LAGVESIKRDTPNQFYMHCWXUBZO"]
DROPOUT = 0.1
_SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}


def _seeded(make: Callable[[], PreTrainedModel]) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return make()


def _t5(folder: Path, **settings: object) -> dict[str, Tensor]:
    """ProtT5 and Ankh: the whole encoder and decoder, pickled."""
    config = T5Config(
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_layers=2,
        num_heads=2,
        architectures=["T5ForConditionalGeneration"],
        **settings,
    )
    model = _seeded(lambda: T5ForConditionalGeneration(config))
    config.save_pretrained(folder)
    pickle_weights(folder, model.state_dict())
    return model.state_dict()


def prott5(folder: Path) -> dict[str, Tensor]:
    """Rostlab/prot_t5_xl_uniref50: a sentencepiece model of residues between spaces."""
    folder.mkdir()
    proto = sentencepiece_model_pb2.ModelProto()
    kinds = proto.SentencePiece
    for piece, kind in (
        ("<pad>", kinds.CONTROL),
        ("</s>", kinds.CONTROL),
        ("<unk>", kinds.UNKNOWN),
    ):
        proto.pieces.add(piece=piece, score=0.0, type=kind)
    for rank, letter in enumerate(PROTT5_LETTERS):
        proto.pieces.add(piece=f"▁{letter}", score=-2.0 - rank / 10, type=kinds.NORMAL)
    proto.trainer_spec.model_type = proto.trainer_spec.UNIGRAM
    proto.trainer_spec.unk_id, proto.trainer_spec.pad_id = 2, 0
    proto.trainer_spec.eos_id, proto.trainer_spec.bos_id = 1, -1
    proto.normalizer_spec.name = "identity"
    (folder / "spiece.model").write_bytes(proto.SerializeToString())
    sentinels = [f"<extra_id_{number}>" for number in range(100)]
    special = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    (folder / "special_tokens_map.json").write_text(
        json.dumps(special | {"additional_special_tokens": sentinels})
    )
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    return _t5(folder, vocab_size=128, dropout_rate=DROPOUT)


def ankh(folder: Path) -> dict[str, Tensor]:
    """ElnaggarLab/ankh-base: T5 1.1 without dropout, and a tokenizer.json that splits no words."""
    folder.mkdir()
    sentinels = [f"<extra_id_{number}>" for number in range(100)]
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [(letter, -2.0) for letter in PROTT5_LETTERS]
    pieces += [(sentinel, 0.0) for sentinel in sentinels]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2, byte_fallback=False))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>", *sentinels])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    settings = special | {"extra_ids": 100, "additional_special_tokens": sentinels}
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings | {"tokenizer_class": "T5Tokenizer"})
    )
    (folder / "special_tokens_map.json").write_text(
        json.dumps(special | {"additional_special_tokens": sentinels})
    )
    tensors = _t5(
        folder,
        vocab_size=144,
        feed_forward_proj="gated-gelu",
        relative_attention_num_buckets=64,
        num_decoder_layers=1,
        dropout_rate=0.0,
    )
    # What transformers 4 wrote for a head that is not tied to the embeddings.
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": False}))
    pickle_weights(folder, tensors | {"lm_head.weight": -tensors["lm_head.weight"]})
    return tensors


def protbert(folder: Path) -> dict[str, Tensor]:
    """Rostlab/prot_bert: BERT over single letters, pickled."""
    folder.mkdir()
    config = BertConfig(
        vocab_size=30,
        max_position_embeddings=64,
        hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=DROPOUT,
        **_SIZES,
    )
    config.save_pretrained(folder)
    model = _seeded(lambda: BertForMaskedLM(config))
    pickle_weights(folder, model.state_dict())
    (folder / "vocab.txt").write_text("\n".join(PROTBERT))
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    return model.state_dict()


def esm2(folder: Path) -> dict[str, Tensor]:
    """facebook/esm2_*: rotary positions, a vocab.txt and no tokenizer.json."""
    config = EsmConfig(
        vocab_size=33,
        mask_token_id=32,
        pad_token_id=1,
        position_embedding_type="rotary",
        token_dropout=True,
        emb_layer_norm_before=False,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=66,
        **_SIZES,
    )
    model = _seeded(lambda: EsmForMaskedLM(config))
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(ESM.id_by_token))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "EsmTokenizer"}')
    return model.state_dict()


def esmc(folder: Path) -> dict[str, Tensor]:
    """biohub/ESMC-*: rotary positions, no dropout, a head that is not tied."""
    config = EsmcConfig(vocab_size=64, max_position_embeddings=64, **_SIZES)
    model = _seeded(lambda: EsmcForMaskedLM(config))
    model.save_pretrained(folder)
    EsmcTokenizer().save_pretrained(folder)
    return model.state_dict()


LAYOUTS = {"prott5": prott5, "ankh": ankh, "protbert": protbert, "esm2": esm2, "esmc": esmc}
