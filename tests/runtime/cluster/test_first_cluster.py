"""The cluster of one machine of docs/cluster.md, by the commands of the page."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raybio.core.records import read_record
from tests.paths import ROOT

OWN = ["--map-root-user", "--pid", "--fork", "--kill-child", "--net", "--uts", "--mount-proc"]
"""Options of ``unshare``: processes, ports and host name are those of the test alone.

So the commands need no options that the page lacks, and what they start ends with the first process.
"""


TOO_BUSY = "The current node timed out during startup"
"""What Ray says when the 30 s are over that it gives a node, which nothing lengthens."""

NUM_STARTS = 10
"""Starts of the whole script."""

PATIENT = " --seconds 1200"
"""What the test adds to the page's ``preflight``, whose checks have 60 s each."""


def commands_of_the_page() -> list[str]:
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    section = page.partition("## On this machine first")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return block.splitlines()


@pytest.mark.nightly
def test_the_first_cluster_of_the_page_checks_itself_and_trains(
    private_home: Path, tmp_path: Path
) -> None:
    if shutil.which("ip") is None or subprocess.run(["unshare", *OWN, "true"]).returncode:
        pytest.skip("this machine gives a test no processes and ports of its own (unshare, ip)")
    *commands, last = [
        line + PATIENT if "preflight" in line else line for line in commands_of_the_page()
    ]
    # It stops every Ray of a machine. Here all processes end with the script.
    assert last == "ray stop"
    script = "\n".join(["hostname localhost", "ip link set lo up", *commands])
    environment = dict(os.environ)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["PYTHONPATH"] = str(ROOT)
    # Ray would end jobs for the memory that other processes of the machine take.
    environment["RAY_memory_monitor_refresh_ms"] = "0"
    log = tmp_path / "log"
    for _ in range(NUM_STARTS):
        with log.open("w") as file:
            done = subprocess.run(
                ["unshare", *OWN, "bash", "-euc", script],
                cwd=ROOT,
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        if TOO_BUSY not in log.read_text():
            break
    else:
        pytest.skip("this machine is too busy for the time that Ray gives a node to start")
    assert done.returncode == 0, log.read_text()[-5000:]
    assert log.read_text().count("succeeded") >= 2
    # Where the page says that runs go: the one of the command, and the one it is compared with.
    outcomes = list((private_home / "raybio" / "runs").glob("*/outcome.json"))
    assert [read_record(path, "outcome")["step"] for path in outcomes] == [20, 20]
