"""Compare runs: settings, final scores with paired tests, curves in one frame, and cost."""

from raybio.cli.app import run_app
from raybio.cli.compare import app

if __name__ == "__main__":
    run_app(app)
