"""Sentence files and a benchmark on a training command: a store of them is prepared, and trained on."""

import argparse
from pathlib import Path

from raybio.core.errors import ConfigError


def prepare_given(arguments: list[str]) -> list[str]:
    """The arguments with --store for --sentences and --benchmark; their store is prepared if it is not there.

    Raises:
        ConfigError: for --benchmark alone, or for either beside --store, which has sentences and queries already.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--sentences", type=Path, action="append")
    parser.add_argument("--benchmark", type=Path)
    parser.add_argument("--store")
    given, others = parser.parse_known_args(arguments)
    if given.sentences is None and given.benchmark is None:
        return arguments
    if given.store is not None:
        raise ConfigError(
            f"--store {given.store}: is prepared already, and --sentences and --benchmark prepare another; want either"
        )
    if given.sentences is None:
        raise ConfigError(
            "--benchmark alone: want --sentences too, to rewire with (`probe` probes a model as it is)"
        )
    # Only now: these import torch, which takes seconds.
    from raybio.methods.contrastive_probe.prepare import kept_sentences
    from raybio.runtime.run.request import default_folder

    folder = default_folder("stores", "RAYBIO_STORES")
    print(f"sentences: a store of them in {folder}, prepared the first time", flush=True)
    store = kept_sentences(folder, given.sentences, given.benchmark)
    return [*others, "--store", str(store.path)]
