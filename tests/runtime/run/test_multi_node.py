"""Several nodes: one is taken away with notice, one without, during a run and a sweep."""

import http.server
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from raybio.core.config import override_all
from raybio.core.records import read_record
from raybio.methods.biostransformers.prepare import prepare_medline
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.metrics_log import read_reports
from raybio.runtime.run.result import Result
from raybio.store.store import Store, open_store
from raybio.training.checkpoint import list_checkpoints, step_of_checkpoint
from raybio.training.settings import TrainingConfig
from tests.methods.biostransformers.formats.medline_files import citation, write_medline
from tests.paths import ROOT
from tests.runtime.ray_nodes import Nodes
from tests.runtime.spool.bucket_job import first_steps
from tests.runtime.tune.test_sweep import LAMBDA, METRIC

pytestmark = pytest.mark.slow

LAMBDAS = [0.1, 0.9]
ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    # The file that spot_worker.sh polls, and how long a node stays after its notice.
    "POLL_SECONDS": "0.5",
    "NOTICE_SECONDS": "6",
    # Ray's own: 5 s until workers hear of it, and 15 s until a node is held for dead.
    "RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S": "0.5",
    "RAY_health_check_period_ms": "1000",
}


@pytest.fixture(scope="module")
def nodes(private_home: Path) -> Iterator[Nodes]:
    """A head that only holds the drivers."""
    nodes = Nodes(head_cpus=0, environment=ENVIRONMENT)
    yield nodes
    nodes.end()


@pytest.fixture(autouse=True)
def no_nodes_are_left(nodes: Nodes) -> Iterator[None]:
    """End the nodes that a failed test has left: the next one counts nodes."""
    yield
    for node in nodes.nodes[1:]:
        if node.poll() is None:
            nodes.kill(node)


class Metadata(http.server.BaseHTTPRequestHandler):
    """Answer of AWS to a machine about itself: whether it will be taken back."""

    is_taken_back = False

    def do_PUT(self) -> None:
        self._answer(200, b"a token")

    def do_GET(self) -> None:
        asks_for_notice = self.path == "/latest/meta-data/spot/instance-action"
        has_token = self.headers["X-aws-ec2-metadata-token"] == "a token"
        is_there = type(self).is_taken_back and asks_for_notice and has_token
        self._answer(200 if is_there else 404, b'{"action": "terminate"}')

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def metadata() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class Driver:
    """``slow_driver.py``, joined to the nodes."""

    def __init__(
        self, kind: str, store: Store, folder: Path, nodes: Nodes, config: TrainingConfig
    ) -> None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config.to_mapping()))
        self.log = folder / "log"
        command = [
            sys.executable,
            "-W",
            "ignore",
            str(Path(__file__).with_name("slow_driver.py")),
            kind,
        ]
        command += [str(store.path), str(folder)]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env=nodes.environment | {"RAY_ADDRESS": nodes.address},
                start_new_session=True,
            )

    def wait(self, is_so: Callable[[], Any], seconds: float = 1500) -> None:
        deadline = time.monotonic() + seconds
        while not is_so():
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(0.1)

    def finish(self) -> None:
        assert self.process.wait(timeout=1500) == 0, self.log.read_text()[-3000:]


@pytest.fixture
def drive(
    nodes: Nodes, tiny_store: Store, tmp_path: Path, empty_database: Path
) -> Iterator[Callable[..., Driver]]:
    shutil.copy(empty_database, tmp_path)
    started: list[Driver] = []

    def start(kind: str, config: TrainingConfig) -> Driver:
        started.append(Driver(kind, tiny_store, tmp_path, nodes, config))
        return started[-1]

    yield start
    for driver in started:
        driver.process.kill()
        driver.process.wait()


def last_step(folder: RunFolder) -> int:
    reports = read_reports(folder.metrics)
    return reports[-1]["step"] if reports else -1


@pytest.mark.nightly
def test_a_run_survives_lost_nodes_and_ends_with_the_weights_of_the_unbroken_run(
    unbroken: Result,
    nodes: Nodes,
    drive: Callable[..., Driver],
    tiny_training: TrainingConfig,
    metadata: str,
    tmp_path: Path,
) -> None:
    folder, spot_worker = (
        RunFolder(tmp_path / "runs", "mine"),
        str(ROOT / "deploy" / "spot_worker.sh"),
    )
    first = nodes.add(1, ("bash", spot_worker), METADATA_URL=metadata)
    second = nodes.add(cpus=1)
    # No checkpoint is due before the end: what there is was taken because of the notice.
    driver = drive("run", override_all(tiny_training, {"schedule.checkpoint_every_steps": 1000}))
    driver.wait(lambda: last_step(folder) >= 3)
    assert list_checkpoints(folder.checkpoints) == []
    Metadata.is_taken_back = True
    driver.wait(lambda: list_checkpoints(folder.checkpoints))
    assert first.poll() is None  # it is there until its notice is over
    assert step_of_checkpoint(list_checkpoints(folder.checkpoints)[0]) >= 3
    first.wait(timeout=1500)
    # The run goes on until then: the best weights of step 12 may be a later one.
    in_time = max(map(step_of_checkpoint, list_checkpoints(folder.checkpoints)))
    assert in_time < 24
    hold = tmp_path / "hold"
    hold.write_text(str(in_time + 3))  # a busy machine may see a node late
    third = nodes.add(cpus=1)
    # The workers are started again on the nodes that are left, and go on from that checkpoint.
    driver.wait(lambda: first_steps(folder.notices.read_bytes())[-1] == in_time)
    driver.wait(lambda: last_step(folder) == in_time + 3)
    nodes.kill(second)
    hold.unlink()
    fourth = nodes.add(cpus=1)
    driver.finish()
    result = read_record(folder.result, "result")
    assert result["weights_sha256"] == unbroken.weights_sha256
    assert [report["step"] for report in read_reports(folder.metrics)] == list(range(25))
    for node in (third, fourth):
        nodes.kill(node)


