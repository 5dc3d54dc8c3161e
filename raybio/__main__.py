"""The command ``raybio``, as ``python -m raybio``."""

from raybio.cli.main import main

if __name__ == "__main__":
    main()
