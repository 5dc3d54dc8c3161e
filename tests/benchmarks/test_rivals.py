"""``benchmarks/rivals.py`` prints the rows that a run has without training."""

import json

import pytest

from benchmarks import rivals
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
