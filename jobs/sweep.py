"""Try many settings of a method: ``raybio sweep`` as a script."""

from raybio.cli.main import main

if __name__ == "__main__":
    main("sweep")
