"""Rewire a text encoder by the heads and tails of sentences, and probe it for facts at every saved step.

Without sentences and a store it uses an embedded simulated world of facts. The same command again goes on.

--sentences FILE (repeatable, a sentence set each) and --benchmark DIR (MedLAMA's layout) prepare a store of them first.
Other commands: probe, baselines, ask, sheet, curves (each with --help).
"""

import argparse
import sys
from pathlib import Path

from raybio.errors import ConfigError
from raybio.runtime.command_line import run_app

COMMANDS = ("probe", "baselines", "ask", "sheet", "curves")


def prepare_given(arguments: list[str]) -> list[str]:
    """The arguments with --store for --sentences and --benchmark; their store is prepared if it is not there."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--sentences", type=Path, action="append")
    parser.add_argument("--benchmark", type=Path)
    given, others = parser.parse_known_args(arguments)
    if given.sentences is None and given.benchmark is None:
        return others
    if given.sentences is None:
        raise ConfigError("--benchmark alone: want --sentences too, to rewire with (`probe` probes a model as it is)")
    from raybio.data.prepare_sentences import kept_sentences
    from raybio.runtime.launch import default_folder

    store = kept_sentences(default_folder("stores", "RAYBIO_STORES"), given.sentences, given.benchmark)
    return [*others, "--store", str(store.path)]


def main() -> None:
    """Choose the command."""
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        from raybio.runtime.asking import ask
        from raybio.runtime.curves import curves
        from raybio.runtime.probing import app
        from raybio.runtime.probing_baselines import baselines

        for command in (baselines, ask, curves):
            app.command()(command)
        run_app(app)

    def train() -> None:
        """Prepare what was given, and train."""
        from raybio.runtime.launch import training_job

        sys.argv[1:] = prepare_given(sys.argv[1:])
        training_job("contrastive_probe", __doc__ or "")

    run_app(train)


if __name__ == "__main__":
    main()
