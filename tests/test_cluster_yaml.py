"""cluster.yaml and what deploy/ holds fit what Ray and KubeRay take, and keep the promises of the README."""

import json
import re
import runpy
import stat
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from raybio.core.config import parse_yaml
from tests.paths import ROOT

CLUSTER_FILES = ["cluster.yaml", "deploy/gcp.yaml", "deploy/own_machines.yaml"]
PLACES = {
    "RAYBIO_RUNS": "/shared/runs",
    "RAYBIO_STORES": "/shared/stores",
    "RAYBIO_SWEEPS": "/shared/sweeps",
}


def read(name: str) -> dict[str, Any]:
    return parse_yaml((ROOT / name).read_text())


@pytest.fixture
def cluster() -> dict:
    return read("cluster.yaml")


@pytest.fixture
def schema() -> dict:
    # Found without importing ray, which takes seconds.
    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    return json.loads((Path(spec.origin).parent / "autoscaler" / "ray-schema.json").read_text())


@pytest.mark.parametrize("name", CLUSTER_FILES)
def test_the_cluster_file_fits_rays_schema(name, schema):
    jsonschema.validate(read(name), schema)


def test_ray_takes_the_machines_that_are_there_already():
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(read("deploy/own_machines.yaml"))
    validate_config(config)
    assert config["max_workers"] == len(config["provider"]["worker_ips"])


def test_the_schema_would_find_a_misspelt_key(cluster, schema):
    with pytest.raises(jsonschema.ValidationError, match="max_wrokers"):
        jsonschema.validate(cluster | {"max_wrokers": 1}, schema)


@pytest.mark.parametrize("name", ["cluster.yaml", "deploy/gcp.yaml"])
def test_the_head_is_one_of_the_node_types_and_both_kinds_of_workers_are_the_same_machine(name):
    cluster = read(name)
    assert cluster["head_node_type"] in cluster["available_node_types"]
    spot, gpu = (cluster["available_node_types"][kind] for kind in ("spot_gpu", "gpu"))
    assert spot["resources"] == gpu["resources"]
    assert spot["priority"] > gpu["priority"]
    kept = {"InstanceMarketOptions", "scheduling"}
    differs = {
        key
        for key in spot["node_config"]
        if spot["node_config"][key] != gpu["node_config"].get(key)
    }
    assert differs and differs <= kept


@pytest.mark.parametrize("name", CLUSTER_FILES)
def test_the_dashboard_listens_on_loopback_and_every_node_wants_a_token(name):
    cluster = read(name)
    (head,) = [command for command in cluster["head_start_ray_commands"] if "ray start" in command]
    (worker,) = [
        command
        for command in cluster["worker_start_ray_commands"]
        if "--address=$RAY_HEAD_IP" in command
    ]
    assert "RAY_AUTH_MODE=token" in head
    assert "RAY_AUTH_MODE=token" in worker
    assert "--dashboard-host=127.0.0.1" in head
    assert "0.0.0.0" not in (ROOT / name).read_text()
    assert any("chmod 600 ~/.ray/auth_token" in command for command in cluster["setup_commands"])


@pytest.mark.parametrize("name", CLUSTER_FILES)
def test_the_files_that_nodes_get_exist_here(name):
    own = [local for local in read(name)["file_mounts"].values() if local.startswith("./")]
    assert own
    assert [local for local in own if not (ROOT / local).exists()] == []


@pytest.mark.parametrize("name", CLUSTER_FILES)
def test_whatever_the_driver_writes_lies_on_what_all_nodes_share(name):
    commands = " ".join(read(name)["setup_commands"])
    assert "mountpoint -q /shared" in commands
    assert PLACES.items() <= dict(re.findall(r"(RAYBIO_\w+)=([\w/]+)", commands)).items()


def launched(cluster: dict[str, Any], num_gpus: int, refused: dict[str, float]) -> dict[str, int]:
    """What Ray's autoscaler starts; ``refused``: how far node types that AWS refused have recovered."""
    from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
    from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
    from ray.autoscaler.v2.utils import ResourceRequestUtil
    from ray.core.generated.autoscaler_pb2 import ClusterResourceConstraint

    config = AutoscalingConfig(cluster, skip_content_hash=True)
    wanted = ResourceRequestUtil.group_by_count([ResourceRequestUtil.make({"GPU": 1})] * num_gpus)
    request = SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs=config.get_node_type_configs(),
        max_num_nodes=cluster["max_workers"] + 1,
        cluster_resource_constraints=[ClusterResourceConstraint(resource_requests=wanted)],
        recoverable_resource_availabilities=refused,
    )
    reply = ResourceDemandScheduler().schedule(request)
    assert not reply.infeasible_cluster_resource_constraints
    return {
        launch.instance_type: launch.count
        for launch in reply.to_launch
        if launch.instance_type != "head"
    }


