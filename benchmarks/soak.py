"""Kill processes of commands at random until each has come to its end, and compare what it leaves.

    python benchmarks/soak.py KILLS [--seed SEED] [--only NAME]... [--out FOLDER]

The commands are the training of each method (of synthetic graphs, the experiment), a sweep, a cross-validation, bulk
embedding and preparing a store: on built-in corpora, with default settings of cluster and precision. Each runs once
undisturbed. Then they take turns: a command gets one to three kills, is given again until it ends, and must leave what
the undisturbed one left, bit by bit. Of a training these are its weights, the scores of its final table, and all reports
but times, in its log and in MLflow.
A kill is SIGKILL for the driver with its process group, or for one of its descendants: a training worker, another
worker of Ray, a raylet, or Ray's head server. Its moment is random within the time that the undisturbed command took.
A line of `FOLDER/endings.jsonl` is an ending; the same command goes on until KILLS kills are there, of the present code.
The last lines say how many hours these endings took, and on which machines.
Exit status 1 if an ending differs or a command does not come to its end; what it left stays in FOLDER.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from benchmarks._measure import machine
from benchmarks.kill_and_resume import LEFTOVER_SECONDS, descendants, end_leftovers
from raybio.core.config import override_all
from raybio.core.records import read_record
from raybio.core.version import code_digest
from raybio.methods import METHODS
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.store.store import open_store

RAYBIO = Path(sys.executable).with_name("raybio")
NUM_STEPS = 24
MAX_STARTS = 8
LIMIT_SECONDS = 1800.0
LETTERS = "ACDEFGHIKLMNPQRSTVWY"


@dataclass(frozen=True)
class Command:
    """A command of raybio.

    Attributes:
        name: its name here.
        arguments: folder of its results -> what follows ``raybio``.
        outcome: folder of its results -> what identifies them; empty before they are complete.
    """

    name: str
    arguments: Callable[[Path], list[str]]
    outcome: Callable[[Path], str]


def file_outcome(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def training_outcome(out: Path) -> str:
    """What identifies the training in ``out``, times excepted; empty before it is finished."""
    folder = RunFolder(out / "runs", "run")
    result = read_record(folder.result, "result") or {}
    if result.get("status") != "finished":
        return ""
    reports = [
        (report["step"], name, value)
        for report in read_reports(folder.metrics)
        for name, value in sorted(report["metrics"].items())
        if not is_timed(name)
    ]
    with contextlib.closing(sqlite3.connect(out / "mlflow.db")) as database:
        # A report that was sent twice has two rows, with different timestamps.
        rows = set(database.execute("SELECT step, key, value FROM metrics"))
    tracked = sorted(row for row in rows if not is_timed(row[1]))
    scores = result["final"]["scores"]
    return json.dumps([result["weights_sha256"], scores, reports, tracked], sort_keys=True)


def is_timed(metric: str) -> bool:
    """Whether a metric differs between two runs that are equal."""
    return metric.startswith("system/") or metric.endswith(("_seconds", "_per_second"))


def demo_options(name: str, inputs: Path) -> list[str]:
    """Store and settings of a method's demo, in a few steps."""
    method = METHODS[name]
    settings = {
        "schedule.max_steps": NUM_STEPS,
        "schedule.evaluate_every_steps": NUM_STEPS // 2,
        "schedule.checkpoint_every_steps": 5,
        "schedule.log_every_steps": 1,
    }
    config = inputs / f"{name}.yaml"
    config.write_text(yaml.safe_dump(override_all(method.demo, settings).to_mapping()))
    store = method.prepare_demo(inputs / "stores")
    return ["--store", str(store), "--config", str(config)]


def training(name: str, inputs: Path) -> Command:
    """The training of a method with two workers."""
    given = demo_options(name, inputs)

    def arguments(out: Path) -> list[str]:
        options = ["train", name, *given, "--name", "run", "--runs", str(out / "runs")]
        return [*options, "--workers", "2", "--no-baseline"]

    return Command(name, arguments, training_outcome)


