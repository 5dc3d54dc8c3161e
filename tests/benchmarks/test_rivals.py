"""``benchmarks/rivals.py`` prints the rows that a run has without training."""

import json

from raybio.methods import METHODS
from raybio.training.collective import SingleProcess
from tests.methods.conformance_cases import CASES, tiny_config
from tests.paths import ROOT
from tests.script_process import run_script


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
