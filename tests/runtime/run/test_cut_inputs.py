"""A run with cut inputs: a remark is printed, and kept in the folder, MLflow and the table."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from mlflow import MlflowClient

from raybio.core.records import read_record
from raybio.runtime.compare.table import lines_for_terminal
from raybio.runtime.compare.variations import Variation, compare, run_remarks, variants_of
from raybio.runtime.run.spec import RunSpec
from raybio.store.store import Store
from tests.methods.conformance_cases import tiny_config

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.mark.nightly
def test_what_is_cut_of_the_inputs_is_said_wherever_a_reader_looks(
    tiny_task: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = np.diff(tiny_task.indptr_N1)
    limit = int(np.median(lengths))
    config = tiny_config(
        "finetune",
        **{
            "encoder.max_length": limit + 2,
            "schedule.max_steps": 2,
            "schedule.evaluate_every_steps": 2,
        },
    )
    request = RunSpec(
        method="finetune", config=config, store=tiny_task.path, name="cut", runs=tmp_path / "runs"
    )
    result, table = compare(request)
    (inputs,) = result.inputs
    assert inputs["num_cut"] == int((lengths > inputs["limit"]).sum()) > 0
    limits = f"{inputs['limit']} of {lengths.max()} residues"
    remark = f"{inputs['num_cut']} of {len(lengths)} cut at {limits}"
    assert remark in inputs["remark"]
    assert remark in capsys.readouterr().out
    assert (
        read_record(result.folder.result, "result")["inputs"]
        == read_record(result.folder.inputs, "inputs")["inputs"]
        == result.inputs
    )
    assert remark in (result.folder.path / "table.md").read_text()
    assert any(remark in str(line) for line in lines_for_terminal(table))
    tracked = (
        MlflowClient(read_record(result.folder.tracking, "tracking")["uri"])
        .get_run(result.mlflow_run_id)
        .data
    )
    assert remark in tracked.tags["inputs"]
    share = inputs["num_cut"] / len(lengths)
    assert tracked.metrics["inputs/sequences/cut_share"] == pytest.approx(share)
    whole = replace(result, inputs=[inputs | {"remark": ""}])
    variants = variants_of(
        request, [Variation("seed", (request.config.seed, request.config.seed + 1))]
    )
    assert result.final is not None
    more = result.final.remarks
    remarks = [inputs["remark"], *more]
    assert run_remarks(variants, [result, result]) == remarks
    assert run_remarks(variants, [whole, result]) == [
        *(f"{variants[0].label}: {text}" for text in more),
        *(f"{variants[1].label}: {text}" for text in remarks),
    ]
