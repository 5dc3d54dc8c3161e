"""The distances by which embeddings are compared, as settings, options and files name them."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

Distance = Literal["euclidean", "cosine"]
DISTANCES: tuple[Distance, ...] = ("euclidean", "cosine")


def present_word(distance: Any) -> Any:
    """Return a distance as it is named now: runs and indexes of earlier commits say "l2"."""
    return "euclidean" if distance == "l2" else distance


SavedDistance = Annotated[Distance, BeforeValidator(present_word)]
"""A distance among settings of which files with the former word exist."""
