"""The encoder's commit of a run, when the branch of the hub moves while it trains."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from raybio.store.store import Store
from tests.encoders.hub import COMMIT, LATER, LATER_COMMIT, serve_hub
from tests.encoders.published import pickled_text
from tests.encoders.tiny_text import save_tiny
from tests.methods.published_encoders import PUBLISHED

PROGRAM = """
import contextlib, json, multiprocessing, sys
from pathlib import Path
from raybio.core.digest import weights_digest
from raybio.encoders.sources import find_source
from raybio.methods import METHODS
from raybio.runtime.run.encoder_source import pin_encoder
from raybio.runtime.run.open_run import OpenRun
from raybio.runtime.run.spec import RunSpec

method, settings, store, home = json.load(sys.stdin)
config = METHODS[method].config.from_mapping(settings)

def spec(name):
    runs = Path(home) / "runs"
    return RunSpec(method=method, config=config, store=Path(store), name=name, runs=runs)

def report(*results):
    print(json.dumps(results), flush=True)

def start(name):
    with contextlib.ExitStack() as held:
        report(OpenRun.open(spec(name), held).folder.encoder["commit"])

def work(name):
    pin_encoder(spec(name).folder)
    model = METHODS[method].build(config, store).model
    commit = find_source(config.encoder.source, config.encoder.revision).commit
    report(commit, weights_digest(model.state_dict().items()))

def move():
    (Path(home) / "moved").rename(Path(home) / "repository" / "later")

# Each process is forked from one that has imported everything and read nothing.
for function, arguments in (
    (start, ("run",)), (work, ("run",)), (move, ()),
    (work, ("run",)), (start, ("run",)), (start, ("new",)), (work, ("new",)),
):
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0
"""


@pytest.mark.nightly
def test_workers_and_later_starts_load_the_recorded_commit_after_the_branch_has_moved(
    tmp_path: Path, tiny_articles: Store
) -> None:
    save_tiny(tmp_path / "repository")
    pickled_text(tmp_path / "moved", "bert")
    assert LATER == "later"  # where the program moves it to
    config = PUBLISHED["bert"].config("tiny/moving")
    task = (PUBLISHED["bert"].method, config.to_mapping(), str(tiny_articles.path), str(tmp_path))
    inherited = {
        key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")
    }
    with serve_hub({"tiny/moving": tmp_path / "repository"}) as address:
        own = {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0"}
        own |= {"HF_HUB_DISABLE_XET": "1", "RAYBIO_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            input=json.dumps(task),
            env=inherited | own,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    opened, before, after, again, new, other = results
    assert opened == again == [COMMIT]
    assert before == after
    assert before[0] == COMMIT
    # A run that begins now has the branch as it is now.
    assert new == [LATER_COMMIT]
    assert other[0] == LATER_COMMIT
    assert other[1] != before[1]