def synthetic_graphs(inputs: Path) -> Command:
    """Cliques, with and without the graph loss."""
    given = demo_options("sppt_synthetic", inputs)

    def arguments(out: Path) -> list[str]:
        options = ["train", "sppt_synthetic", "--graph", "cliques", *given, "--name", "graphs"]
        return [*options, "--sweeps", str(out / "sweeps")]

    def outcome(out: Path) -> str:
        table = read_record(out / "sweeps" / "graphs" / "graphs.json", "synthetic graphs") or {}
        return json.dumps(table["graphs"], sort_keys=True) if table else ""

    return Command("sppt_synthetic", arguments, outcome)


def sweep(inputs: Path) -> Command:
    """Four trials of SPPT on proteins."""
    given = demo_options("sppt_protein", inputs)
    space = {
        "method": "sppt_protein",
        "metric": "val/link_ndcg",
        "mode": "max",
        "budget": {"num_trials": 4, "max_steps": NUM_STEPS, "grace_steps": NUM_STEPS},
        "scheduler": {"kind": "none"},
        "search": {"kind": "grid"},
        "space": {
            "objective.lambda_spml": {"choice": [0.1, 0.5]},
            "optim.peak_lr": {"choice": [1e-3, 2e-3]},
        },
    }
    path = inputs / "space.yaml"
    path.write_text(yaml.safe_dump(space))

    def arguments(out: Path) -> list[str]:
        return ["sweep", str(path), *given, "--name", "sweep", "--sweeps", str(out / "sweeps")]

    def outcome(out: Path) -> str:
        result = read_record(out / "sweeps" / "sweep" / "result.json", "result") or {}
        trials = [(each["settings"], each["values"]) for each in result.get("trials", [])]
        is_complete = len(trials) == 4 and all(values[-1][0] == NUM_STEPS for _, values in trials)
        return json.dumps(sorted(trials, key=str)) if is_complete else ""

    return Command("sweep", arguments, outcome)


def cross_validation(inputs: Path) -> Command:
    """CLDR and CLGS on each fold of the demo's sentences."""
    given = demo_options("relation_graphs", inputs)

    def arguments(out: Path) -> list[str]:
        options = ["train", "relation_graphs", *given, "--all-folds", "--compare", "model=clgs"]
        return [*options, "--name", "folds", "--runs", str(out / "runs")]

    def outcome(out: Path) -> str:
        folds = read_record(out / "runs" / "folds" / "folds.json", "cross-validation") or {}
        return json.dumps(folds.get("scores", ""), sort_keys=True) if folds else ""

    return Command("cross-validation", arguments, outcome)


def embedding(inputs: Path, export: Path) -> Command:
    """Embeddings of 20,000 random proteins."""
    rng = random.Random(0)
    fasta = inputs / "proteins.fasta"
    with fasta.open("w") as file:
        for number in range(20_000):
            file.write(f">p{number}\n{''.join(rng.choices(LETTERS, k=rng.randint(20, 60)))}\n")

    def arguments(out: Path) -> list[str]:
        options = ["embed", "--model", str(export), "--input", str(fasta)]
        return [*options, "--out", str(out / "embeddings.parquet"), "--rows-per-part", "1000"]

    return Command("embed", arguments, lambda out: file_outcome(out / "embeddings.parquet"))


def preparing(inputs: Path) -> Command:
    """A store of 20,000 random proteins and 100,000 links."""
    rng = random.Random(1)
    edges = inputs / "edges.tsv"
    with edges.open("w") as file:
        file.write("protein1\tprotein2\n")
        for _ in range(100_000):
            file.write(f"p{rng.randrange(20_000)}\tp{rng.randrange(20_000)}\n")

    def arguments(out: Path) -> list[str]:
        # A kill may come after the store is made, and then the same command is refused without it.
        options = ["prepare", "proteins", "--edges", str(edges), "--taxid", "1", "--force"]
        return [*options, "--proteins", str(inputs / "proteins.fasta"), "--out", str(out / "store")]

    def outcome(out: Path) -> str:
        is_there = (out / "store").exists()
        return open_store(out / "store").content_digest if is_there else ""

    return Command("prepare", arguments, outcome)


