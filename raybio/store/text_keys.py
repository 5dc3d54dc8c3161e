"""Keys of texts, to find duplicates.

Shape letter: N texts.
"""

import hashlib
import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_NO_WORD = re.compile(r"[\W_]+")


def text_keys(texts: Iterable[str]) -> NDArray[np.uint64]:
    """Return keys (N,) that are equal where texts differ in case, spaces and punctuation only.

    64 bits of a hash: among ten million distinct texts, the chance of two equal keys is below one
    in 100,000. A text without a letter or digit has the key 0.
    """
    return np.fromiter((_key(text) for text in texts), np.uint64)


def _key(text: str) -> int:
    plain = _NO_WORD.sub("", text.casefold())
    if not plain:
        return 0
    return int.from_bytes(hashlib.blake2b(plain.encode(), digest_size=8).digest(), "little")
