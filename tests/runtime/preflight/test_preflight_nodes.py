"""What a cluster's nodes say of themselves before the start, seen good and bad; slow: on two real
nodes.
"""

import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from raybio.encoders import bin_checkpoint
from raybio.encoders.sources import LocatedSource, WeightsFile
from raybio.runtime.cluster.connection import ensure_token
from raybio.runtime.preflight import nodes, this_machine
from raybio.runtime.preflight.finding import ERROR, OK, WARNING
from raybio.store.store import Store
from raybio.training.method import Method
from tests.methods.published_encoders import PUBLISHED
from tests.paths import ROOT
from tests.runtime.ray_nodes import free_port
from tests.script_process import Done, run_script


def states(findings: object) -> list[str]:
    return [one.state for one in findings]  # type: ignore[attr-defined]


def test_a_node_that_does_not_see_the_drivers_file_has_no_shared_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "SHARED_SECONDS", 0.3)
    with this_machine.probe_folder(tmp_path / "runs") as probe:
        assert nodes.seen_storage(probe, probe / "node") == ""
        assert (probe / "node").read_text() == "node"
        assert "cannot write" in nodes.seen_storage(probe, probe / "node")  # the name is taken
        (probe / "driver").unlink()
        assert "not shared" in nodes.seen_storage(probe, probe / "other")


def node(name: str, **more: object) -> nodes.NodeFacts:
    facts = nodes.NodeFacts(
        name, name, nodes.versions(), "", {"/x": (2**40, 0.5)}, 2**32, 2**30, "ab" * 32, "", ""
    )
    return replace(facts, **more)  # type: ignore[arg-type]


def test_another_version_is_an_error_and_another_build_a_warning() -> None:
    driver = nodes.versions()
    assert states(nodes.compare_versions(driver, [node("a"), node("b")])) == [OK]
    old = node("b", versions=driver | {"torch": "2.0.0", "raybio": "0.1.0 (code 00000000)"})
    [found] = nodes.compare_versions(driver, [node("a"), old])
    assert found.state == ERROR
    assert found.found.startswith("b: raybio 0.1.0 (code 00000000)")
    assert "torch 2.0.0" in found.found
    build = node("b", versions=driver | {"torch": driver["torch"].split("+")[0] + "+cu999"})
    assert states(nodes.compare_versions(driver, [node("a"), build])) == [OK, WARNING]


def test_versions_hold_raybios_own_code() -> None:
    found = nodes.versions()
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "code " in found["raybio"]
    assert "not installed" not in found.values()


def test_each_node_is_checked_by_its_answer(tmp_path: Path) -> None:
    bad = [
        node("a"),
        node("b", encoder="gone", token="open", store="/x: does not exist.", storage="not shared"),
    ]
    assert states(nodes.compare_rest(bad, True)) == [ERROR, ERROR]
    assert nodes.compare_stores("ab" * 32, bad).found == "b: /x: does not exist."
    assert "another store" in nodes.compare_stores("cd" * 32, bad[:1]).found
    with this_machine.probe_folder(tmp_path) as probe:
        seen, unseen = node("a", file=str(probe / "driver")), node("b", file=str(probe / "b"))
        assert nodes.compare_storage(probe, [seen]).state == OK
        found = nodes.compare_storage(probe, [seen, unseen], seconds=0.2)
    assert found.state == ERROR
    assert "driver does not see" in found.found
    assert nodes.compare_disks([node("a")], 5).state == OK
    assert nodes.compare_disks([node("a"), node("b", disks={"/x": (2**20, 0.1)})], 5).state == ERROR
    assert nodes.compare_object_stores([node("a")], 512).state == OK
    assert nodes.compare_object_stores([node("a", object_store_bytes=2**20)], 512).state == WARNING
    assert nodes.compare_object_stores([node("a", shared_memory_bytes=2**26)], 512).state == WARNING


def test_a_node_checks_encoders_as_their_method_does(
    tmp_path: Path, tiny_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TAPE's layout is converted by its own reader, whose weights only the method knows."""
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))
    PUBLISHED["tape"].write(tmp_path / "tape")
    config = PUBLISHED["tape"].config(str(tmp_path / "tape"))
    query = nodes.NodeQuery("probe", str(tiny_store.path), "sppt_protein", (config,))
    assert nodes._encoder_problem(query) == ""
    (converted,) = (tmp_path / "cache").rglob("model.safetensors")
    assert converted.parent.name.endswith("-tape")
    (tmp_path / "tape" / "pytorch_model.bin").unlink()
    assert "pytorch_model.bin" in nodes._encoder_problem(query)
    # A store that cannot be opened is a finding of its own.
    assert nodes._encoder_problem(replace(query, store=str(tmp_path / "none"))) == ""


