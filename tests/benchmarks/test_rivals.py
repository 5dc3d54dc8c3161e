"""``benchmarks/rivals.py`` prints the rows that a run has without training."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import rivals
from raybio.core.final_report import UnitScores
from raybio.evaluation.unit_scores import paired_difference, write_unit_scores
from raybio.methods import METHODS
from raybio.training.collective import SingleProcess
from tests.methods.conformance_cases import CASES, tiny_config
from tests.paths import ROOT
from tests.script_process import run_script


@pytest.mark.nightly
def test_the_table_has_the_rows_that_a_run_has_without_training(tiny_task, tmp_path):
    config = tiny_config("finetune")
    system = METHODS["finetune"].build(config, tiny_task.path)
    report = system.final_evaluate(system.model, SingleProcess())
    given = [f"{path}={json.dumps(value)}" for path, value in CASES["finetune"].settings.items()]
    options = [part for one in given for part in ("--set", one)]
    script = ROOT / "benchmarks" / "rivals.py"
    done = run_script(
        script, tmp_path, "table", "finetune", "--store", str(tiny_task.path), *options
    )
    assert done.returncode == 0, done.stderr
    for stage, by_split in report.scores.items():
        score = by_split["test"]["score"]
        number = f"{100 * score['value']:.2f}"
        if "low" in score:
            number += f" [{100 * score['low']:.2f}, {100 * score['high']:.2f}]"
        assert (f"| {stage} | {number} |" in done.stdout) == (stage != "trained"), stage


def test_settings_of_a_file_are_read_over_the_methods_own():
    """A file may rely on the method's encoder, as that of a run may."""
    file = ROOT / "docs" / "results" / "configs" / "relations_minilm.yaml"
    options = ["table", "relation_finetune", "--store", "store", "--config", str(file)]
    config = rivals.config_of(rivals.parse([*options, "--set", "encoder.max_length=64"]))
    assert config.encoder.num_layers_kept == 3
    assert config.encoder.max_length == 64


def test_runs_are_compared_with_a_row_of_others_on_the_same_units(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    units = np.arange(40)

    def scores(mean: float) -> UnitScores:
        return UnitScores(units, {"lrap": mean + 0.1 * rng.normal(size=40)})

    trained = {f"own{seed}": scores(0.5) for seed in range(3)}
    ranking = scores(0.3)
    network = {f"other{seed}": scores(0.4) for seed in range(3)}
    for name, of_run in (trained | network).items():
        (tmp_path / name).mkdir()
        rows = {"trained": {"val": of_run}, "ranking": {"val": ranking}}
        rows["network"] = {"val": network.get(name, of_run)}
        write_unit_scores(tmp_path / name / "unit_scores.npz", rows)

    def difference(others: list[str], row: str) -> str:
        runs, of = (",".join(str(tmp_path / name) for name in names) for names in (trained, others))
        given = rivals.parse(["difference", runs, of, "--row", row])
        return rivals.run_difference(given)

    mean = np.mean([one.value_by_measure["lrap"] for one in trained.values()])
    of_ranking = mean - ranking.value_by_measure["lrap"].mean()
    assert difference(["other0"], "ranking").startswith(f"{of_ranking:+.4f} [")
    expected = paired_difference([*trained.values()], [*network.values()], "lrap")
    assert difference([*network], "network").startswith(f"{expected.difference.value:+.4f} [")
    assert difference([*network], "network").endswith("; 40 units")
    with pytest.raises(SystemExit, match="no row 'rank' of split 'val'; there are .*ranking"):
        difference(["other0"], "rank")
