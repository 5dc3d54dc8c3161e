"""Prepare a store from source files: ``raybio prepare`` as a script."""

from raybio.cli.main import main

if __name__ == "__main__":
    main("prepare")
