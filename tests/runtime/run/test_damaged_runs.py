"""Whole runs whose files were damaged between two starts."""

from dataclasses import replace

import pytest

from raybio.core.config import override_all
from raybio.runtime.run.driver import train
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.spec import RunSpec
from tests.whole_runs import flip_a_byte

pytestmark = pytest.mark.usefixtures("ray_cluster")


@pytest.fixture
def request_one(request_two: RunSpec) -> RunSpec:
    """One worker, ten steps that may become more; each test gives it a name."""
    short = {"schedule.max_steps": 10, "optim.schedule": "constant", "optim.warmup_ratio": 0.0}
    return replace(
        request_two,
        config=override_all(request_two.config, short),
        compute=replace(request_two.compute, workers=1),
    )


def longer(request: RunSpec) -> RunSpec:
    return replace(request, config=override_all(request.config, {"schedule.max_steps": 12}))


@pytest.mark.nightly
def test_the_user_sees_that_the_newest_checkpoint_is_damaged_and_from_which_step_the_run_resumes(
    request_one: RunSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    from mlflow import MlflowClient

    request = replace(request_one, name="flipped")
    folder = RunFolder(request.runs, request.name)
    train(request)
    damaged = folder.checkpoints / "step-00000010" / "model.safetensors"
    flip_a_byte(damaged)
    capsys.readouterr()
    result = train(longer(request))
    shown = capsys.readouterr().err
    assert "flipped: resuming from step 5\n" in shown
    assert "step 10\n" not in shown
    assert f"flipped: warning: damaged checkpoint skipped ({damaged}: its sha256" in shown
    assert "resuming from step 5" in folder.notices.read_text()
    client = MlflowClient(tracking_uri=f"sqlite:///{folder.path.parent.parent / 'mlflow.db'}")
    assert "notices.jsonl" in [one.path for one in client.list_artifacts(result.mlflow_run_id)]
    undamaged = train(replace(longer(request), name="undamaged"))
    assert result.weights_sha256 == undamaged.weights_sha256
