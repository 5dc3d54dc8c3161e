"""Kill N runs of two workers, each in a fresh folder, and give the same command again until it is finished.

    python benchmarks/kill_and_resume.py N [--seed SEED] [--steps STEPS] [--remote]

Each time it is chosen by chance whether the driver with its whole process group or one training worker gets SIGKILL,
and when: before the first step, at a step, or after the last one, while the model is evaluated and exported. A line a
kill says whether the final weights are bit-identical to those of an unbroken run. Home, temporary folder and runs are
private; processes are found as descendants of the driver that was started here, and none other is touched. With
--remote, the store and the runs lie in a bucket of an S3 server on this machine (moto), a killed driver loses its
machine (all its processes end, and its disk is deleted), and the weights are those that the bucket names. Exit status 1
if any weights differ or a run does not come to its end. Runs that ended before they could be killed are compared, too,
and do not count as kills; after 2 N runs no more are started.
"""

import argparse
import contextlib
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from raybio.core.cache import cache_folder
from raybio.core.config import override_all
from raybio.core.errors import MissingObjectError
from raybio.core.location import BucketPath
from raybio.core.records import read_record
from raybio.methods import METHODS
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.runtime.spool.spool import spool_of
from raybio.store.bucket import BucketFolder
from raybio.store.remote_store import upload_store

JOB = Path(__file__).parents[1] / "jobs" / "sppt_protein.py"
MAX_STARTS = 6
START_SECONDS = 900
LEFTOVER_SECONDS = 180
"""Ray's own agents outlive a killed driver by up to two or three minutes."""


@dataclass(frozen=True)
class Setting:
    """What all runs share."""

    folder: Path
    store: Path | BucketPath
    config: Path
    num_steps: int

    def command(self, run: RunFolder) -> list[str]:
        command = [sys.executable, "-W", "ignore", str(JOB), "--no-baseline", "--workers", "2"]
        command += ["--store", str(self.store), "--config", str(self.config)]
        return [*command, "--runs", str(self.runs_of(run)), "--name", run.name]

    def run(self, name: str) -> RunFolder:
        """The folder of a run, which this process follows."""
        return RunFolder(self.folder / f"runs-{name}", name)

    def runs_of(self, run: RunFolder) -> Path | BucketPath:
        """The folder of runs that the command gets."""
        return run.path.parent

    def lose_machine(self, family: list[psutil.Process]) -> None:
        """What happens to a killed driver's machine: on a shared disk, nothing."""

    def result(self, run: RunFolder) -> dict[str, Any]:
        """What the run says of its end; empty before it."""
        return read_record(run.result, "result") or {}

    def start(self, run: RunFolder) -> subprocess.Popen[bytes]:
        """The command in a process group of its own; what it prints goes to a file beside the runs."""
        with open(self.folder / f"{run.name}.log", "ab") as log:
            return subprocess.Popen(
                self.command(run),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.folder,
            )

    def tail(self, run: RunFolder) -> str:
        return (self.folder / f"{run.name}.log").read_text(errors="replace")[-1500:]


class RemoteSetting(Setting):
    """Runs in a bucket; this process follows the driver's copy."""

    bucket = BucketPath("s3", "kills")

    def run(self, name: str) -> RunFolder:
        return RunFolder(spool_of(self.bucket / "runs"), name)

    def runs_of(self, run: RunFolder) -> BucketPath:
        return self.bucket / "runs"

    def lose_machine(self, family: list[psutil.Process]) -> None:
        end_leftovers(family)
        shutil.rmtree(cache_folder(), ignore_errors=True)

    def result(self, run: RunFolder) -> dict[str, Any]:
        try:
            content = BucketFolder(self.bucket / "runs" / run.name).read("result.json")
        except MissingObjectError:
            return {}
        return dict(json.loads(content))


