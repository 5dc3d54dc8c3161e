"""Try many settings of one method by Ray Tune, and keep the best."""

import sys

from raybio.cli.app import run_app
from raybio.cli.contrastive_probe.train import prepare_given_store
from raybio.cli.sweep import app


def main() -> None:
    """Prepare a store for --sentences and --benchmark, as contrastive_probe.py does, and sweep."""
    sys.argv[1:] = prepare_given_store(sys.argv[1:])
    app()


if __name__ == "__main__":
    run_app(main)
