"""cluster.yaml fits the schema of the Ray that is installed, and keeps the promises of the README."""

import json
import stat
from importlib.util import find_spec
from pathlib import Path

import jsonschema
import pytest

from raybio.config import parse_yaml

ROOT = Path(__file__).parents[1]


@pytest.fixture
def cluster() -> dict:
    return parse_yaml((ROOT / "cluster.yaml").read_text())


@pytest.fixture
def schema() -> dict:
    # Found without importing ray, which takes seconds.
    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    return json.loads((Path(spec.origin).parent / "autoscaler" / "ray-schema.json").read_text())


def test_the_cluster_file_fits_rays_schema(cluster, schema):
    jsonschema.validate(cluster, schema)


def test_the_schema_would_find_a_misspelt_key(cluster, schema):
    with pytest.raises(jsonschema.ValidationError, match="max_wrokers"):
        jsonschema.validate(cluster | {"max_wrokers": 1}, schema)


def test_the_head_is_one_of_the_node_types(cluster):
    assert cluster["head_node_type"] in cluster["available_node_types"]


def test_the_dashboard_listens_on_loopback_and_every_node_wants_a_token(cluster):
    starts = cluster["head_start_ray_commands"] + cluster["worker_start_ray_commands"]
    starts = [command for command in starts if "ray start" in command]
    assert len(starts) == 2
    assert all("RAY_AUTH_MODE=token" in command for command in starts)
    assert "--dashboard-host=127.0.0.1" in starts[0]
    assert "0.0.0.0" not in (ROOT / "cluster.yaml").read_text()
    assert any("chmod 600 ~/.ray/auth_token" in command for command in cluster["setup_commands"])


def test_the_files_that_nodes_get_exist_here(cluster):
    own = [local for local in cluster["file_mounts"].values() if local.startswith("./")]
    assert own
    assert [local for local in own if not (ROOT / local).exists()] == []


def test_the_upload_of_a_job_leaves_git_runs_and_environments_behind():
    ignored = (ROOT / ".rayignore").read_text().splitlines()
    assert {".git/", ".venv/", "/runs/", "/stores/", "/mlflow.db*"} <= set(ignored)


def test_the_ci_entry_can_be_executed():
    assert (ROOT / ".ci" / "run").stat().st_mode & stat.S_IXUSR
