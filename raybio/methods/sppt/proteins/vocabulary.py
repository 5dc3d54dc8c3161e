"""Protein vocabularies: the token id of each residue letter.

A vocabulary is a table indexed by byte. So one store of letters serves all encoders, and tokenizing
a shard is one numpy indexing.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

STANDARD_RESIDUES = "ACDEFGHIKLMNPQRSTVWY"

PROTTRANS_SUBSTITUTES = dict.fromkeys("UZOB", "X")
"""Rare residues, which ProtBert and ProtT5 were trained to read as X (Elnaggar et al., 2021)."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The token ids of one protein encoder.

    Attributes:
        name: name in configuration and logs.
        id_by_token: id of each token, in order of id.
        token_id_by_byte: token id of each residue letter's byte, int32 (256,); all other bytes give
            ``unk_id``.
        pad_id: id of padding.
        mask_id: id that replaces a masked residue, or None.
        cls_id: id before every sequence, or None.
        eos_id: id after every sequence, or None.
        unk_id: id of unknown letters.
        residue_ids: ids of the 20 standard amino acids, from which random replacement may draw,
            int32 (20,).
        substitutes: letters read as other letters, such as J (leucine or isoleucine) as L.
    """

    name: str
    id_by_token: Mapping[str, int]
    token_id_by_byte: np.ndarray
    pad_id: int
    mask_id: int | None
    cls_id: int | None
    eos_id: int | None
    unk_id: int
    residue_ids: np.ndarray
    substitutes: Mapping[str, str]

    @property
    def size(self) -> int:
        """Number of token ids."""
        return max(self.id_by_token.values()) + 1

    @property
    def num_special_per_sequence(self) -> int:
        """Number of tokens that ``encode`` adds to the residues of a sequence."""
        return sum(special is not None for special in (self.cls_id, self.eos_id))

    @property
    def fingerprint(self) -> str:
        """16 hex digits of all fields that tokens depend on; the name does not count."""
        special = [self.pad_id, self.mask_id, self.cls_id, self.eos_id, self.unk_id]
        content = [special, self.residue_ids.tolist(), self.token_id_by_byte.tolist()]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]

    def encode(self, residues: str | bytes | np.ndarray) -> np.ndarray:
        """Return the token ids of one sequence, special tokens included, int32.

        Args:
            residues: upper-case letters, or their bytes as uint8.
        """
        if isinstance(residues, str):
            residues = residues.encode("ascii", errors="replace")
        letters = np.frombuffer(residues, np.uint8) if isinstance(residues, bytes) else residues
        first = [] if self.cls_id is None else [self.cls_id]
        last = [] if self.eos_id is None else [self.eos_id]
        return np.concatenate([first, self.token_id_by_byte[letters], last]).astype(np.int32)


def make_vocabulary(
    name: str,
    id_by_token: Mapping[str, int],
    *,
    pad: str,
    mask: str | None,
    cls: str | None,
    eos: str | None,
    unk: str,
    substitutes: Mapping[str, str] | None = None,
) -> Vocabulary:
    """Return the vocabulary of a token list; each single upper-case letter in it is a residue.

    Raises:
        ValueError: if a special token or one of the 20 standard amino acids has no id.
    """
    substitutes = MappingProxyType(dict(substitutes or {}))
    named = [token for token in (pad, mask, cls, eos, unk) if token is not None]
    absent = [
        token
        for token in [*named, *STANDARD_RESIDUES, *substitutes.values()]
        if token not in id_by_token
    ]
    if absent:
        raise ValueError(f"vocabulary {name!r} has no id for {', '.join(absent)}")
    token_id_by_byte = np.full(256, id_by_token[unk], np.int32)
    for token, token_id in id_by_token.items():
        if len(token) == 1 and "A" <= token <= "Z":
            token_id_by_byte[ord(token)] = token_id
    for letter, stand_in in substitutes.items():
        token_id_by_byte[ord(letter)] = id_by_token[stand_in]
    residue_ids = np.array([id_by_token[letter] for letter in STANDARD_RESIDUES], np.int32)
    for table in (token_id_by_byte, residue_ids):
        table.setflags(write=False)
    return Vocabulary(
        name=name,
        id_by_token=MappingProxyType(dict(sorted(id_by_token.items(), key=lambda item: item[1]))),
        token_id_by_byte=token_id_by_byte,
        pad_id=id_by_token[pad],
        mask_id=None if mask is None else id_by_token[mask],
        cls_id=None if cls is None else id_by_token[cls],
        eos_id=None if eos is None else id_by_token[eos],
        unk_id=id_by_token[unk],
        residue_ids=residue_ids,
        substitutes=substitutes,
    )


def _numbered(tokens: list[str]) -> dict[str, int]:
    return {token: token_id for token_id, token in enumerate(tokens)}


# songlab-cal/tape, tape/tokenizers.py, IUPAC_VOCAB. TAPE ends a sequence with <sep>; SPPT does not,
# and we follow SPPT.
TAPE = make_vocabulary(
    "tape",
    _numbered(["<pad>", "<mask>", "<cls>", "<sep>", "<unk>", *"ABCDEFGHIKLMNOPQRSTUVWXYZ"]),
    pad="<pad>",
    mask="<mask>",
    cls="<cls>",
    eos=None,
    unk="<unk>",
    substitutes={"J": "L"},
)

# transformers, get_default_vocab_list() of models/esm. It has no J, which stays <unk> as in the
# published encoders.
ESM = make_vocabulary(
    "esm",
    _numbered(
        ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
    ),
    pad="<pad>",
    mask="<mask>",
    cls="<cls>",
    eos="<eos>",
    unk="<unk>",
)

VOCABULARIES: dict[str, Vocabulary] = {"tape": TAPE, "esm": ESM}
