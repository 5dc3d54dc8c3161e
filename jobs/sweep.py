"""Try many settings of one system by Ray Tune, and keep the best."""

from raybio.runtime.command_line import run_app
from raybio.runtime.sweeps.sweeping import app

if __name__ == "__main__":
    run_app(app)
