"""Start a command of ``raybio``, or say what to do where this Python does not have it."""

import sys
from typing import NoReturn


def main(*command: str) -> NoReturn:
    """Run a command with the arguments of the script, and exit.

    Args:
        command: its words, such as "train", "sppt_protein".
    """
    try:
        from raybio.cli.main import main as run
    except ModuleNotFoundError as error:
        sys.exit(
            f"{sys.executable} has no {error.name}; want the Python that raybio is installed in: "
            "activate its environment, or give its path (ray job submit ... -- "
            f"/path/to/.venv/bin/python {sys.argv[0]})"
        )
    run(*command)
