"""Each look before the start, seen good and bad, with real causes."""

import json
import logging
import os
import re
import socket
import sqlite3
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from raybio.cli.preflight import app
from raybio.core.errors import ClusterError, ConfigError, StoreError
from raybio.core.verification import Verification, file_state
from raybio.runtime.cluster.connection import local_cpus
from raybio.runtime.preflight import this_machine
from raybio.runtime.preflight.finding import (
    ERROR,
    OK,
    WARNING,
    Finding,
    over_nodes,
    run_guarded,
    show,
)
from raybio.runtime.preflight.preflight import Intent, preflight
from raybio.runtime.run.options import RunOptions
from raybio.runtime.run.spec import Compute
from raybio.store.store import Store, open_store
from tests.cli.test_refusals import damaged_store, request_one
from tests.paths import ROOT
from tests.runtime.ray_nodes import free_port

__all__ = ["request_one"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (
        "RAY_ADDRESS",
        "RAY_AUTH_MODE",
        "RAY_AUTH_TOKEN",
        "RAY_AUTH_TOKEN_PATH",
        "RAY_DASHBOARD_HOST",
    ):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def states(findings: object) -> list[str]:
    return [one.state for one in findings]  # type: ignore[attr-defined]


def write_token(home: Path, mode: int, content: str = "a" * 64) -> None:
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text(content)
    (home / ".ray" / "auth_token").chmod(mode)


def test_a_token_of_the_owner_alone_is_fine_and_one_that_others_read_is_not(home: Path) -> None:
    write_token(home, 0o600)
    assert states(this_machine.look_at_token()) == [OK]
    (home / ".ray" / "auth_token").chmod(0o644)
    [found] = this_machine.look_at_token()
    assert found.state == ERROR
    assert "mode 0644" in found.found
    assert "a" * 64 not in found.found
    assert (home / ".ray" / "auth_token").stat().st_mode & 0o777 == 0o644  # looking changes nothing


def test_an_empty_token_is_an_error(home: Path) -> None:
    write_token(home, 0o600, "\n")
    assert states(this_machine.look_at_token()) == [ERROR]


def test_a_missing_token_is_made_at_home_and_missed_on_a_cluster(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert states(this_machine.look_at_token()) == [OK]
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert states(this_machine.look_at_token()) == [WARNING, ERROR]
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert states(this_machine.look_at_token()) == [ERROR]
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert states(this_machine.look_at_token()) == [WARNING]


def test_a_dashboard_for_everybody_is_a_warning_with_a_token_and_an_error_without(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert states(this_machine.look_at_addresses()) == [OK]
    monkeypatch.setenv("RAY_DASHBOARD_HOST", "0.0.0.0")
    assert states(this_machine.look_at_addresses()) == [WARNING]
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert states(this_machine.look_at_addresses()) == [ERROR]
    monkeypatch.setenv("RAY_DASHBOARD_HOST", "127.0.0.1")
    monkeypatch.setenv("RAY_ADDRESS", "http://10.0.0.1:8265")
    assert states(this_machine.look_at_addresses()) == [OK, WARNING]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A working directory with things that Ray leaves out, each for a reason of its own."""
    folder = tmp_path / "code"
    for name in (
        "a.py",
        "runs/x.bin",
        ".git/pack",
        "sub/keep.txt",
        "sub/secret.txt",
        "data/big.bin",
        ".venv/lib.so",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x" * 1000)
    (folder / ".gitignore").write_text("/runs/\n")
    (folder / ".rayignore").write_text("*.bin\n")
    (folder / "sub" / ".rayignore").write_text("secret.txt\n")
    return folder


def test_what_is_counted_is_what_ray_packs(code: Path, tmp_path: Path) -> None:
    from ray._private.ray_constants import get_runtime_env_default_excludes
    from ray._private.runtime_env.packaging import create_package

    target, silent = tmp_path / "package.zip", logging.Logger("silent", logging.CRITICAL)
    create_package(
        str(code), target, True, excludes=get_runtime_env_default_excludes(), logger=silent
    )
    sizes, is_whole = this_machine.uploaded(code)
    assert is_whole
    with zipfile.ZipFile(target) as package:
        assert {str(path): size for path, size in sizes.items()} == {
            one.filename: one.file_size for one in package.infolist()
        }
    assert "a.py" in map(str, sizes)
    assert "sub/secret.txt" not in map(str, sizes)


def test_a_big_file_in_the_working_directory_is_named(
    code: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    assert states(this_machine.look_at_upload(code)) == [OK]
    with open(code / "weights.pt", "wb") as file:
        file.truncate(85 * this_machine.MIB)  # a hole: it takes no disk
    assert states(this_machine.look_at_upload(code)) == [WARNING]
    with open(code / "weights.pt", "wb") as file:
        file.truncate(101 * this_machine.MIB)
    assert states(this_machine.look_at_upload(code)) == [
        WARNING
    ]  # nothing is sent without a cluster
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:8265")
    [found] = this_machine.look_at_upload(code)
    assert found.state == ERROR
    assert "101.0 of at most 100 MiB" in found.found
    assert "weights.pt with 101.0" in found.found
    with open(code / ".rayignore", "a") as file:
        file.write("*.pt\n")
    assert states(this_machine.look_at_upload(code)) == [OK]


def test_a_folder_of_runs_is_tried_out_and_left_as_it_was(tmp_path: Path) -> None:
    with this_machine.probe_folder(tmp_path / "new" / "runs") as probe:
        assert (probe / "driver").read_text() == "driver"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ClusterError, match="Choose another with --runs"),
        this_machine.probe_folder(tmp_path / "file" / "runs"),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_too_little_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert states(this_machine.look_at_disk(tmp_path / "not" / "yet", 0.0)) == [OK, OK]
    assert states(this_machine.look_at_disk(tmp_path, 1e9)) == [ERROR, ERROR]
    assert not this_machine.disk_problem(2**40, 0.96, 1.0, "runs")  # the tests' Ray has no limit
    monkeypatch.setenv(this_machine.RAY_STOPS_AT, "0.97")
    assert not this_machine.disk_problem(2**40, 0.96, 1.0, "runs")
    monkeypatch.delenv(this_machine.RAY_STOPS_AT)
    assert "96% full; Ray refuses to use it beyond 95%" in this_machine.disk_problem(
        2**40, 0.96, 1.0, "runs"
    )
    assert not this_machine.disk_problem(2**40, 0.94, 1.0, "runs")


def test_the_disk_is_that_of_the_folder_that_ray_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", "/tmp/not-yet")
    _, of_ray = this_machine.look_at_disk(tmp_path / "runs", 0.0)
    assert of_ray.found.endswith(f" at /tmp/not-yet/raybio-{os.getuid()}")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "ray"))
    _, of_ray = this_machine.look_at_disk(tmp_path / "runs", 0.0)
    assert of_ray.found.endswith(f" at {tmp_path / 'ray'}")


def test_too_little_shared_memory_is_a_warning(tmp_path: Path) -> None:
    assert states(this_machine.look_at_shared_memory(0.0, tmp_path)) == [OK]
    assert states(this_machine.look_at_shared_memory(1e12, tmp_path)) == [WARNING]


def test_a_database_is_fine_unless_another_writes_or_it_is_none(
    empty_database: Path, tmp_path: Path
) -> None:
    assert states(this_machine.look_at_tracking(f"sqlite:///{tmp_path / 'new.db'}", False)) == [OK]
    assert not (tmp_path / "new.db").exists()
    uri = f"sqlite:///{empty_database}"
    assert states(this_machine.look_at_tracking(uri, False)) == [OK]
    assert states(this_machine.look_at_tracking(uri, True)) == [WARNING, OK]
    other = sqlite3.connect(empty_database, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        assert "locked" in next(this_machine.look_at_tracking(uri, False)).found
    finally:
        other.close()
    (tmp_path / "torn.db").write_bytes(b"no database" * 1000)
    assert (
        next(this_machine.look_at_tracking(f"sqlite:///{tmp_path / 'torn.db'}", False)).state
        == ERROR
    )


@contextmanager
def server(answers: bool) -> Iterator[int]:
    """What stands where an MLflow server is expected: one that is broken, or one that never
    answers.
    """

    released = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if answers:
                self.send_error(500)
            else:
                released.wait()

        do_GET = do_POST

        def log_message(self, *arguments: object) -> None:
            pass

    one = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=one.serve_forever, daemon=True).start()
    try:
        yield one.server_port
    finally:
        released.set()
        threading.Thread(target=one.shutdown, daemon=True).start()


def test_a_server_that_is_not_there_fails_or_hangs_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, and not listening
        [found] = this_machine.look_at_tracking(
            f"http://user:secret@127.0.0.1:{nobody.getsockname()[1]}", False
        )
    assert found.state == ERROR
    assert "nobody answers" in found.found
    assert "secret" not in found.found
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with server(answers=True) as port:
        [found] = this_machine.look_at_tracking(f"http://user:secret@127.0.0.1:{port}", False)
    assert (found.check, found.state) == ("MLflow", ERROR)
    assert "500" in found.found
    assert "secret" not in found.found
    with server(answers=False) as port:
        [found] = run_guarded(
            "MLflow", lambda: this_machine.look_at_tracking(f"http://127.0.0.1:{port}", False), 1
        )
    assert "not done within 1 s" in found.found


def test_a_look_that_raises_keeps_what_it_found_before() -> None:
    def look() -> Iterator[Finding]:
        yield Finding("x", OK, "first")
        raise RuntimeError("second\nthird")

    assert run_guarded("x", look, 5) == [
        Finding("x", OK, "first"),
        Finding("x", ERROR, "RuntimeError: second"),
    ]


def intent(tmp_path: Path, store: Store | Path, *settings: str, **more: object) -> Intent:
    path = store if isinstance(store, Path) else store.path
    options = RunOptions(
        store=path,
        settings=settings,
        runs=tmp_path / "runs",
        compute=Compute(**{"device": "cpu"} | more),
    )
    return Intent(options=options, method="sppt_protein", min_free_gib=0.0, with_ray=False)


def with_compute(intent: Intent, **changes: object) -> Intent:
    compute = replace(intent.options.compute, **changes)
    return replace(intent, options=replace(intent.options, compute=compute))


def by_check(findings: list[Finding]) -> dict[str, Finding]:
    return {one.check: one for one in findings}


def test_a_run_that_could_start_has_no_errors(
    home: Path, tmp_path: Path, tiny_store: Store
) -> None:
    found = preflight(intent(tmp_path, tiny_store))
    assert ERROR not in states(found)
    checks = {
        "token",
        "addresses",
        "upload",
        "settings",
        "store",
        "encoder",
        "storage",
        "disk",
        "MLflow",
        "resources",
    }
    assert checks <= by_check(found).keys()


def test_an_encoder_may_take_longer_to_fetch_than_other_checks(
    home: Path, tmp_path: Path, tiny_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(plan: object) -> Iterator[Finding]:
        time.sleep(0.7)
        yield Finding("encoder", OK, "fetched")

    monkeypatch.setattr("raybio.runtime.preflight.preflight._look_at_encoders", fetch)
    found = preflight(replace(intent(tmp_path, tiny_store), seconds=0.5))
    assert by_check(found)["encoder"].state == OK


def test_all_faults_are_reported_at_once(home: Path, tmp_path: Path, request_one: object) -> None:
    write_token(home, 0o644)
    store, name = damaged_store(request_one, tmp_path)  # type: ignore[arg-type]
    # A start would not read a file that counts as verified; preflight does.
    verification = Verification(store.resolve(), open_store(store).digest)
    verification.add(name, file_state(store / name, StoreError))
    (tmp_path / "empty").mkdir()
    wrong = intent(
        tmp_path,
        store,
        f"encoder.source={tmp_path / 'empty'}",
        workers=99,
    )
    wrong = replace(wrong, options=replace(wrong.options, tracking="file:///x"))
    found = by_check(preflight(replace(wrong, min_free_gib=1e9)))
    bad = {check for check, one in found.items() if one.state == ERROR}
    assert bad == {"token", "store", "encoder", "disk", "MLflow", "resources"}
    assert name in found["store"].found
    assert "it has no weights" in found["encoder"].found
    assert "fewer workers than 99" in found["resources"].found


def test_a_cluster_that_cannot_be_had_does_not_end_the_other_looks(
    home: Path, tmp_path: Path, tiny_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process of the tests may be connected to their cluster.
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    requests = replace(intent(tmp_path, tiny_store), with_ray=True, seconds=20)
    with monkeypatch.context() as patch:
        patch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port()}")
        found = by_check(preflight(requests))
    assert found["cluster"].state == ERROR
    assert "Check RAY_ADDRESS" in found["cluster"].found
    assert found["store"].state == OK
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / ("x" * 80)))
    found = by_check(preflight(requests))
    assert "Choose a shorter one" in found["cluster"].found
    assert found["store"].state == OK


def test_all_trials_of_a_space_are_looked_at(home: Path, tmp_path: Path, tiny_store: Store) -> None:
    space = tmp_path / "space.yaml"
    text = (ROOT / "search_spaces" / "sppt_protein.yaml").read_text()
    space.write_text(text)
    sweep = replace(intent(tmp_path, tiny_store, device="auto"), method=None, space=space)
    found = by_check(preflight(sweep))
    assert found["settings"].state == found["encoder"].state == OK
    assert "trials are valid" in found["settings"].found
    base = tmp_path / "base.yaml"
    base.write_text("optim: {peak_lr: 0.5}")
    outside = replace(sweep, options=replace(sweep.options, config=base))
    warnings = [
        one for one in preflight(outside) if one.check == "settings" and one.state == WARNING
    ]
    assert [one.found.split(",")[0] for one in warnings] == [
        "optim.peak_lr: the base value 0.5 lies outside choice [0.0003"
    ]
    # Some draws do not fit each other: the sweep draws again, and that is no error.
    misfits = yaml.safe_load(text) | {"search": {"kind": "random"}}
    misfits["budget"]["num_trials"] = 3
    misfits["space"] = {
        "objective.loss": {"choice": ["margin_contrastive", "multi_similarity"]},
        "plan.num_negatives_per_anchor": {"choice": [0, 1]},
    }
    space.write_text(yaml.safe_dump(misfits))
    assert by_check(preflight(sweep))["settings"].state == OK, by_check(preflight(sweep))[
        "settings"
    ]
    space.write_text(text.replace("lambda_spml", "lamda_spml"))
    found = by_check(preflight(sweep))
    assert "lambda_spml" in found["settings"].found
    assert found["settings"].state == ERROR


def test_a_sweep_fits_where_one_trial_does_and_is_checked_with_its_own_options(
    home: Path, tmp_path: Path, tiny_store: Store
) -> None:
    space = ROOT / "search_spaces" / "sppt_protein.yaml"
    all_cpus = intent(tmp_path, tiny_store, device="auto", cpus_per_worker=float(local_cpus()))
    assert (
        by_check(preflight(all_cpus))["resources"].state == ERROR
    )  # a run's stream needs CPUs beside its workers
    sweep = with_compute(replace(all_cpus, method=None, space=space), gpus_per_worker=0.0)
    found = by_check(preflight(sweep))["resources"]
    assert (found.state, found.found.split(":")[0]) == (OK, "1 trial at a time")
    parts = with_compute(sweep, cpus_per_worker=0.1)
    assert (
        "3 trials at a time"
        in by_check(preflight(replace(parts, budget=("max_concurrent_trials=3",))))[
            "resources"
        ].found
    )
    for bad, check, message in (
        (
            with_compute(sweep, workers=2),
            "resources",
            "no trial could ever start",
        ),
        (with_compute(sweep, gpus_per_worker=99.0), "resources", "99 GPU"),
        (replace(sweep, budget=("num_trails=3",)), "settings", "num_trials"),
    ):
        found = by_check(preflight(bad))[check]
        assert (found.state, message in found.found) == (ERROR, True), found
    with pytest.raises(
        ConfigError, match="--device cpu: a sweep has no such option; want --gpus-per-worker"
    ):
        preflight(with_compute(sweep, device="cpu"))
    with pytest.raises(ConfigError, match="only sweeps have them; want --space"):
        preflight(replace(sweep, method="sppt_protein", space=None))


def test_a_sweep_on_cpus_needs_no_driver(
    home: Path, tmp_path: Path, tiny_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Finding("driver", ERROR, "570.133.20 is too old")
    monkeypatch.setattr("raybio.runtime.preflight.preflight.look_at_driver", lambda: iter([old]))
    space = ROOT / "search_spaces" / "sppt_protein.yaml"
    sweep = replace(intent(tmp_path, tiny_store, device="auto"), method=None, space=space)
    assert by_check(preflight(sweep))["driver"] == old
    assert "driver" not in by_check(preflight(with_compute(sweep, gpus_per_worker=0.0)))
    assert "driver" not in by_check(preflight(intent(tmp_path, tiny_store)))


def test_a_setting_that_the_space_decides_is_an_error_as_for_the_sweep(
    home: Path, tmp_path: Path, tiny_store: Store
) -> None:
    space = ROOT / "search_spaces" / "sppt_protein.yaml"
    plan = intent(tmp_path, tiny_store, "schedule.max_steps=50", device="auto")
    found = by_check(preflight(replace(plan, method=None, space=space)))["settings"]
    assert found.state == ERROR
    assert "want --budget max_steps=" in found.found


def test_findings_are_written_to_a_file_or_a_device(home: Path, tmp_path: Path) -> None:
    def run(path: Path) -> Result:
        return CliRunner().invoke(app, ["--no-ray", "--json", str(path)])

    refused = run(tmp_path)
    assert isinstance(refused.exception, ConfigError)
    assert re.search(r"--json .*: is a folder; want a file", str(refused.exception))
    assert refused.output == ""
    run(tmp_path / "new" / "findings.json")
    checks = [
        each["check"] for each in json.loads((tmp_path / "new" / "findings.json").read_text())
    ]
    assert "storage" in checks
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_text)
        run(pipe)
        assert [each["check"] for each in json.loads(read.result(60))] == checks
    assert pipe.is_fifo()


def test_a_misspelt_setting_does_not_end_the_other_looks(
    home: Path, tmp_path: Path, tiny_store: Store
) -> None:
    found = by_check(preflight(intent(tmp_path, tiny_store, "optim.peak_rl=1")))
    assert found["settings"].state == ERROR
    assert "peak_lr" in found["settings"].found
    assert found["store"].state == found["disk"].state == OK
    with pytest.raises(ConfigError, match="want --method or --space"):
        preflight(replace(intent(tmp_path, tiny_store, "seed=1"), method=None))


def test_a_recipe_is_resolved_as_for_the_training(
    home: Path, tmp_path: Path, tiny_store: Store
) -> None:
    plain = intent(tmp_path, tiny_store)

    def with_recipe(recipe: str) -> Finding:
        options = replace(plain.options, recipe=recipe)
        return by_check(preflight(replace(plain, options=options)))["settings"]

    assert with_recipe("small").state == OK
    unknown = with_recipe("tiny")
    assert unknown.state == ERROR
    assert "there is no such recipe" in unknown.found
    with pytest.raises(ConfigError, match="--recipe and --init: got no method"):
        preflight(replace(plain, method=None, options=replace(plain.options, recipe="small")))


def test_only_a_few_nodes_are_named() -> None:
    found = over_nodes("x", {f"n{number}": "bad" for number in range(9)}, 9, "fine")
    assert found.found.endswith("n3: bad; and 5 more nodes")


def test_the_table_is_readable_without_color(capsys: pytest.CaptureFixture[str]) -> None:
    show(
        [
            Finding("token", OK, "fine"),
            Finding("disk", WARNING, "[full]"),
            Finding("store", ERROR, "x" * 300),
        ]
    )
    printed = capsys.readouterr().out
    assert "1 ok, 1 warning, 1 ERROR" in printed
    assert "[full]" in printed
    assert printed.count("x") == 300  # a long path is folded, not cut
    assert "\x1b" not in printed
