"""Vocabularies as ``transformers`` tokenizers, and back."""

import string
from collections.abc import Mapping

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from raybio.methods.sppt.proteins.vocabulary import VOCABULARIES, Vocabulary, make_vocabulary


def build_tokenizer(vocabulary: Vocabulary, *, max_tokens: int) -> PreTrainedTokenizerFast:
    """Return a fast tokenizer that equals ``vocabulary.encode`` and ignores white space.

    It replaces ``EsmTokenizer`` too, which merges a run of unknown letters into one ``<unk>``. That
    would shift all later positions against those that the encoder was trained on.
    """
    token_by_id = {token_id: token for token, token_id in vocabulary.id_by_token.items()}
    unk = token_by_id[vocabulary.unk_id]
    cls = token_by_id[vocabulary.cls_id]
    tokenizer = Tokenizer(models.WordLevel(dict(vocabulary.id_by_token), unk_token=unk))
    steps: list[normalizers.Normalizer] = [normalizers.Replace(Regex(r"\s"), "")]
    steps += [
        normalizers.Replace(letter, stand_in) for letter, stand_in in vocabulary.substitutes.items()
    ]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    special = [(cls, vocabulary.cls_id)]
    template = f"{cls} $A"
    if vocabulary.eos_id is not None:
        special.append((token_by_id[vocabulary.eos_id], vocabulary.eos_id))
        template += f" {token_by_id[vocabulary.eos_id]}"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=special
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_tokens,
        padding_side="right",
        model_input_names=["input_ids", "attention_mask"],
        unk_token=unk,
        cls_token=cls,
        pad_token=token_by_id[vocabulary.pad_id],
        mask_token=token_by_id[vocabulary.mask_id],
        eos_token=None if vocabulary.eos_id is None else token_by_id[vocabulary.eos_id],
    )


def vocabulary_of_tokenizer(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    """Return the vocabulary of a tokenizer, from the ids that it gives to single letters.

    Raises:
        ValueError: if it does not read a letter as one id, after one id for the sequence's start.
    """
    special = {
        name: getattr(tokenizer, f"{name}_token_id") for name in ("pad", "mask", "cls", "unk")
    }
    absent = [name for name, token_id in special.items() if token_id is None]
    if absent:
        raise ValueError(f"the tokenizer has no {' and no '.join(absent)} token")
    id_by_token: dict[str, int] = tokenizer.get_vocab()
    id_by_letter = {letter: _read(tokenizer, letter) for letter in string.ascii_uppercase}
    ends = {end for _, end in id_by_letter.values()}
    if len(ends) != 1:
        raise ValueError(
            f"the tokenizer ends sequences in different ways: ids {sorted(map(str, ends))}"
        )
    (end,) = ends
    token_by_id = {token_id: token for token, token_id in id_by_token.items()}
    vocabulary = make_vocabulary(
        "checkpoint",
        id_by_token,
        pad=token_by_id[special["pad"]],
        mask=token_by_id[special["mask"]],
        cls=token_by_id[special["cls"]],
        eos=None if end is None else token_by_id[end],
        unk=token_by_id[special["unk"]],
        substitutes=_substitutes(id_by_letter, token_by_id, special["unk"]),
    )
    known = {candidate.fingerprint: candidate for candidate in VOCABULARIES.values()}
    return known.get(vocabulary.fingerprint, vocabulary)


def _read(tokenizer: PreTrainedTokenizerBase, letter: str) -> tuple[int, int | None]:
    """Return the ids of a letter and, if there is one, of the token after it."""
    ids = tokenizer(letter)["input_ids"]
    if len(ids) not in (2, 3) or ids[0] != tokenizer.cls_token_id:
        raise ValueError(
            f"the tokenizer reads the residue {letter!r} as {ids}, want [cls, residue] or [cls, "
            "residue, end]"
        )
    return ids[1], ids[2] if len(ids) == 3 else None


def _substitutes(
    id_by_letter: Mapping[str, tuple[int, int | None]], token_by_id: Mapping[int, str], unk_id: int
) -> dict[str, str]:
    """Return the known letters that are read as another letter."""
    substitutes = {}
    for letter, (token_id, _) in id_by_letter.items():
        if token_id != unk_id and token_by_id[token_id] != letter:
            substitutes[letter] = token_by_id[token_id]
    return substitutes
