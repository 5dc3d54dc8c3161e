"""Prepare a store from source files: ``python jobs/prepare.py --help`` lists the kinds."""

from raybio.runtime.command_line import run_app
from raybio.runtime.preparing import app

if __name__ == "__main__":
    run_app(app)
