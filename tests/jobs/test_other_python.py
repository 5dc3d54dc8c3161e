"""A job in an environment without raybio says in a sentence what to do."""

import subprocess
import sys

from tests.paths import ROOT


def test_a_python_without_raybio_is_named_with_the_advice() -> None:
    """As ``ray job submit -- python jobs/embed.py`` where ``python`` is the machine's own."""
    command = [sys.executable, "-S", "-E", "jobs/embed.py", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"{sys.executable} has no raybio; want the Python that raybio is installed in: activate "
        "its environment, or give its path (ray job submit ... -- /path/to/.venv/bin/python "
        "jobs/embed.py)\n"
    )