@contextlib.contextmanager
def s3_server(bucket: BucketPath) -> Iterator[None]:
    """An S3 server on this machine with an empty bucket; the environment names it."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }
    request = urllib.request.Request(f"http://{host}:{port}/{bucket.bucket}", method="PUT")
    urllib.request.urlopen(request).close()
    try:
        yield
    finally:
        server.stop()


def prepare(folder: Path, num_steps: int, *, is_remote: bool) -> Setting:
    """The demo's store and a short run of its settings; checkpoints and steps do not fall together."""
    entry = METHODS["sppt_protein"]
    settings = {
        "schedule.max_steps": num_steps,
        "schedule.checkpoint_every_steps": 7,
        "schedule.evaluate_every_steps": 20,
        "schedule.log_every_steps": 1,
        "optim.num_warmup_steps": 5,
        # What auto measures may differ between two starts, and is fixed by a checkpoint only from then on.
        "precision": "fp32",
    }
    config = folder / "settings.yaml"
    config.write_text(yaml.safe_dump(override_all(entry.demo, settings).to_mapping()))
    store = entry.prepare_demo(folder / "stores")
    if not is_remote:
        return Setting(folder, store, config, num_steps)
    in_bucket = RemoteSetting.bucket / "store"
    upload_store(store, in_bucket, force=False)
    shutil.rmtree(folder / "stores")
    return RemoteSetting(folder, in_bucket, config, num_steps)


def newest_step(run: RunFolder) -> int:
    reports = read_reports(run.metrics)
    return reports[-1]["step"] if reports else -1


@dataclass(frozen=True)
class Unbroken:
    """The run that nobody kills.

    Attributes:
        weights: sha256 of its weights.
        start_seconds: from the command to its first report.
        end_seconds: from its last step to the end of the command.
    """

    weights: str
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True)
class Moment:
    """When a process is killed: seconds after a step was reported, or after the command if it is -1."""

    step: int
    seconds: float

    @classmethod
    def of_kill(
        cls, number: int, rng: random.Random, num_steps: int, unbroken: Unbroken
    ) -> "Moment":
        """Return a moment: of each six kills one before the first step, and one after the last."""
        if number % 6 == 3:
            return cls(-1, rng.uniform(0, unbroken.start_seconds))
        if number % 6 == 0:
            return cls(num_steps, rng.uniform(0, unbroken.end_seconds))
        return cls(rng.randrange(1, num_steps), rng.uniform(0, 0.2))


