"""Try many settings of one method by Ray Tune, and keep the best."""

import sys

from raybio.cli.app import run_app
from raybio.cli.contrastive_probe.train import prepare_given_store
from raybio.cli.sweep import app


def main() -> None:
    """--sentences and --benchmark prepare a store, as for jobs/contrastive_probe.py; the rest is the sweep's."""
    sys.argv[1:] = prepare_given_store(sys.argv[1:])
    app()


if __name__ == "__main__":
    run_app(main)
