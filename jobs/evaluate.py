"""Evaluate trained models: ``raybio evaluate`` as a script."""

from raybio.cli.main import main

if __name__ == "__main__":
    main("evaluate")
