"""P39: processor time of a step through Ray, in all processes, less that of the same loop and batches without Ray.

Through Ray is all of it: its cluster, Ray Train's worker, batches from Ray Data, MLflow and progress in the driver.
Processes are this one and all its descendants. Their time is taken between two reports of the log, after a warm-up in
which Ray Data and MLflow start. One Ray run and one plain run are a pair, in turn first and second; the weights at the
end must be bit-identical.
"""

import os
import tempfile
from pathlib import Path
from statistics import median

import torch
from _measure import NUM_PAIRS, SMALL, TreeClock, report

from raybio.core.config import override_all
from raybio.core.digest import weights_digest
from raybio.methods import METHODS
from raybio.methods.sppt.proteins.config import Config
from raybio.methods.sppt.proteins.demo import SIMULATED_PROTEINS, SimulationConfig
from raybio.runtime.cluster.connection import local_cpus
from raybio.runtime.run.driver import train
from raybio.runtime.run.metrics_log import MetricsLog, read_reports
from raybio.runtime.run.spec import RunSpec
from raybio.training.loop import fit

WARM_UP_STEPS, NUM_STEPS = (5, 15) if SMALL else (20, 60)
GOAL_SECONDS = 0.005
# Few proteins, since each run ends with an evaluation of all of them.
CORPUS = SimulationConfig(num_proteins=240, num_links=720, num_species=4)
SETTINGS = {
    "encoder.num_layers": 1 if SMALL else 4,
    "encoder.width": 32 if SMALL else 256,
    "encoder.num_heads": 4,
    "encoder.ffn_width": 64 if SMALL else 1024,
    "encoder.max_positions": 64,
    "input.max_length": 64,
    "objective.lambda_spml": 0.5,
    "plan.global_batch_rows": 8,
    "schedule.max_steps": NUM_STEPS,
    "schedule.log_every_steps": 5,
    "schedule.evaluate_every_steps": 0,
    "schedule.checkpoint_every_steps": NUM_STEPS,
    "precision": "fp32",
}


def core_seconds_of_step(log: Path, clock: TreeClock) -> float:
    """Of the steps after the warm-up; the last report is left out, a checkpoint lies before it."""
    points = [(line["step"], line["time_ms"] / 1000) for line in read_reports(log)]
    (first, since), *_, (last, until) = [
        point for point in points if WARM_UP_STEPS <= point[0] < NUM_STEPS
    ]
    return (clock.seconds_at(until) - clock.seconds_at(since)) / (last - first)


def plain_run(config: Config, store: Path, folder: Path) -> tuple[float, str]:
    folder.mkdir()
    log = MetricsLog(folder / "metrics.jsonl")
    log.rewind(0)
    system = METHODS["sppt_protein"].build(config, store)
    with TreeClock() as clock:
        for step_report in fit(system, config):
            log.append(step_report.step, step_report.metrics)
    seconds = core_seconds_of_step(log.path, clock)
    return seconds, weights_digest(system.model.state_dict().items())


def ray_run(config: Config, store: Path, folder: Path) -> tuple[float, str]:
    run = RunSpec(
        method="sppt_protein", config=config, store=store, name=folder.name, runs=folder.parent
    )
    with TreeClock() as clock:
        result = train(run)
    return core_seconds_of_step(result.folder.metrics, clock), str(result.weights_sha256)


def main() -> None:
    config = override_all(Config(), SETTINGS)
    torch.set_num_threads(local_cpus())  # as many as the one worker gets
    with tempfile.TemporaryDirectory(prefix="rb") as folder:
        os.environ |= {"HOME": folder, "RAY_TMPDIR": folder}
        runs, store = Path(folder) / "runs", SIMULATED_PROTEINS.prepare(folder, CORPUS).path
        runs.mkdir()
        plain_run(config, store, runs / "warm-up")
        costs, step_seconds = [], []
        for pair in range(NUM_PAIRS):
            seconds, weights = {}, {}
            sides = [("ray", ray_run), ("plain", plain_run)]
            for name, run in sides if pair % 2 == 0 else reversed(sides):
                seconds[name], weights[name] = run(config, store, runs / f"{name}-{pair}")
            assert weights["ray"] == weights["plain"], weights
            costs.append(seconds["ray"] - seconds["plain"])
            step_seconds.append(seconds["plain"])
        note = (
            f"{1e3 * median(costs):.1f} ms of processor time a step, {1e3 * max(costs):.1f} at most, beside "
            f"{1e3 * median(step_seconds):.0f} ms without Ray; {NUM_STEPS - WARM_UP_STEPS} steps after a warm-up of "
            f"{WARM_UP_STEPS}; weights are bit-identical"
        )
        # A cost below what the clock resolves counts as that.
        ratios = [GOAL_SECONDS / max(cost, 1e-4) for cost in costs]
        report("P39", "goal: 5 ms a step", median(ratios), min(ratios), note)


if __name__ == "__main__":
    main()