def kill_one(driver: subprocess.Popen[bytes], rng: random.Random) -> str:
    """SIGKILL the driver's group or one of its descendants; return which, by its kind."""
    victims: dict[str, list[psutil.Process]] = {"driver": []}
    for process in descendants(driver.pid):
        try:
            title = " ".join(process.cmdline())
        except psutil.Error:
            continue
        for kind in ("TrainWorker", "raylet", "gcs_server", "ray::"):
            if kind in title:
                victims.setdefault(kind, []).append(process)
                break
    kind = rng.choice(sorted(victims))
    if kind == "driver":
        os.killpg(driver.pid, signal.SIGKILL)
        return kind
    try:
        rng.choice(victims[kind]).kill()
    except psutil.NoSuchProcess:
        return ""
    return kind


def wait_until(driver: subprocess.Popen[bytes], end: float) -> set[psutil.Process]:
    """Wait for the driver, at most until ``end``; return all descendants that it has had."""
    family: set[psutil.Process] = set()
    while driver.poll() is None and time.monotonic() < end:
        # Orphans of a killed process are no descendants any more.
        family.update(descendants(driver.pid))
        time.sleep(0.2)
    return family


def run_to_end(command: Command, out: Path, kills: list[float], rng: random.Random) -> list[str]:
    """Give a command until its outcome is there.

    Args:
        command: what is given.
        out: folder of its results.
        kills: seconds after a start at which a process of that start is killed.
        rng: chooses the victims.

    Returns:
        The kinds of the processes that were killed.

    Raises:
        RuntimeError: if a start hangs or leaves processes behind, or there is no outcome after
            ``MAX_STARTS`` starts.
    """
    killed: list[str] = []
    family: set[psutil.Process] = set()
    out.mkdir(parents=True, exist_ok=True)
    log = out.with_suffix(".log")
    try:
        for _ in range(MAX_STARTS):
            # At once, as a user would: what is left of the start before has to get out of the way.
            with log.open("ab") as file:
                driver = subprocess.Popen(
                    [str(RAYBIO), *command.arguments(out)],
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    cwd=out,
                )
            start = time.monotonic()
            if kills:
                family |= wait_until(driver, start + kills.pop(0))
                if driver.poll() is None:
                    killed += filter(None, [kill_one(driver, rng)])
            family |= wait_until(driver, start + LIMIT_SECONDS)
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
                raise _failed(command, f"hangs after {LIMIT_SECONDS:.0f} s", killed, log)
            if driver.returncode == 0 and command.outcome(out):
                _check_leftovers(command, family, killed, log)
                return killed
        raise _failed(command, f"no end after {MAX_STARTS} starts", killed, log)
    finally:
        end_leftovers(list(family))


def _check_leftovers(
    command: Command, family: set[psutil.Process], killed: list[str], log: Path
) -> None:
    left = "; ".join(end_leftovers(list(family), LEFTOVER_SECONDS))
    if left:
        problem = f"left processes that live {LEFTOVER_SECONDS:.0f} s after its end: {left}"
        raise _failed(command, problem, killed, log)


def _failed(command: Command, problem: str, killed: list[str], log: Path) -> RuntimeError:
    end = log.read_text(errors="replace")[-3000:]
    return RuntimeError(f"{command.name}: {problem}; killed: {', '.join(killed)}\n{end}")


def all_commands(inputs: Path) -> list[Command]:
    trainings = [training(name, inputs) for name in METHODS if name != "sppt_synthetic"]
    exported = inputs / "exported"
    run_to_end(trainings[0], exported, [], random.Random(0))
    return [
        *trainings,
        synthetic_graphs(inputs),
        sweep(inputs),
        cross_validation(inputs),
        embedding(inputs, exported / "runs" / "run" / "export"),
        preparing(inputs),
    ]


