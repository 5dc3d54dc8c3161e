"""A training command whose runs lie in a bucket, with local folders that a test can throw away."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import yaml

from raybio.core.errors import MissingObjectError
from raybio.core.location import BucketPath
from raybio.store.bucket import BucketFolder
from raybio.store.store import Store
from raybio.training.settings import TrainingConfig
from tests.paths import ROOT


def lose_machine(process: subprocess.Popen[bytes], disk: Path) -> None:
    """A driver and all it started are killed, and its disk is gone."""
    family = [psutil.Process(process.pid)]
    family += family[0].children(recursive=True)
    for one in family:
        if one.is_running():
            one.kill()
    process.wait()
    psutil.wait_procs(family, timeout=600)
    remove(disk)


def remove(disk: Path) -> None:
    """Delete a folder to which processes that are just ending may still write."""
    while disk.exists():
        shutil.rmtree(disk, ignore_errors=True)


def first_steps(notices: bytes) -> list[int]:
    """Return the step that each start of training began from.

    Each notice begins after a line break: a killed writer may have left half of one.
    """
    lines = [json.loads(line) for line in notices.splitlines() if line]
    return [line["first_step"] for line in lines if "first_step" in line]


class BucketJob:
    """``jobs/sppt_protein.py`` on the tiny store; caches and working folder are ``disk``."""

    def __init__(
        self, folder: Path, bucket: BucketPath, store: Store, config: TrainingConfig
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.config = config
        self.disk = folder / "disk"
        self.runs = bucket / "runs"
        self.store = store
        self.log = folder / "log"
        (folder / "config.yaml").write_text(yaml.safe_dump(config.to_mapping()))

    def start(self, name: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        self.disk.mkdir(exist_ok=True)
        command = [sys.executable, "-W", "ignore", str(ROOT / "jobs" / "sppt_protein.py")]
        command += ["--no-baseline", "--store", str(self.store.path)]
        command += ["--config", str(self.folder / "config.yaml"), "--name", name]
        command += arguments
        own = {"RAYBIO_CACHE": str(self.disk / "cache"), "RAYBIO_RUNS": str(self.runs)}
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=self.disk,
                env=os.environ | own | environment,
                start_new_session=True,
            )

    def finish(self, name: str, *arguments: str, **environment: str) -> dict:
        process = self.start(name, *arguments, **environment)
        assert process.wait(timeout=1500) == 0, self.output
        return self.result(name)

    def result(self, name: str) -> dict:
        """``result.json`` in the bucket."""
        return json.loads(self.of(name).read("result.json"))

    def of(self, name: str) -> BucketFolder:
        return BucketFolder(self.runs / name)

    def steps(self, name: str) -> list[int]:
        """The steps of the log in the bucket."""
        try:
            lines = self.of(name).read("metrics.jsonl").splitlines()
        except MissingObjectError:
            return []
        return [json.loads(line)["step"] for line in lines]

    def first_steps(self, name: str) -> list[int]:
        """The step that each start of training began from."""
        return first_steps(self.of(name).read("notices.jsonl"))

    def checkpoints(self, name: str) -> list[int]:
        """Steps of the whole checkpoints in the bucket."""
        manifests = [
            info.name.split("/")[1]
            for info in self.of(name).list("checkpoints")
            if info.name.endswith("/manifest.json")
        ]
        return sorted(int(name.split("-")[1]) for name in manifests)

    def wait_for_checkpoint(self, name: str, process: subprocess.Popen[bytes]) -> None:
        while not self.checkpoints(name):
            assert process.poll() is None, self.output
            time.sleep(0.05)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        lose_machine(process, self.disk)

    @property
    def output(self) -> str:
        return self.log.read_text()[-4000:]
