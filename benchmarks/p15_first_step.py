"""P15: from the command to the first optimizer step, beside Ray Train's own hello world (one linear layer).

Ours is a whole run: arguments, store, lock, MLflow, cluster, encoder, plan. Each start is a process of its own in a
private home, and is waited for to its end, so that none disturbs the next.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import yaml
from _measure import NUM_PAIRS, SMALL, report

from raybio.core.config import override_all
from raybio.methods import METHODS
from raybio.methods.sppt.proteins.demo import SIMULATED_PROTEINS, SimulationConfig

CORPUS = SimulationConfig(num_proteins=240, num_links=720, num_species=4)
SETTINGS = {
    "schedule.max_steps": 2,
    "schedule.log_every_steps": 1,
    "schedule.evaluate_every_steps": 0,
}
JOB = Path(__file__).parents[1] / "jobs" / "sppt_protein.py"

HELLO_WORLD = """
import sys

import torch
import ray.train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device, prepare_model


def train_loop(config):
    model = prepare_model(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.ones(4, 8, device=get_device())).square().mean()
    loss.backward()
    optimizer.step()
    open(config["done"], "w").write("1")
    ray.train.report({"loss": loss.item()})


trainer = TorchTrainer(
    train_loop,
    train_loop_config={"done": sys.argv[1]},
    scaling_config=ScalingConfig(num_workers=1),
    run_config=RunConfig(storage_path=sys.argv[2], name="hello"),
)
trainer.fit()
"""


def seconds_to(done: Callable[[], bool], command: list[str], log: Path) -> float:
    """Seconds from the command until ``done`` says yes; returns when the process has ended too."""
    start = time.perf_counter()
    with open(log, "w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        while not done():
            if process.poll() is not None and not done():
                raise RuntimeError(
                    f"{command[1]} ended with {process.returncode} before its first step\n{tail(log)}"
                )
            time.sleep(0.01)
        seconds = time.perf_counter() - start
        process.wait()
    if process.returncode:
        raise RuntimeError(f"{command[1]} ended with {process.returncode}\n{tail(log)}")
    return seconds


def tail(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rb") as name:
        folder = Path(name)
        for variable in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
            os.environ.pop(variable, None)
        os.environ |= {"HOME": name, "RAY_TMPDIR": name}
        store = SIMULATED_PROTEINS.prepare(folder, CORPUS).path
        settings, hello = folder / "settings.yaml", folder / "hello_world.py"
        settings.write_text(
            yaml.safe_dump(override_all(METHODS["sppt_protein"].demo, SETTINGS).to_mapping())
        )
        hello.write_text(HELLO_WORLD)

        def ours(number: int) -> float:
            run = folder / "runs" / f"run-{number}"
            command = [
                sys.executable,
                str(JOB),
                "--store",
                str(store),
                "--config",
                str(settings),
                "--no-baseline",
            ]
            command += ["--runs", str(run.parent), "--name", run.name]
            log = run / "metrics.jsonl"
            return seconds_to(
                lambda: log.exists() and bool(log.read_text()), command, folder / "ours.log"
            )

        def peer(number: int) -> float:
            done = folder / f"done-{number}"
            command = [sys.executable, str(hello), str(done), str(folder / "results" / str(number))]
            return seconds_to(done.exists, command, folder / "peer.log")

        if not SMALL:
            ours(-1), peer(-1)  # files into the page cache, the database made
        ratios = []
        for number in range(NUM_PAIRS):
            seconds = {}
            sides = [("ours", ours), ("peer", peer)]
            for side, start in sides if number % 2 == 0 else reversed(sides):
                seconds[side] = start(number)
            ratios.append(seconds["peer"] / seconds["ours"])
        note = f"one worker, the demo's encoder; {1 / median(ratios):.2f}× the peer's time"
        report("P15", "Ray Train's hello world", median(ratios), min(ratios), note)


if __name__ == "__main__":
    main()
