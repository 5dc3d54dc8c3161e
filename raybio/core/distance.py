"""The distances by which embeddings are compared, as settings, options and files name them."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

Distance = Literal["euclidean", "cosine"]
DISTANCES: tuple[Distance, ...] = ("euclidean", "cosine")


def present_word(distance: Any) -> Any:
    """Return the current name of a distance: runs and indexes of earlier commits say "l2"."""
    return "euclidean" if distance == "l2" else distance


SavedDistance = Annotated[Distance, BeforeValidator(present_word)]
"""Type of a distance in settings; it also accepts the former name, which older files contain."""
