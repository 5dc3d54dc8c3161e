"""Compare runs: ``raybio compare`` as a script."""

from raybio.cli.main import main

if __name__ == "__main__":
    main("compare")
