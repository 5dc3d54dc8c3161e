"""Trials of a sweep in a bucket: the driver's part and a trial's own process, without Ray."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray.tune

from raybio.core.errors import ClusterError, ConfigError
from raybio.core.location import BucketPath
from raybio.core.records import read_record, write_record
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.runtime.run.spec import RunSpec
from raybio.runtime.spool import mirror, relay, spool
from raybio.runtime.spool.relay import _Link, _Relay
from raybio.runtime.tracking.tracker import Tracker
from raybio.runtime.tune import run_trial as trials
from raybio.runtime.tune.callback import TrialCallback
from raybio.runtime.tune.driver import sweep
from raybio.runtime.tune.search import TRIAL
from raybio.runtime.tune.trial import SweepSpec, Trial, has_ended
from raybio.store.bucket import BucketFolder
from raybio.store.store import Store
from raybio.training.checkpoint_files import FILES, MANIFEST
from raybio.training.settings import TrainingConfig
from tests.runtime.tune.sweep_folder import LAMBDA, METRIC, space_of
from tests.s3 import S3

SPACE = {
    "budget": {"max_steps": 12, "grace_steps": 4},
    "scheduler": {"kind": "none"},
    "search": {"kind": "grid"},
    "space": {LAMBDA: {"choice": [0.1, 0.5]}},
}
TRIED = Trial({LAMBDA: 0.5})


class Killed(BaseException):
    """The trial's process ends here."""


class Actor:
    """The relay in this process, called as Ray's actor is."""

    def __init__(self, runs: Path, sweep: Path) -> None:
        self._relay = _Relay(str(runs), str(sweep))

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=partial(partial, getattr(self._relay, name)))


class Sweep:
    """A sweep of the tiny store."""

    def __init__(
        self, tmp_path: Path, store: Store, config: TrainingConfig, bucket: BucketPath | None
    ) -> None:
        self.folder = tmp_path
        self.bucket = bucket
        self.space = space_of(tmp_path, **SPACE)
        self.config = config
        self.store = store
        self.reported: list[tuple[int, float]] = []
        self.killed_at = -1

    def report(self, report: dict[str, Any], **_: Any) -> None:
        self.reported.append((report["step"], report[METRIC]))
        if report["step"] == self.killed_at:
            assert self.bucket is not None
            own = BucketFolder(self.bucket / "mine")
            while not any("/manifest.json" in info.name for info in own.list()):
                time.sleep(0.05)  # pytest's limit ends a hang
            raise Killed

    @contextmanager
    def held(self) -> Iterator[SweepSpec]:
        """The driver's part around a trial."""
        runs = self.folder / "sweeps" if self.bucket is None else spool.spool_of(self.bucket)
        run = RunSpec(
            method="sppt_protein",
            config=self.config,
            store=self.store.path,
            name="mine",
            runs=runs,
            bucket=self.bucket,
            precision="fp32",
        )
        spec = SweepSpec(space=self.space, run=run)
        folder = run.folder
        folder.make()
        if self.bucket is None:
            yield spec
            return
        with spool.held(folder, self.bucket) as held:
            actor = Actor(spec.path / "trials", spec.path)
            yield replace(spec, start="1", lease=held.key, relay=actor)

    def try_it(self) -> RunFolder:
        """Run the trial as Tune does, and return the driver's folder of it."""
        self.reported.clear()
        with self.held() as spec:
            folder = spec.run.folder
            tracker = Tracker(folder, "http://127.0.0.1:9", "sppt_protein", {}, "d" * 64)
            callback = TrialCallback(folder, spec, tracker)
            tuned = SimpleNamespace(trial_id="1", config={TRIAL: asdict(TRIED)})
            callback.on_trial_start(0, [], tuned)
            try:
                trials.run_trial(asdict(TRIED), spec)
                callback.on_trial_complete(0, [], tuned)
            except Killed:
                pass
            finally:
                callback.close(is_killed=True)
        return spec.folder(TRIED)


@pytest.fixture
def new_sweep(
    tmp_path: Path,
    tiny_store: Store,
    tiny_training: TrainingConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[BucketPath | None], Sweep]:
    monkeypatch.setattr(_Link, "_ask", lambda self, call: call())
    monkeypatch.setattr(mirror, "MIRROR_SECONDS", 0.05)
    monkeypatch.setattr(relay, "POLL_SECONDS", 0.02)
    monkeypatch.setattr("raybio.runtime.tracking.tracker.KILLED_SECONDS", 0.1)
    monkeypatch.setattr("raybio.runtime.run.preemption.notice_of_this_node", lambda: lambda: False)
    monkeypatch.setattr(ray.tune, "get_checkpoint", lambda: None)
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "disk"))

    def new(bucket: BucketPath | None) -> Sweep:
        made = Sweep(tmp_path, tiny_store, tiny_training, bucket)
        monkeypatch.setattr(ray.tune, "report", made.report)
        return made

    return new