def wait_for_step(process: subprocess.Popen[bytes], run: RunFolder, step: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while newest_step(run) < step and process.poll() is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{run.name} did not reach step {step} in {START_SECONDS} s")
        time.sleep(0.01)


def training_workers(driver: int) -> list[psutil.Process]:
    """Ray Train's worker processes among the driver's descendants."""
    found = []
    for process in descendants(driver):
        with contextlib.suppress(psutil.Error):
            title = " ".join(process.cmdline())
            if title.startswith("ray::") and "TrainWorker" in title:
                found.append(process)
    return found


def descendants(driver: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(driver).children(recursive=True)
    return []


def kill(what: str, process: subprocess.Popen[bytes], rng: random.Random) -> str:
    """SIGKILL the driver's group or one training worker; what it was, or an empty string if it was gone already."""
    if process.poll() is not None:
        return ""
    if what == "driver":
        os.killpg(process.pid, signal.SIGKILL)
        return f"driver {process.pid} and its group"
    workers = training_workers(process.pid)
    if not workers:
        return ""
    victim = rng.choice(workers)
    try:
        victim.kill()
    except psutil.NoSuchProcess:
        return ""
    return f"worker {victim.pid}, one of {len(workers)}"


def run_to_the_end(
    setting: Setting, run: RunFolder, process: subprocess.Popen[bytes]
) -> tuple[int, bool]:
    """Wait, and give the command again while the run is unfinished; number of starts, and whether it finished."""
    for start in range(1, MAX_STARTS + 1):
        # Its family is remembered now: when the driver is gone, nobody could say which processes were its own.
        family = []
        deadline = time.monotonic() + START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            family = descendants(process.pid) or family
            time.sleep(0.5)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        end_leftovers(family)
        if is_finished(setting, run):
            return start, True
        if start < MAX_STARTS:
            process = setting.start(run)
    return MAX_STARTS, False


def is_finished(setting: Setting, run: RunFolder) -> bool:
    return setting.result(run).get("status") == "finished"


def end_leftovers(family: list[psutil.Process], patience_seconds: float = 0) -> list[str]:
    """Wait for processes that we started, then end those that are left; psutil never mistakes a reused id for them.

    Returns:
        What those that were left are, with their state: a zombie has ended, and its parent has not noticed.
    """
    _, alive = psutil.wait_procs(family, timeout=patience_seconds)
    left = []
    for process in alive:
        with contextlib.suppress(psutil.Error):
            title = " ".join(process.cmdline()) or process.name()
            left.append(f"{title[:200]} ({process.status()}, child of {process.ppid()})")
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=10)
    return left


def unbroken(setting: Setting) -> Unbroken:
    run = setting.run("unbroken")
    began = time.monotonic()
    process = setting.start(run)
    wait_for_step(process, run, 0)
    first = time.monotonic()
    wait_for_step(process, run, setting.num_steps)
    last = time.monotonic()
    starts, finished = run_to_the_end(setting, run, process)
    if not finished:
        sys.exit(f"the unbroken run did not finish in {starts} starts\n{setting.tail(run)}")
    weights = str(setting.result(run)["weights_sha256"])
    print(
        f"unbroken run: {setting.num_steps} steps, {starts} start, weights {weights[:16]}",
        flush=True,
    )
    return Unbroken(weights, first - began, time.monotonic() - last)


def broken(
    setting: Setting, number: int, rng: random.Random, expected: Unbroken
) -> tuple[bool, bool]:
    """One run with one kill; whether a process was killed, and whether the weights are the expected ones."""
    run = setting.run(f"killed-{number}")
    what = rng.choice(["driver", "worker"])
    moment = Moment.of_kill(number, rng, setting.num_steps, expected)
    if moment.step < 0:
        # Workers begin late, and some starts end before one could be killed.
        what = "driver"
    began = time.monotonic()
    process = setting.start(run)
    wait_for_step(process, run, moment.step)
    time.sleep(moment.seconds)
    family, at_step = descendants(process.pid), newest_step(run)
    victim = kill(what, process, rng)
    starts = 1
    if what == "driver" and victim:
        process.wait()
        finished = is_finished(setting, run)
        setting.lose_machine(family)
        if not finished:
            # At once, as a user would: what is left of the first start has to get out of the way by itself.
            more, finished = run_to_the_end(setting, run, setting.start(run))
            starts += more
        end_leftovers(family, LEFTOVER_SECONDS)
    else:
        starts, finished = run_to_the_end(setting, run, process)
    weights = setting.result(run).get("weights_sha256")
    steps = [report["step"] for report in read_reports(run.metrics)]
    each_once = steps == sorted(set(steps)) and set(range(1, setting.num_steps + 1)) <= set(steps)
    is_equal = finished and weights == expected.weights
    print(
        f"{number}: {victim or 'nothing (it had ended)'} killed {place(moment, at_step)}; {starts} start(s), "
        f"{time.monotonic() - began:.0f} s; weights {'equal' if is_equal else f'DIFFER ({weights})'}; "
        f"{'each step logged once' if each_once else 'LOG HAS GAPS OR REPEATS'}",
        flush=True,
    )
    if not is_equal:
        print(setting.tail(run), file=sys.stderr)
    return bool(victim), is_equal and each_once


def place(moment: Moment, at_step: int) -> str:
    if at_step < 0:
        return f"{moment.seconds:.1f} s after the start"
    if moment.step == at_step:
        return f"{moment.seconds:.1f} s after step {at_step}"
    return f"at step {at_step}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("number", type=int, help="how many kills")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of victims and steps")
    parser.add_argument("--steps", type=int, default=60, help="steps of a run")
    parser.add_argument("--remote", action="store_true", help="runs in a bucket, on lost machines")
    parser.add_argument("--keep", action="store_true", help="keep the runs' folder")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    folder = Path(tempfile.mkdtemp(prefix="rb"))
    for variable in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        os.environ.pop(variable, None)
    os.environ |= {"HOME": str(folder), "RAY_TMPDIR": str(folder)}
    os.environ["RAYBIO_CACHE"] = str(folder / "cache")
    served = s3_server(RemoteSetting.bucket) if arguments.remote else contextlib.nullcontext()
    try:
        with served:
            setting = prepare(folder, arguments.steps, is_remote=arguments.remote)
            expected = unbroken(setting)
            number = 0
            killed = 0
            equal = 0
            while killed < arguments.number and number < 2 * arguments.number:
                number += 1
                was_killed, is_equal = broken(setting, number, rng, expected)
                killed += was_killed
                equal += is_equal
    finally:
        end_leftovers(descendants(os.getpid()))
        if arguments.keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    outcome = {"runs": number, "kills": killed, "equal": equal, "seed": arguments.seed}
    print(json.dumps(outcome | {"remote": arguments.remote}))
    print(
        f"{equal} of {number} runs ended with the unbroken run's weights; {killed} were killed, and "
        f"{number - killed} had ended before"
    )
    sys.exit(equal != number or killed < arguments.number)


if __name__ == "__main__":
    main()
