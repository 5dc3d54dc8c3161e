"""Rivals of a benchmark by their names, and checks of given models; it imports no torch."""

from collections.abc import Sequence
from pathlib import Path

from raybio.benchmark.task import CHANCE, PROTOCOL, RANDOM, RIVAL_ROWS
from raybio.core.errors import ConfigError
from raybio.core.final_report import CHARACTERS
from raybio.core.location import is_uri
from raybio.core.text import did_you_mean
from raybio.runtime.model_paths import model_address, near_run_folders

HASHED_WORDS = "hashed TF-IDF"
"""Name of the rival that embeds a text as its words, hashed to positions of a vector."""

RIVALS = {
    "random": (RANDOM,),
    "tfidf": ("TF-IDF", "ridge on TF-IDF", HASHED_WORDS),
    "bm25": ("BM25",),
    "characters": (CHARACTERS,),
    "kmers": ("3-mers", "ridge on 1-3-mers"),
    "degree": ("degree",),
    "common-neighbors": ("common neighbors",),
}
"""Name on the command line -> rows that it may stand for; a task has at most one of them."""

RESERVED = {
    PROTOCOL,
    RIVAL_ROWS,
    CHANCE,
    *RIVALS,
    *(row for rows in RIVALS.values() for row in rows),
}
"""Names that no model may have. A task may have more rivals, which the report checks."""


def check_models(given: Sequence[str]) -> None:
    """Refuse models that cannot be found; those in buckets and on the hub are not looked up.

    Args:
        given: as ``read_models`` takes them.

    Raises:
        ConfigError: for a model that is given twice or does not exist, with names that it may mean.
    """
    for name in given:
        if list(given).count(name) > 1:
            raise ConfigError(f"MODEL {name}: is given twice; want each model once")
        if name in RIVALS or is_uri(name):
            continue
        folder = Path(model_address(name, "MODEL"))
        if folder.exists() or "/" in name:  # perhaps a hub id
            continue
        near = near_run_folders(name) or f".{did_you_mean(name, RIVALS)}"
        raise ConfigError(
            f"MODEL {name}: no such folder, and no such rival; want a run, a model's folder, a hub "
            f"id, or one of the rivals {', '.join(RIVALS)}{near.rstrip('.')}"
        )
