"""P19: eight trials of twenty steps, beside Ray Tune over nested ``TorchTrainer``s, as Ray's documentation has it.

Both in one cluster that is there already, two trials at a time, the same system, settings, batches and steps, a report
and a checkpointed evaluation at the end of each trial. The peer trains by the same loop; ours also tracks in MLflow,
keeps every trial resumable and writes its report.
"""

import os
import tempfile
import uuid
from pathlib import Path
from statistics import median

import yaml
from _measure import NUM_PAIRS, SMALL, report, tree_seconds_of

from raybio.core.config import override_all
from raybio.core.search_space import quoted
from raybio.core.search_space_file import load_search_space
from raybio.methods import METHODS
from raybio.methods.sppt.proteins.demo import SIMULATED_PROTEINS, SimulationConfig
from raybio.runtime.cluster.connection import started

CORPUS = SimulationConfig(num_proteins=240, num_links=720, num_species=4)
PAIRS = min(NUM_PAIRS, 3)
STEPS, LAMBDAS = 20, [0.0, 0.1] if SMALL else [0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9]
PATH, METRIC = "objective.lambda_spml", "val/link_average_precision"
SETTINGS = {
    "schedule.max_steps": STEPS,
    "schedule.evaluate_every_steps": STEPS,
    "schedule.checkpoint_every_steps": STEPS,
    "precision": "fp32",
}


def peer_trial(settings: dict[str, float], base: dict, store: str, results: str) -> None:
    """The function that Tune calls: it builds a trainer, whose reports a callback passes on to Tune."""
    import ray.train
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer, get_device
    from ray.tune.integration.ray_train import TuneReportCallback

    def train_loop(config: dict) -> None:
        from raybio.core.config import override
        from raybio.training.checkpoint import CheckpointStore
        from raybio.training.loop import fit

        entry = METHODS["sppt_protein"]
        whole = override(entry.config.from_mapping(base), PATH, quoted(config[PATH]))
        system = entry.build(whole, store)
        checkpoints = CheckpointStore(Path(results) / "checkpoints" / uuid.uuid4().hex)
        for one in fit(system, whole, device=get_device(), checkpoints=checkpoints):
            if one.is_evaluation and one.step:
                ray.train.report({METRIC: one.metrics[METRIC]})

    TorchTrainer(
        train_loop,
        train_loop_config=settings,
        scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 0.9}),
        run_config=RunConfig(
            storage_path=results, name=uuid.uuid4().hex, callbacks=[TuneReportCallback()]
        ),
    ).fit()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rb") as name:
        folder = Path(name)
        for variable in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
            os.environ.pop(variable, None)
        os.environ |= {"HOME": name, "RAY_TMPDIR": name}
        store = str(SIMULATED_PROTEINS.prepare(folder, CORPUS).path)
        base = override_all(METHODS["sppt_protein"].demo, SETTINGS)
        space = {
            "method": "sppt_protein",
            "metric": METRIC,
            "mode": "max",
            "budget": {"max_steps": STEPS, "grace_steps": STEPS, "max_concurrent_trials": 2},
            "scheduler": {"kind": "none"},
            "search": {"kind": "grid"},
            "space": {PATH: {"choice": LAMBDAS}},
        }
        (folder / "space.yaml").write_text(yaml.safe_dump(space))
        with started(threads=1, with_dashboard=True):
            from ray import tune

            from raybio.runtime.run.spec import Compute, RunSpec
            from raybio.runtime.tune.driver import sweep
            from raybio.runtime.tune.trial import SweepSpec

            loaded = load_search_space(
                folder / "space.yaml", {key: entry.config for key, entry in METHODS.items()}
            )

            def ours() -> None:
                place = folder / "sweeps"
                swept = sweep(
                    SweepSpec(
                        space=loaded,
                        run=RunSpec(
                            method="sppt_protein",
                            store=Path(store),
                            name=f"s{uuid.uuid4().hex[:8]}",
                            config=base,
                            runs=place,
                            compute=Compute(cpus_per_worker=1),
                        ),
                    )
                )
                assert [one.values[-1][0] for one in swept.trials] == [STEPS] * len(LAMBDAS)

            def peer() -> None:
                results = str(folder / "results" / uuid.uuid4().hex)
                run = tune.with_parameters(
                    peer_trial, base=base.to_mapping(), store=store, results=results
                )
                grid = tune.Tuner(
                    tune.with_resources(run, {"CPU": 0.01}),
                    param_space={PATH: tune.grid_search(LAMBDAS)},
                    tune_config=tune.TuneConfig(metric=METRIC, mode="max", max_concurrent_trials=2),
                    run_config=tune.RunConfig(storage_path=results, verbose=0),
                ).fit()
                assert len([one for one in grid if METRIC in (one.metrics or {})]) == len(LAMBDAS)

            ratios, seconds = [], []
            ours()  # the database made, files into the page cache
            for _ in range(PAIRS):
                one, two = tree_seconds_of(ours), tree_seconds_of(peer)
                ratios.append(two / one)
                seconds.append(one)
        each = median(seconds) / len(LAMBDAS)
        note = (
            f"{len(LAMBDAS)} trials × {STEPS} steps, 2 at a time; ours: {each:.1f} s of processor time a trial, "
            "all processes of the cluster"
        )
        report("P19", "Tuner over nested TorchTrainers", median(ratios), min(ratios), note)


if __name__ == "__main__":
    main()