def test_rays_autoscaler_starts_spot_machines_and_those_on_demand_only_where_spot_was_refused(
    cluster,
):
    assert launched(cluster, 4, {}) == {"spot_gpu": 4}
    assert launched(cluster, 4, {"spot_gpu": 0.0}) == {"gpu": 4}
    assert launched(cluster, 4, {"spot_gpu": 0.9}) == {"gpu": 4}
    assert launched(cluster, 4, {"spot_gpu": 1.0}) == {"spot_gpu": 4}  # ten minutes later
    assert launched(cluster, 0, {}) == {}


# Keys of KubeRay's ray.io/v1, release 1.5, as its types and Ray's reader of them have them.
KNOWN = {
    "RayJobSpec": {
        "activeDeadlineSeconds", "backoffLimit", "clusterSelector", "deletionStrategy", "entrypoint",
        "entrypointNumCpus", "entrypointNumGpus", "entrypointResources", "jobId", "managedBy", "metadata",
        "rayClusterSpec", "runtimeEnvYAML", "shutdownAfterJobFinishes", "submissionMode",
        "submitterConfig", "submitterPodTemplate", "suspend", "ttlSecondsAfterFinished",
    },
    "RayClusterSpec": {
        "authOptions", "autoscalerOptions", "enableInTreeAutoscaling", "gcsFaultToleranceOptions", "headGroupSpec",
        "headServiceAnnotations", "managedBy", "rayVersion", "suspend", "workerGroupSpecs",
    },
    "HeadGroupSpec": {
        "enableIngress", "headService", "labels", "rayStartParams", "resources", "serviceType", "template",
    },
    "WorkerGroupSpec": {
        "groupName", "idleTimeoutSeconds", "labels", "maxReplicas", "minReplicas", "numOfHosts", "rayStartParams",
        "replicas", "resources", "scaleStrategy", "suspend", "template",
    },
}  # fmt: skip


@pytest.fixture
def manifests() -> dict[str, dict[str, Any]]:
    documents = yaml.safe_load_all((ROOT / "deploy" / "kuberay" / "rayjob.yaml").read_text())
    return {document["kind"]: document for document in documents}


def test_the_job_for_kubernetes_has_the_keys_of_kuberay_and_no_others(manifests):
    job = manifests["RayJob"]
    assert job["apiVersion"] == "ray.io/v1"
    assert job["spec"].keys() <= KNOWN["RayJobSpec"]
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster.keys() <= KNOWN["RayClusterSpec"]
    assert cluster["headGroupSpec"].keys() <= KNOWN["HeadGroupSpec"]
    for group in cluster["workerGroupSpecs"]:
        assert group.keys() <= KNOWN["WorkerGroupSpec"]
        assert {
            "groupName",
            "minReplicas",
            "maxReplicas",
            "rayStartParams",
            "template",
        } <= group.keys()
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


def test_rays_own_reader_finds_in_the_job_for_kubernetes_what_it_asks_for(manifests):
    from ray.autoscaler._private.kuberay.autoscaling_config import (
        _derive_autoscaling_config_from_ray_cr,
    )

    spec = manifests["RayJob"]["spec"]["rayClusterSpec"]
    config = _derive_autoscaling_config_from_ray_cr(
        {"metadata": {"name": "a", "namespace": "b"}, "spec": spec}
    )
    types = config["available_node_types"]
    assert types["headgroup"]["resources"]["CPU"] == 0
    gpu = types["gpu"]
    assert (gpu["resources"]["CPU"], gpu["resources"]["GPU"], gpu["min_workers"]) == (14, 1, 2)


