"""Rewire a text encoder with cloze pairs of sentences, and probe it for facts at every saved step.

Without sentences and a store it uses embedded simulated facts. The same command again resumes.

--sentences FILE (repeatable, a sentence set each) and --benchmark DIR (MedLAMA's layout) prepare a
store first.
Other commands: probe, baselines, ask, sheet, curves (each with --help).
"""

import sys

from raybio.cli.app import run_app
from raybio.cli.contrastive_probe.train import prepare_given_store
from raybio.core.config import did_you_mean
from raybio.core.errors import ConfigError

COMMANDS = ("probe", "baselines", "ask", "sheet", "curves")


def main() -> None:
    """Run the command, or train."""
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        from raybio.cli.contrastive_probe.ask import ask
        from raybio.cli.contrastive_probe.baselines import baselines
        from raybio.cli.contrastive_probe.curves import curves
        from raybio.cli.contrastive_probe.probe import app

        for command in (baselines, ask, curves):
            app.command()(command)
        run_app(app)
    else:
        run_app(train)


def train() -> None:
    """Prepare the store of --sentences and --benchmark, and train."""
    if sys.argv[1:] and not sys.argv[1].startswith("-"):
        suggestion = did_you_mean(sys.argv[1], list(COMMANDS))
        raise ConfigError(
            f"{sys.argv[1]!r} is no command; want one of {', '.join(COMMANDS)}, "
            f"or options.{suggestion}"
        )
    sys.argv[1:] = prepare_given_store(sys.argv[1:])
    from raybio.cli.train import training_job

    training_job("contrastive_probe", __doc__ or "")


if __name__ == "__main__":
    main()
