"""Evaluate trained models: python jobs/evaluate.py COMMAND --help."""

from raybio.cli.app import run_app
from raybio.cli.evaluate import app

if __name__ == "__main__":
    run_app(app)