def test_a_node_fetches_no_pickles_of_the_hub(
    tmp_path: Path, tiny_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))
    at = LocatedSource("tiny/protbert", "0" * 40, is_online=True)
    pickle = WeightsFile("pytorch_model.bin", is_pickle=True)
    monkeypatch.setattr(bin_checkpoint, "find_source", lambda *_: at)
    monkeypatch.setattr(bin_checkpoint, "find_weights", lambda *_: pickle)
    checked = []
    monkeypatch.setattr(Method, "check", lambda method, config, store: checked.append(config))
    config = PUBLISHED["protbert"].config("tiny/protbert")
    query = nodes.NodeQuery("probe", str(tiny_store.path), "sppt_protein", (config,))
    assert nodes._encoder_problem(query) == ""
    assert checked == []
    (tmp_path / "cache" / bin_checkpoint.cache_key("tiny/protbert", "main")).mkdir(parents=True)
    assert nodes._encoder_problem(query) == ""
    assert checked == [config]


def test_a_jobs_api_that_answers_strangers_is_an_error() -> None:
    assert states(nodes.look_at_dashboard("", True, ask=True)) == [OK]

    class Open(BaseHTTPRequestHandler):
        status = 200

        def do_GET(self) -> None:
            self.send_response(self.status)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    one = HTTPServer(("127.0.0.1", 0), Open)
    threading.Thread(target=one.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{one.server_port}"
    try:
        assert states(nodes.look_at_dashboard(address, True, ask=True)) == [ERROR]
        assert states(nodes.look_at_dashboard(address, True, ask=False)) == [OK]
        Open.status = 401
        assert states(nodes.look_at_dashboard(address, True, ask=True)) == [OK]
    finally:
        one.shutdown()
        one.server_close()


@pytest.fixture
def two_nodes() -> Iterator[tuple[str, str]]:
    """A cluster of two nodes with a token, on this machine: its address, and that of its jobs
    API.
    """
    from ray.cluster_utils import Cluster

    ensure_token()
    head = {"num_cpus": 1, "include_dashboard": True, "dashboard_port": free_port()}
    head |= {"dashboard_agent_listen_port": free_port()}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(num_cpus=1, dashboard_agent_listen_port=free_port())
        yield cluster.address, f"http://127.0.0.1:{head['dashboard_port']}"
    finally:
        cluster.shutdown()


def run_preflight(
    folder: Path, address: str, *arguments: str, **environment: str
) -> tuple[Done, dict[str, str]]:
    """The job itself; what it exits with, and each check's worst state."""
    output = folder / "found.json"
    given = [
        *arguments,
        "--runs",
        str(folder / "runs"),
        "--json",
        str(output),
        "--min-free-gib",
        "0",
    ]
    environment = {"RAY_ADDRESS": address, "RAY_AUTH_MODE": "token", **environment}
    done = run_script(ROOT / "jobs" / "preflight.py", folder, *given, **environment)
    found = json.loads(output.read_text()) if output.exists() else []
    worst: dict[str, str] = {}
    for one in sorted(found, key=lambda one: [OK, WARNING, ERROR].index(one["state"])):
        worst[one["check"]] = one["state"]
    return done, worst


@pytest.mark.nightly
def test_a_cluster_of_two_nodes_is_looked_at_node_by_node(
    two_nodes: tuple[str, str], tmp_path: Path, tiny_store: Store
) -> None:
    address, jobs = two_nodes
    given = ["--method", "sppt_protein", "--store", str(tiny_store.path), "--device", "cpu"]
    # 2 CPU are there, but 1.5 on no node alone.
    done, worst = run_preflight(tmp_path, address, *given, "--cpus-per-worker", "1.5")
    found = (tmp_path / "found.json").read_text()
    assert {check for check, state in worst.items() if state == ERROR} == {"resources"}, (
        done.stdout + done.stderr
    )
    assert done.returncode == 1
    assert "a task runs and answers, on 2 nodes" in found
    assert "is written and read by all, on 2 nodes" in found
    assert "refuses who has no token" in found
    assert {"store", "versions", "token"} <= {
        check for check, state in worst.items() if state == OK
    }
    assert worst["MLflow"] == WARNING
    assert not (tmp_path / "runs").exists()

    done, worst = run_preflight(tmp_path, jobs)
    assert (done.returncode, worst["cluster"], worst["nodes"]) == (0, OK, WARNING)
    done, worst = run_preflight(tmp_path, jobs, RAY_AUTH_TOKEN="b" * 64)
    assert (done.returncode, worst["cluster"]) == (1, ERROR)
    done, worst = run_preflight(tmp_path, address, "--seconds", "8", RAY_AUTH_TOKEN="b" * 64)
    assert done.returncode == 1, done.stdout + done.stderr
    assert worst["cluster"] == ERROR
    assert "has another token" in (tmp_path / "found.json").read_text()
    assert "b" * 64 not in done.stdout + done.stderr


@pytest.mark.nightly
def test_without_a_cluster_it_starts_one_and_ends_it(tmp_path: Path) -> None:
    done, worst = run_preflight(tmp_path, "", "--device", "cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert worst["cluster"] == worst["nodes"] == worst["versions"] == OK
