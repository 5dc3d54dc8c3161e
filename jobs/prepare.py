"""Prepare a store from source files: python jobs/prepare.py --help lists the commands."""

from raybio.cli.app import run_app
from raybio.cli.prepare import app

if __name__ == "__main__":
    run_app(app)