@pytest.mark.nightly
def test_a_trial_goes_on_with_an_empty_disk_and_an_ended_one_is_not_trained_again(
    new_sweep: Callable[[BucketPath | None], Sweep],
    bucket: BucketPath,
    s3: S3,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    local = new_sweep(None)
    unbroken = read_record(local.try_it().outcome, "outcome") or {}
    values = list(local.reported)
    assert [step for step, _ in values] == [4, 8, 12]

    swept = new_sweep(bucket / "sweeps")
    swept.killed_at = 8
    swept.try_it()
    own = BucketFolder(bucket / "sweeps" / "mine")
    names = {info.name for info in own.list()}
    assert not any(name.endswith(("ended.json", "outcome.json")) for name in names)
    assert any("/checkpoints/step-" in name for name in names)
    assert any("/export/model.safetensors" in name for name in names)
    shutil.rmtree(tmp_path / "disk")
    swept.killed_at = -1
    # A checkpoint that cannot be fetched, for instance with an expired token, fails no trial.
    s3.fail("denied", method="GET", containing="optimizer.safetensors", times=99)
    with pytest.raises(ClusterError, match="no permission to read"):
        swept.try_it()
    s3.heal()
    assert not [info for info in own.list() if info.name.endswith(("failure.json", "ended.json"))]
    shutil.rmtree(tmp_path / "disk")
    folder = swept.try_it()
    # Tune hears of all steps again, and so decides as before.
    assert swept.reported == values
    outcome = read_record(folder.outcome, "outcome") or {}
    assert outcome["weights_sha256"] == unbroken["weights_sha256"]
    assert [report["step"] for report in read_reports(folder.metrics)] == list(range(13))
    assert has_ended(folder)

    shutil.rmtree(tmp_path / "disk")
    etags = {info.name: info.version.etag for info in own.list() if "ended" in info.name}
    monkeypatch.setattr(trials, "_train_here", lambda process: pytest.fail("trains again"))
    folder = swept.try_it()
    assert swept.reported == values
    assert has_ended(folder) and (folder.export / "model.safetensors").is_file()
    infos = own.list()
    assert etags.items() <= {info.name: info.version.etag for info in infos}.items()
    # An ended trial keeps its newest checkpoint alone.
    steps = {info.name.split("/")[3][:13] for info in infos if "/checkpoints/" in info.name}
    assert steps == {"step-00000012"}
    assert json.loads(own.read("lease.json")) == {"is_released": True}
    assert not [path for path in (tmp_path / "disk" / "workers").iterdir() if path.is_dir()]


def test_a_driver_that_lost_its_sweep_deletes_no_checkpoint_of_the_other_driver(
    new_sweep: Callable[[BucketPath | None], Sweep], bucket: BucketPath
) -> None:
    own = BucketFolder(bucket / "sweeps" / "mine")
    for is_lost in (True, False):
        with new_sweep(bucket / "sweeps").held() as spec:
            trial = spec.folder(TRIED)
            for step in (4, 8):
                for file in (MANIFEST, *FILES):
                    name = f"step-{step:08d}-123456789/{file}"
                    own.write(f"trials/{trial.name}/checkpoints/{name}", b"x")
            tracker = Tracker(spec.run.folder, "http://127.0.0.1:9", "sppt_protein", {}, "d" * 64)
            callback = TrialCallback(spec.run.folder, spec, tracker)
            tuned = SimpleNamespace(trial_id="1", config={TRIAL: asdict(TRIED)})
            callback.on_trial_start(0, [], tuned)
            write_record(trial.outcome, "outcome", {"status": "finished"})
            lease = own.read("lease.json")
            if is_lost:
                own.write("lease.json", json.dumps({"id": "another driver's"}).encode())
            callback.on_trial_complete(0, [], tuned)
            callback.close(is_killed=True)
            kept = {info.name.split("/")[3] for info in own.list() if "/checkpoints/" in info.name}
            assert len(kept) == (2 if is_lost else 1)
            # The driver's own again: otherwise it would end with an error.
            own.write("lease.json", lease)
            (trial.path / "ended.json").unlink()


def test_a_population_in_a_bucket_is_refused_before_anything_is_created(
    tmp_path: Path, bucket: BucketPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "disk"))
    space = space_of(tmp_path, scheduler={"kind": "pbt"}, search={"kind": "random"})
    sweeps = bucket / "sweeps"
    run = RunSpec(
        method="sppt_protein",
        config=TrainingConfig(),
        store=tmp_path,
        name="mine",
        runs=spool.spool_of(sweeps),
        bucket=sweeps,
    )
    with pytest.raises(ConfigError, match="scheduler.kind: pbt, with sweeps in a bucket"):
        sweep(SweepSpec(space=space, run=run))
    assert not (tmp_path / "disk").exists()
    assert not BucketFolder(sweeps).list()
