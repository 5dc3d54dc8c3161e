"""P12: steps a second of a run through Ray, beside the same loop and batches in this process without any Ray.

Through Ray is all of it: its cluster, Ray Train's worker, batches from Ray Data, MLflow and progress in the driver.
Both write their log alike; the rate is taken from its times, after a warm-up in which Ray Data and MLflow start. One
Ray run and one plain run are a pair, in turn first and second; the weights at the end must be bit-identical.
"""

import os
import tempfile
from pathlib import Path
from statistics import median

import torch
from _measure import NUM_PAIRS, SMALL, report

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


def steps_per_second(log: Path) -> float:
    """Of the steps after the warm-up; the last report is left out, a checkpoint lies before it."""
    points = [(line["step"], line["time_ms"] / 1000) for line in read_reports(log)]
    (first, since), *_, (last, until) = [
        point for point in points if WARM_UP_STEPS <= point[0] < NUM_STEPS
    ]
    return (last - first) / (until - since)


def plain_run(config: Config, store: Path, folder: Path) -> tuple[float, str]:
    folder.mkdir()
    log = MetricsLog(folder / "metrics.jsonl")
    log.rewind(0)
    system = METHODS["sppt_protein"].build(config, store)
    for step_report in fit(system, config):
        log.append(step_report.step, step_report.metrics)
    return steps_per_second(log.path), weights_digest(system.model.state_dict().items())


def ray_run(config: Config, store: Path, folder: Path) -> tuple[float, str]:
    result = train(
        RunSpec(
            method="sppt_protein", config=config, store=store, name=folder.name, runs=folder.parent
        )
    )
    return steps_per_second(result.folder.metrics), str(result.weights_sha256)


def main() -> None:
    config = override_all(Config(), SETTINGS)
    torch.set_num_threads(local_cpus())  # as many as the one worker gets
    with tempfile.TemporaryDirectory(prefix="rb") as folder:
        os.environ |= {"HOME": folder, "RAY_TMPDIR": folder}
        runs, store = Path(folder) / "runs", SIMULATED_PROTEINS.prepare(folder, CORPUS).path
        runs.mkdir()
        plain_run(config, store, runs / "warm-up")
        ratios, step_seconds = [], []
        for pair in range(NUM_PAIRS):
            rates, weights = {}, {}
            sides = [("ray", ray_run), ("plain", plain_run)]
            for name, run in sides if pair % 2 == 0 else reversed(sides):
                rates[name], weights[name] = run(config, store, runs / f"{name}-{pair}")
            assert weights["ray"] == weights["plain"], weights
            ratios.append(rates["ray"] / rates["plain"])
            step_seconds.append(1 / rates["plain"])
        note = (
            f"steps of {median(step_seconds):.2f} s, {NUM_STEPS - WARM_UP_STEPS} after a warm-up of {WARM_UP_STEPS}; "
            "weights are bit-identical; the ratio is steps/s through Ray over steps/s without"
        )
        report("P12", "the same loop and batches in one process", median(ratios), min(ratios), note)


if __name__ == "__main__":
    main()
