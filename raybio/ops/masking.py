"""Masking of tokens for masked language modeling.

All random draws are arguments, so that they can be hashes of a token's position in the run.

Shape letters: T tokens, end to end, V tokens to replace with.
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raybio.core.batch import IGNORED_LABEL

MaskStyle = Literal["always", "bert"]


def mask_tokens(
    token_T: NDArray[np.integer],
    is_special_T: NDArray[np.bool_],
    uniform_T: NDArray[np.floating],
    choice_T: NDArray[np.floating],
    random_T: NDArray[np.floating],
    *,
    rate: float,
    mask_id: int,
    random_token_ids: ArrayLike,
    style: MaskStyle = "always",
) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
    """Mask each ordinary token with probability ``rate``.

    Args:
        token_T: token ids.
        is_special_T: True where a token is never masked ([CLS], [SEP]).
        uniform_T: uniforms in [0, 1): a token is chosen where its uniform is below ``rate``.
        choice_T: uniforms in [0, 1) that decide how style "bert" treats a chosen token.
        random_T: uniforms in [0, 1) that pick the token of a random replacement.
        rate: share of ordinary tokens to predict, in [0, 1].
        mask_id: id of [MASK].
        random_token_ids: ids of random replacements; used only by style "bert".
        style: "always" writes [MASK] at each chosen token, as the SPPT authors' code does. "bert"
            writes [MASK] at 80 % of them, a random token at 10 % and leaves 10 % unchanged (Devlin
            et al., 2019).

    Returns:
        The masked tokens, and the labels: the original id at chosen tokens, ``IGNORED_LABEL``
        elsewhere. A batch may have no chosen token.

    Raises:
        ValueError: for a rate outside [0, 1], an unknown style, or no random token in style "bert".
    """
    if not 0.0 <= rate <= 1.0:
        raise ValueError(f"rate is {rate}, want a share in [0, 1]")
    is_chosen_T = (uniform_T < rate) & ~is_special_T
    # Widen first: IGNORED_LABEL would wrap around in a small unsigned type.
    label_T = np.where(is_chosen_T, token_T.astype(np.int64), IGNORED_LABEL)
    masked_T = token_T.copy()
    if style == "always":
        masked_T[is_chosen_T] = mask_id
    elif style == "bert":
        id_V = np.asarray(random_token_ids, dtype=token_T.dtype)
        if id_V.size == 0:
            raise ValueError("random_token_ids is empty; style 'bert' needs tokens to replace with")
        masked_T[is_chosen_T & (choice_T < 0.8)] = mask_id
        is_replaced_T = is_chosen_T & (choice_T >= 0.8) & (choice_T < 0.9)
        masked_T[is_replaced_T] = id_V[(random_T[is_replaced_T] * id_V.size).astype(np.int64)]
    else:
        raise ValueError(f"style is {style!r}, want 'always' or 'bert'")
    return masked_T, label_T
