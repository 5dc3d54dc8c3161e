"""Vocabularies as ``transformers`` tokenizers, and back."""

import string
from collections.abc import Mapping

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from raybio.methods.sppt.proteins.vocabulary import (
    PROTTRANS_SUBSTITUTES,
    VOCABULARIES,
    Vocabulary,
    make_vocabulary,
)


def build_tokenizer(vocabulary: Vocabulary, *, max_tokens: int) -> PreTrainedTokenizerFast:
    """Return a fast tokenizer that equals ``vocabulary.encode`` and ignores white space.

    It replaces ``EsmTokenizer`` too, which merges a run of unknown letters into one ``<unk>``. That
    would shift all later positions against those that the encoder was trained on.
    """
    token_by_id = {token_id: token for token, token_id in vocabulary.id_by_token.items()}
    unk = token_by_id[vocabulary.unk_id]

    def name(token_id: int | None) -> str | None:
        return None if token_id is None else token_by_id[token_id]

    tokenizer = Tokenizer(models.WordLevel(dict(vocabulary.id_by_token), unk_token=unk))
    steps: list[normalizers.Normalizer] = [normalizers.Replace(Regex(r"\s"), "")]
    steps += [
        normalizers.Replace(letter, stand_in) for letter, stand_in in vocabulary.substitutes.items()
    ]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    cls = name(vocabulary.cls_id)
    eos = name(vocabulary.eos_id)
    template = [token for token in (cls, "$A", eos) if token is not None]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=" ".join(template),
        special_tokens=[
            (token, vocabulary.id_by_token[token]) for token in (cls, eos) if token is not None
        ],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_tokens,
        padding_side="right",
        model_input_names=["input_ids", "attention_mask"],
        unk_token=unk,
        cls_token=cls,
        pad_token=name(vocabulary.pad_id),
        mask_token=name(vocabulary.mask_id),
        eos_token=eos,
    )


SPACE = "▁"
"""Prefix of a sentencepiece that begins a word, such as a residue between spaces."""


def vocabulary_of_tokenizer(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    """Return the vocabulary of a tokenizer, from the ids that it gives to single letters.

    Raises:
        ValueError: if it does not read a letter as one id after one id for the sequence's start;
            or, for a T5, which has no such id, as one id before the end.
    """
    special = {
        name: getattr(tokenizer, f"{name}_token_id") for name in ("pad", "mask", "cls", "unk")
    }
    absent = [name for name, token_id in special.items() if token_id is None]
    is_t5 = absent == ["mask", "cls"] and tokenizer.eos_token_id is not None
    if absent and not is_t5:
        raise ValueError(f"the tokenizer has no {' and no '.join(absent)} token")
    id_by_token: dict[str, int] = tokenizer.get_vocab()
    end: int | None
    if is_t5:
        id_by_letter, id_by_token, end = _read_pieces(tokenizer, id_by_token)
    else:
        id_by_letter, end = _read_letters(tokenizer)
    token_by_id = {token_id: token for token, token_id in id_by_token.items()}
    substitutes = _substitutes(id_by_letter, token_by_id, special["unk"])
    if _is_prottrans(tokenizer):
        substitutes |= PROTTRANS_SUBSTITUTES
    vocabulary = make_vocabulary(
        "checkpoint",
        id_by_token,
        pad=token_by_id[special["pad"]],
        mask=None if is_t5 else token_by_id[special["mask"]],
        cls=None if is_t5 else token_by_id[special["cls"]],
        eos=None if end is None else token_by_id[end],
        unk=token_by_id[special["unk"]],
        substitutes=substitutes,
    )
    known = {candidate.fingerprint: candidate for candidate in VOCABULARIES.values()}
    return known.get(vocabulary.fingerprint, vocabulary)


def _is_prottrans(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer is ProtBert's or ProtT5's, by its tokens."""
    tokens = set(tokenizer.get_vocab())
    protbert = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    letters = set("LAGVESIKRDTPNQFYMHCWXUBZO")
    return tokens == protbert | letters or {SPACE + letter for letter in letters} <= tokens


def _read_letters(
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[dict[str, int], int | None]:
    """Return the id of each letter, and of the token after a sequence."""
    read = {letter: _read(tokenizer, letter) for letter in string.ascii_uppercase}
    ends = {end for _, end in read.values()}
    if len(ends) != 1:
        raise ValueError(
            f"the tokenizer ends sequences in different ways: ids {sorted(map(str, ends))}"
        )
    return {letter: token_id for letter, (token_id, _) in read.items()}, ends.pop()


def _read_pieces(
    tokenizer: PreTrainedTokenizerBase, id_by_piece: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int], int]:
    """Return the ids of letters and of all tokens of a T5, and the id after a sequence.

    ProtT5 reads residues between spaces, whose pieces begin with ``SPACE``; an export reads single
    letters. The names of the tokens that are returned have no ``SPACE``.
    """
    special = set(tokenizer.all_special_tokens)
    words = sorted(
        piece
        for piece in id_by_piece
        if piece not in special and piece.strip(SPACE).isalpha() and len(piece.strip(SPACE)) > 1
    )
    if words:
        raise ValueError(f"the tokenizer has pieces of several letters, such as {words[0]!r}")
    id_by_letter = {}
    id_by_token = dict(id_by_piece)
    for letter in string.ascii_uppercase:
        piece_id = id_by_token.pop(SPACE + letter, None)
        if piece_id is not None:
            id_by_token[letter] = piece_id
        token_id, *rest = tokenizer(letter)["input_ids"]
        if rest != [tokenizer.eos_token_id] or token_id == tokenizer.unk_token_id:
            # It may read a letter only between others, without a space before it (Ankh).
            token_id = id_by_token.get(letter, tokenizer.unk_token_id)
        id_by_letter[letter] = token_id
    return id_by_letter, id_by_token, tokenizer.eos_token_id


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
    id_by_letter: Mapping[str, int], token_by_id: Mapping[int, str], unk_id: int
) -> dict[str, str]:
    """Return the known letters that are read as another letter."""
    substitutes = {}
    for letter, token_id in id_by_letter.items():
        if token_id != unk_id and token_by_id[token_id] != letter:
            substitutes[letter] = token_by_id[token_id]
    return substitutes