@pytest.mark.nightly
def test_a_node_lost_in_the_middle_of_a_sweep_keeps_no_trial_from_its_end(
    nodes: Nodes, drive: Callable[..., Driver], tiny_training: TrainingConfig, tmp_path: Path
) -> None:
    space = {
        "method": "sppt_protein",
        "metric": METRIC,
        "mode": "max",
        "budget": {"max_steps": 12, "grace_steps": 4, "max_concurrent_trials": 2},
        "scheduler": {"kind": "none"},
        "search": {"kind": "grid"},
        "space": {LAMBDA: {"choice": LAMBDAS}},
    }
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(space))
    trials = tmp_path / "sweeps" / "mine" / "trials"
    first, second = nodes.add(cpus=1), nodes.add(cpus=1)
    driver = drive("sweep", tiny_training)

    def steps() -> list[int]:
        return [last_step(RunFolder(trials, path.name)) for path in trials.glob("*")]

    driver.wait(lambda: len(steps()) == 2 and min(steps()) >= 2)
    nodes.kill(first)
    third = nodes.add(cpus=1)
    driver.finish()
    result = read_record(tmp_path / "sweeps" / "mine" / "result.json", "result")
    found = {one["settings"][LAMBDA]: one["status"] for one in result["trials"]}
    assert found == dict.fromkeys(LAMBDAS, "finished")
    for one in result["trials"]:
        assert [
            report["step"] for report in read_reports(trials / one["name"] / "metrics.jsonl")
        ] == list(range(13))
    for node in (second, third):
        nodes.kill(node)


@pytest.mark.nightly
def test_the_nodes_that_can_run_workers_are_requested_the_precision_and_not_the_driver_or_the_head(
    nodes: Nodes,
) -> None:
    code = (
        "from raybio.runtime.run.precision import worker_processors\n"
        "from raybio.runtime.cluster.resources import check_resources\n"
        "found = worker_processors(lambda nodes: check_resources(1, 0.5, nodes)); "
        "print([one.name for one in found])"
    )
    worker = nodes.add(cpus=1)
    address = f"127.0.0.{len(nodes.nodes)}"
    # The cluster may still list a node that has just died, which answers nothing.
    nodes.kill(nodes.add(cpus=1))
    requests = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        env=nodes.environment | {"RAY_ADDRESS": nodes.address},
    )
    assert requests.returncode == 0, requests.stderr[-3000:]
    # Ray may say before it that it has noticed the loss.
    assert requests.stdout.splitlines()[-1] == f"['the CPU of {address}']"
    nodes.kill(worker)


PARSE = """
import sys, time
import ray
from raybio.cli.prepare import app
from raybio.runtime.map_rows import map_rows

def node_of(row):
    time.sleep(1)
    return {"node": ray.get_runtime_context().get_node_id()}

print(len({row["node"] for row in map_rows(2, [{"row": n} for n in range(8)], node_of)}))
app(sys.argv[1:])
"""


@pytest.mark.nightly
def test_files_are_parsed_by_several_nodes_into_the_store_of_one_process(
    nodes: Nodes, tmp_path: Path
) -> None:
    heading = "<MeshHeading><DescriptorName>Rats</DescriptorName></MeshHeading>"
    files = [
        write_medline(
            tmp_path / f"{number}.xml", *(citation(number + n, mesh=heading) for n in range(9))
        )
        for number in range(6)
    ]
    expected = prepare_medline(tmp_path / "expected", files)
    workers = [nodes.add(cpus=1), nodes.add(cpus=1)]
    command = ["medline", "--input", str(tmp_path / "*.xml"), "--out", str(tmp_path / "store")]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PARSE, *command, "--workers", "2"],
        capture_output=True,
        text=True,
        env=nodes.environment | {"RAY_ADDRESS": nodes.address},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2" in done.stdout.splitlines()
    assert open_store(tmp_path / "store").digest == expected.digest
    for worker in workers:
        nodes.kill(worker)
