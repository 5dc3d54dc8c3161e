"""Compare runs: settings that differ, final scores with paired tests, curves in one frame, and cost."""

from raybio.runtime.command_line import run_app
from raybio.runtime.comparisons.comparing import app

if __name__ == "__main__":
    run_app(app)
