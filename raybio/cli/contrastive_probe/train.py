"""The command ``raybio train contrastive_probe``.

``--sentences`` and ``--benchmark`` prepare a store first, also for a sweep.
"""

import argparse
import glob

from raybio.cli.options import path_or_uri
from raybio.cli.stores import local_copy, matching
from raybio.cli.training_command import training_app
from raybio.cli.training_help import CORPUS, help_texts
from raybio.core.errors import ConfigError
from raybio.core.location import BucketPath

METHOD = "contrastive_probe"

ABOUT = (
    f"{CORPUS}\n\n"
    "--sentences FILE (repeatable, or a pattern; a sentence set each) and --benchmark DIR "
    "(MedLAMA's layout) prepare a store first. Trained models: raybio evaluate probe, baselines, "
    "ask, sheet, curves."
)


def prepare_given_store(arguments: list[str]) -> list[str]:
    """Return the arguments with --store in place of --sentences and --benchmark.

    The store is prepared if it does not exist.

    Raises:
        ConfigError: for --benchmark without --sentences, or for either together with --store.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--sentences", type=path_or_uri, action="append")
    parser.add_argument("--benchmark", type=path_or_uri)
    parser.add_argument("--store")
    given, others = parser.parse_known_args(arguments)
    if given.sentences is None and given.benchmark is None:
        return arguments
    if given.store is not None:
        raise ConfigError(
            f"--store {given.store}: is prepared already, and --sentences and --benchmark prepare "
            "another one; want either"
        )
    if given.sentences is None:
        raise ConfigError(
            "--benchmark without --sentences: want sentences to rewire with "
            "(raybio evaluate probe probes a model as it is)"
        )
    sentences = []
    for source in given.sentences:
        if isinstance(source, BucketPath) and not glob.has_magic(source.key):
            sentences.append(local_copy(source, "--sentences"))
        else:
            sentences += matching([str(source)], "--sentences")
    benchmark = None if given.benchmark is None else local_copy(given.benchmark, "--benchmark")
    from raybio.methods.contrastive_probe.prepare import cached_sentences
    from raybio.runtime.run.options import default_folder

    folder = default_folder("stores", "RAYBIO_STORES")
    print(f"sentences: store in {folder}, prepared on first use", flush=True)
    store = cached_sentences(folder, sentences, benchmark)
    return [*others, "--store", str(store.path)]


app = training_app(
    METHOD,
    texts=help_texts(METHOD, ABOUT, "--sentences FILE --benchmark DIR --name first"),
    expand=lambda arguments: (prepare_given_store(arguments), {}),
    sources=("--sentences", "--benchmark"),
)
