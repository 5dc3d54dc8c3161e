"""Words as the characters that CharacterBERT reads: UTF-8 bytes, with a marker at each end.

This follows the authors' indexer (helboukkouri/character-bert, ``CharacterMapper``). Character ids
1 to 256 are the bytes 0 to 255; a long word loses its last bytes, even in the middle of a letter.

Shape letters: V words, C = 50 characters of a word.
"""

from collections.abc import Sequence

import numpy as np

MAX_CHARACTERS = 50
"""C: characters of a word, including the markers at its ends."""


NUM_CHARACTERS = 263
"""Number of character ids: 256 bytes, six markers, and 0 for all characters of a padding word."""


PAD_WORD = "[PAD]"
CLS_WORD = "[CLS]"
SEP_WORD = "[SEP]"
MASK_WORD = "[MASK]"


BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, NO_CHARACTER, MASK = range(257, NUM_CHARACTERS)


_MAX_BYTES = MAX_CHARACTERS - 2


def _marked(character: int) -> list[int]:
    return [BEGIN_WORD, character, END_WORD] + [NO_CHARACTER] * (MAX_CHARACTERS - 3)


_CHARACTERS_BY_SPECIAL = {
    CLS_WORD: _marked(BEGIN_SENTENCE),
    SEP_WORD: _marked(END_SENTENCE),
    MASK_WORD: _marked(MASK),
    PAD_WORD: [0] * MAX_CHARACTERS,
}


def word_characters(words: Sequence[str]) -> np.ndarray:
    """Return the character ids (V, C) of words, int16.

    A word is BEGIN_WORD, its bytes (48 at most), END_WORD, and NO_CHARACTER up to C. ``[CLS]``,
    ``[SEP]`` and ``[MASK]`` each have a special character between the markers; ``[PAD]`` is 0
    throughout.
    """
    # Half a surrogate pair has no UTF-8; the authors skip it, too.
    encoded = [word.encode("utf-8", "ignore")[:_MAX_BYTES] for word in words]
    length_V = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    byte_VB = (
        np.array(encoded, dtype=f"S{_MAX_BYTES}").view(np.uint8).reshape(len(encoded), _MAX_BYTES)
    )
    character_VC = np.full((len(encoded), MAX_CHARACTERS), NO_CHARACTER, dtype=np.int16)
    character_VC[:, 0] = BEGIN_WORD
    np.add(
        byte_VB,
        1,
        out=character_VC[:, 1:-1],
        where=np.arange(_MAX_BYTES) < length_V[:, None],
        dtype=np.int16,
    )
    character_VC[np.arange(len(encoded)), length_V + 1] = END_WORD
    for number, word in enumerate(words):
        if word in _CHARACTERS_BY_SPECIAL:
            character_VC[number] = _CHARACTERS_BY_SPECIAL[word]
    return character_VC
