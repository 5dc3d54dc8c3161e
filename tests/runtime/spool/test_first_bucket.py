"""The bucket on a laptop of docs/storage.md, by the lines of the page."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.guide_inputs import protein_inputs
from tests.paths import ROOT


def lines_of_the_page() -> list[str]:
    page = (ROOT / "docs" / "storage.md").read_text(encoding="utf-8")
    section = page.partition("## Try a bucket on a laptop")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return block.splitlines()


def replaced(script: str, old: str, new: str, times: int) -> str:
    assert script.count(old) == times, old
    return script.replace(old, new)


@pytest.mark.nightly
def test_the_lines_of_the_page_prepare_train_and_embed_in_a_bucket(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("this machine has no curl")
    install, *lines, last = lines_of_the_page()
    assert install == "pip install 'moto[server]'"
    assert last == "kill %1"
    protein_inputs(tmp_path)
    (tmp_path / "edges.tsv").rename(tmp_path / "links.csv")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = "\n".join([*lines, "curl --silent --fail $AWS_ENDPOINT_URL/laptop > objects", last])
    script = replaced(script, "9100", str(port), times=2)
    script = replaced(script, "schedule.max_steps=20", "schedule.max_steps=2", times=1)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    log = tmp_path / "log"
    with log.open("w") as file:
        shell = subprocess.Popen(
            ["bash", "-euc", script],
            cwd=tmp_path,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            returncode = shell.wait()
            # The server has got its signal from the page's last line.
            assert returncode == 0, log.read_text()[-5000:]
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
    keys = set(re.findall("<Key>(.*?)</Key>", (tmp_path / "objects").read_text()))
    assert {"stores/mine/manifest.json", "runs/first/result.json", "proteins.parquet"} <= keys
