"""Evaluate trained models: ``python jobs/evaluate.py zero-shot --help``, ``relations --help`` and more."""

from raybio.cli.app import run_app
from raybio.cli.evaluate import app

if __name__ == "__main__":
    run_app(app)
