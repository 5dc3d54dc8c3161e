"""Run the commands of a guide in the folder of this process, with one Ray for all of them.

Commands join this Ray instead of starting one each.
"""

import shutil
import sys
import time
import traceback
from pathlib import Path

from typer.testing import CliRunner

from raybio.cli.main import app
from raybio.runtime.cluster.connection import started
from tests.guides import GUIDES, commands_of


def main(name: str, database: str) -> None:
    guide = GUIDES[name]
    guide.write_inputs(Path.cwd())
    shutil.copy(database, "mlflow.db")
    with started(threads=1, with_dashboard=True):
        for line, words in commands_of(guide):
            begun = time.monotonic()
            done = CliRunner().invoke(app, words)
            print(f"{time.monotonic() - begun:.0f} s", line, flush=True)
            if done.exit_code != 0:
                traceback.print_exception(done.exception)
                sys.exit(f"{line}\n{words}\n{done.output[-3000:]}\n{done.exception!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