def known_endings(path: Path) -> list[dict[str, Any]]:
    """Return the endings of earlier calls."""
    endings = []
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(ValueError):
            endings.append(json.loads(line))
    return endings


def keep_evidence(out: Path, folder: Path) -> None:
    """Move what a command has left, and its log, to where it outlives this process."""
    for path in (out, out.with_suffix(".log")):
        if path.exists():
            shutil.move(path, folder / f"{int(time.time())}-{path.name}")


def soak(commands: list[Command], folder: Path, endings: Path, num_kills: int, seed: int) -> bool:
    """Return whether all endings are equal, those of earlier calls included."""
    code = code_digest()[:12]
    # Endings of other code say nothing of this one, and a kill may have torn the last line.
    done = [ending for ending in known_endings(endings) if ending.get("code") == code]
    total = sum(len(ending["killed"]) for ending in done)
    rng = random.Random(f"{seed} {len(done)}")
    here = machine()
    undisturbed: dict[str, tuple[str, float]] = {}
    turn = len(done)
    while total < num_kills:
        command = commands[turn % len(commands)]
        turn += 1
        if command.name not in undisturbed:
            start = time.monotonic()
            run_to_end(command, folder / f"{command.name}-undisturbed", [], rng)
            seconds = time.monotonic() - start
            outcome = command.outcome(folder / f"{command.name}-undisturbed")
            undisturbed[command.name] = (outcome, seconds)
        expected, seconds = undisturbed[command.name]
        moments = [rng.uniform(0, seconds) for _ in range(rng.randint(1, 3))]
        out = folder / f"{command.name}-{turn}"
        start = time.monotonic()
        try:
            killed = run_to_end(command, out, moments, rng)
        except RuntimeError:
            keep_evidence(out, endings.parent)
            raise
        is_equal = command.outcome(out) == expected
        ending = {"command": command.name, "killed": killed, "is_equal": is_equal, "code": code}
        ending |= {"seconds": round(time.monotonic() - start), "machine": here}
        done.append(ending)
        total += len(killed)
        with endings.open("a") as file:
            # First a line's end: a kill may have torn the line before.
            file.write("\n" + json.dumps(ending))
        print(f"{total} of {num_kills} kills: {json.dumps(ending)}", flush=True)
        if is_equal:
            shutil.rmtree(out)
        else:
            keep_evidence(out, endings.parent)
    unequal = [ending["command"] for ending in done if not ending["is_equal"]]
    hours = sum(ending["seconds"] for ending in done) / 3600
    print(f"{total} kills, {len(done)} endings, {len(unequal)} unequal {unequal or ''}")
    print(f"{hours:.1f} hours on {', '.join(sorted({ending['machine'] for ending in done}))}")
    return not unequal


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kills", type=int, help="how many kills, with those of earlier calls")
    parser.add_argument("--seed", type=int, default=0, help="of moments and victims")
    parser.add_argument("--only", action="append", help="name of a command; repeatable")
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="folder of endings")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rb"))
    for variable in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        os.environ.pop(variable, None)
    os.environ |= {"HOME": str(folder), "RAY_TMPDIR": str(folder)}
    os.environ["RAYBIO_CACHE"] = str(folder / "cache")
    arguments.out.mkdir(parents=True, exist_ok=True)
    try:
        inputs = folder / "inputs"
        inputs.mkdir()
        commands = all_commands(inputs)
        if arguments.only:
            commands = [each for each in commands if each.name in arguments.only]
        endings = arguments.out / "endings.jsonl"
        is_equal = soak(commands, folder, endings, arguments.kills, arguments.seed)
    finally:
        end_leftovers(descendants(os.getpid()))
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(not is_equal)


if __name__ == "__main__":
    main()