def test_a_retried_job_for_kubernetes_finds_its_run_by_name_on_the_shared_volume(manifests):
    spec, claim = manifests["RayJob"]["spec"], manifests["PersistentVolumeClaim"]
    assert spec["backoffLimit"] > 0
    assert spec["shutdownAfterJobFinishes"] is True
    words = spec["entrypoint"].split()
    assert (ROOT / Path(words[1]).relative_to("/opt/raybio")).exists()
    given = dict(zip(words[2::2], words[3::2], strict=True))
    assert given["--name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    cluster = spec["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert int(given["--workers"]) == sum(
        group["minReplicas"] for group in cluster["workerGroupSpecs"]
    )
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        pod = group["template"]["spec"]
        (mount,) = [
            mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "shared"
        ]
        (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "shared"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert all(
            given[name].startswith(f"{mount['mountPath']}/") for name in ("--store", "--runs")
        )


def test_the_driver_on_kubernetes_puts_what_no_option_names_on_the_shared_volume(manifests):
    (head,) = manifests["RayJob"]["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"][
        "containers"
    ]
    assert PLACES.items() <= {one["name"]: one["value"] for one in head["env"]}.items()


def test_every_place_that_a_job_has_without_an_option_is_one_that_clusters_set():
    texts = [
        path.read_text()
        for path in [*(ROOT / "raybio").rglob("*.py"), *(ROOT / "jobs").glob("*.py")]
    ]
    assert {
        name for text in texts for name in re.findall(r'default_folder\(\s*"\w+", "(\w+)"\)', text)
    } == PLACES.keys()


def test_a_pod_that_must_go_has_longer_than_its_node_takes_to_drain(manifests):
    for group in manifests["RayJob"]["spec"]["rayClusterSpec"]["workerGroupSpecs"]:
        pod = group["template"]["spec"]
        environment = {one["name"]: one["value"] for one in pod["containers"][0]["env"]}
        assert (
            float(environment["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
            < pod["terminationGracePeriodSeconds"]
        )
        assert "spot" in {toleration["key"] for toleration in pod["tolerations"]}


def test_versions_of_ray_are_the_same_everywhere(manifests):
    (pinned,) = [
        line.split("==")[1]
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line.startswith("ray==")
    ]
    assert manifests["RayJob"]["spec"]["rayClusterSpec"]["rayVersion"] == pinned
    assert f"rayproject/ray:{pinned}-" in (ROOT / "deploy" / "kuberay" / "Dockerfile").read_text()


def test_the_wheel_that_nodes_install_holds_every_file_of_the_package(cluster, tmp_path):
    for remote, local in cluster["file_mounts"].items():
        if remote.startswith("~/raybio/") and not remote.endswith("deploy"):
            (tmp_path / remote.removeprefix("~/raybio/")).symlink_to(ROOT / local)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--wheel-dir", "wheels", "."], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "wheels").glob("raybio-*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("raybio/")}
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "raybio").rglob("*") if path.is_file()}
    assert held == {name for name in files if "__pycache__" not in name}


def test_the_upload_of_a_job_leaves_git_runs_and_environments_behind():
    ignored = (ROOT / ".rayignore").read_text().splitlines()
    assert {".git/", ".venv/", "/runs/", "/sweeps/", "/stores/", "/mlflow.db*"} <= set(ignored)
    assert {"/runs/", "/sweeps/", "/stores/", "/mlflow.db*"} <= set(
        (ROOT / ".gitignore").read_text().splitlines()
    )


def ask_for_gpus(*arguments):
    command = [sys.executable, str(ROOT / "deploy" / "ask_for_gpus.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=1500)


@pytest.mark.parametrize("arguments", [(), ("four",), ("-1",), ("4", "--minutes", "soon")])
def test_whoever_asks_for_no_number_of_gpus_learns_how(arguments):
    done = ask_for_gpus(*arguments)
    assert done.returncode == 2
    assert "usage: ask_for_gpus.py" in done.stderr
    assert "Traceback" not in done.stderr


def test_gpus_that_do_not_come_are_not_waited_for_for_ever(capsys):
    counts = iter([0, 2, 4])
    assert (
        runpy.run_path(str(ROOT / "deploy" / "ask_for_gpus.py"))["wait_for"](
            4, lambda: next(counts), 60, 0
        )
        == 0
    )
    assert capsys.readouterr().out.splitlines()[-1] == "4 GPUs, 4 asked for"
    assert (
        runpy.run_path(str(ROOT / "deploy" / "ask_for_gpus.py"))["wait_for"](
            99, lambda: 8, 0.1, 0.05
        )
        == 1
    )
    messages = capsys.readouterr().err
    assert "8 of 99 GPUs" in messages
    assert "max_workers" in messages


def test_the_ci_entry_can_be_executed():
    assert (ROOT / ".ci" / "run").stat().st_mode & stat.S_IXUSR
