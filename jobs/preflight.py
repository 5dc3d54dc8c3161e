"""Check what could go wrong before anything starts: ``raybio preflight`` as a script."""

from raybio.cli.main import main

if __name__ == "__main__":
    main("preflight")
