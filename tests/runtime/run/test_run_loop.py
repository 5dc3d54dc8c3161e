"""The loop of one process with the files of its run, without Ray."""

from dataclasses import replace
from pathlib import Path

import pytest

from raybio.core.final_report import FinalReport
from raybio.core.records import read_record
from raybio.methods import METHODS
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.run_loop import train_single_process
from raybio.store.store import Store
from raybio.training.precision import current_embedding_precision
from tests.methods.conformance_cases import tiny_config

NAME = "sppt_protein"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_final_evaluation_embeds_in_the_precision_of_the_run(
    tiny_store: Store, tmp_path: Path, precision: str
) -> None:
    config = tiny_config(NAME, **{"schedule.max_steps": 1, "schedule.evaluate_every_steps": 0})
    config = config.model_copy(update={"precision": precision})
    system = METHODS[NAME].build(config, tiny_store.path)
    seen = []

    def final_evaluate(model, collective, shared=None):
        seen.append(current_embedding_precision())
        return FinalReport(scores={"trained": {"val": {"lrap": {"value": 0.5}}}})

    folder = RunFolder(tmp_path, "run")
    folder.open(NAME, config, Path(tiny_store.path), system.data_digest, ())
    reports = train_single_process(
        replace(system, final_evaluate=final_evaluate),
        config,
        folder,
        device="cpu",
        precision=precision,
        stop=folder.stop,
        goal=None,
    )
    assert [report.precision for report in reports][-1] == precision
    assert [found.name for found in seen] == [precision]
    assert read_record(folder.outcome, "outcome")["precision"] == precision
    assert current_embedding_precision().name == "fp32"
