"""Evaluate trained models: ``python jobs/evaluate.py zero-shot --help``, ``relations --help`` and more."""

from raybio.runtime.command_line import run_app
from raybio.runtime.judging import app

if __name__ == "__main__":
    run_app(app)
