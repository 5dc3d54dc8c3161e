"""Options that the commands of Contrastive-Probe share."""

from collections.abc import Sequence
from typing import Literal, TypeVar

from raybio.core.errors import ConfigError

BENCHMARK_HELP = "folder of the benchmark: MedLAMA's files, or a source of BioLAMA"
POOLING_HELP = (
    "pooling of a text's states: cls (the paper) or mean; default: from the model's folder, "
    "else cls"
)
QUERIES_HELP = "size of a fixed random sample of queries of each relation; default: all"

Subset = Literal["full", "hard"]
SUBSETS: tuple[Subset, ...] = ("full", "hard")

T = TypeVar("T", bound=str)


def parse_choice(text: str, choices: Sequence[T], option: str) -> T:
    """Return the choice that equals ``text``.

    Raises:
        ConfigError: if there is none.
    """
    for choice in choices:
        if choice == text:
            return choice
    *others, last = choices
    raise ConfigError(f"{option} {text}: want {', '.join(others)} or {last}")
