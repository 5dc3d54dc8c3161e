"""Search spaces and what trials leave in their folders, without any training."""

from pathlib import Path

import yaml

from raybio.core.records import write_record
from raybio.core.search_space import SearchSpace
from raybio.core.search_space_file import load_search_space
from raybio.methods import METHODS, present_name
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import MetricsLog
from raybio.runtime.run.spec import RunSpec
from raybio.runtime.tune.trial import ENDED, FINISHED, TRIAL_RECORD, SweepSpec, Trial

SYSTEM = METHODS["sppt_protein"]
LAMBDA, RATE, METRIC = "objective.lambda_spml", "optim.peak_lr", "val/link_mrr"


def space_of(folder: Path, **sections: object) -> SearchSpace:
    given = {
        "method": "sppt_protein",
        "metric": METRIC,
        "mode": "max",
        "budget": {"num_trials": 8, "max_steps": 40, "grace_steps": 10},
        "space": {LAMBDA: {"choice": [0.0, 0.1, 0.5]}, RATE: {"log_uniform": [1e-5, 1e-2]}},
        **sections,
    }
    (folder / "space.yaml").write_text(yaml.safe_dump(given))
    configs = {name: entry.config for name, entry in METHODS.items()}
    return load_search_space(folder / "space.yaml", configs, present_name)


def spec_of(folder: Path, **sections: object) -> SweepSpec:
    """Without a store: whether settings fit it is another matter."""
    run = RunSpec(
        method="sppt_protein",
        config=SYSTEM.demo,
        store=Path("store"),
        name="mine",
        runs=folder / "sweeps",
    )
    return SweepSpec(space=space_of(folder, **sections), run=run, checks_store=False)


def leave(
    spec: SweepSpec, trial: Trial, values: dict[int, float], status: str | None = FINISHED
) -> RunFolder:
    """What a trial leaves in its folder; of one that still runs, the status is None."""
    folder = spec.folder(trial)
    folder.make()
    log = MetricsLog(folder.metrics)
    log.append(0, {METRIC: 0.99})  # the start is no step of the trial
    for step, value in values.items():
        log.append(step, {METRIC: value})
    write_record(
        folder.path / TRIAL_RECORD,
        "trial",
        {"trial": {"settings": trial.settings, "branch": trial.branch}, "worker_seconds": 36.0},
    )
    if status is not None:
        write_record(folder.path / ENDED, "trial end", {"status": status})
    return folder


def of(value: float, rate: float = 1e-3, **more: object) -> Trial:
    return Trial({LAMBDA: value, RATE: rate, **more})
