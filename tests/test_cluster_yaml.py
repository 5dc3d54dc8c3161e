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

from raybio.core.location import location
from raybio.core.plain_yaml import parse_yaml
from raybio.methods import METHODS
from raybio.runtime.run.options import RunOptions, resolve
from raybio.store.bucket import BucketFolder
from tests.paths import ROOT

CLOUD_FILES = ["cluster.yaml", "deploy/gcp.yaml", "deploy/azure.yaml"]
CLUSTER_FILES = [*CLOUD_FILES, "deploy/own_machines.yaml"]
BUCKETS = {
    "cluster.yaml": "s3://YOUR-BUCKET",
    "deploy/gcp.yaml": "gs://YOUR-BUCKET",
    "deploy/azure.yaml": "abfs://raybio@YOUR-ACCOUNT.dfs.core.windows.net",
    "deploy/own_machines.yaml": "s3://YOUR-BUCKET",
}
FOLDERS = {"RAYBIO_RUNS": "runs", "RAYBIO_SWEEPS": "sweeps"}
LOCAL = {"RAYBIO_STORES"}
"""A variable of built-in corpora, which takes no bucket."""


def places(bucket: str) -> dict[str, str]:
    """Where a cluster puts what no option names."""
    return {name: f"{bucket}/{folder}" for name, folder in FOLDERS.items()}


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


@pytest.mark.parametrize("name", CLOUD_FILES)
def test_the_head_is_one_of_the_node_types_and_both_kinds_of_workers_are_the_same_machine(name):
    cluster = read(name)
    assert cluster["head_node_type"] in cluster["available_node_types"]
    spot, gpu = (cluster["available_node_types"][kind] for kind in ("spot_gpu", "gpu"))
    assert spot["resources"] == gpu["resources"]
    assert spot["priority"] > gpu["priority"]
    kept = {"InstanceMarketOptions", "scheduling", "priority", "billingProfile"}
    spot_config, gpu_config = (
        kind["node_config"].get("azure_arm_parameters", kind["node_config"]) for kind in (spot, gpu)
    )
    differs = {key for key in spot_config if spot_config[key] != gpu_config.get(key)}
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
    assert {"./raybio", "./search_spaces", "./setup.py", "./pyproject.toml"} <= set(own)


@pytest.mark.parametrize("name", CLUSTER_FILES)
def test_whatever_the_driver_writes_lies_in_a_bucket_and_no_disk_is_mounted(name):
    (setup,) = [
        command for command in read(name)["setup_commands"] if "deploy/setup_node.sh" in command
    ]
    variables = dict(word.split("=", 1) for word in setup.split() if "=" in word)
    assert places(BUCKETS[name]).items() <= variables.items()
    assert "mount" not in " ".join(read(name)["setup_commands"])
    for uri in places(BUCKETS[name]).values():
        # The text of the example is replaced, or setup_node.sh refuses it.
        assert location(uri.replace("YOUR-BUCKET", "mine").replace("YOUR-ACCOUNT", "mine"))


@pytest.mark.parametrize("name", CLUSTER_FILES)
def test_what_nodes_install_keeps_the_versions_of_the_constraints(name):
    commands = [
        command
        for kind in ("setup_commands", "head_setup_commands", "worker_setup_commands")
        for command in read(name).get(kind, [])
    ]
    assert commands
    for command in commands:
        if "pip install" in command:
            assert "--constraints ~/raybio/constraints.txt" in command


def test_the_project_on_google_cloud_is_an_example_that_says_so():
    cluster = read("deploy/gcp.yaml")
    project = cluster["provider"]["project_id"]
    assert project.startswith("YOUR-")
    configs = [one["node_config"] for one in cluster["available_node_types"].values()]
    accounts = [
        account["email"] for config in configs for account in config.get("serviceAccounts", [])
    ]
    assert accounts and all(f"@{project}." in account for account in accounts)
    for name in CLUSTER_FILES:
        assert not re.search(r"\bmy-", (ROOT / name).read_text()), name


@pytest.mark.parametrize("name", CLOUD_FILES)
def test_every_node_type_names_an_image_with_a_current_ubuntu(name):
    images = {"ImageId": "24.04", "sourceImage": "2404", "imageOffer": "24_04|hpc"}
    for kind, node_type in read(name)["available_node_types"].items():
        text = json.dumps(node_type["node_config"])
        (image,) = re.findall(rf'"(?:{"|".join(images)})": "([^"]+)"', text)
        assert re.search("|".join(images.values()), image), kind
        assert ("nvidia" in image or "hpc" in image) == (node_type["resources"].get("GPU", 0) > 0)


@pytest.mark.nightly
def test_ray_starts_the_images_and_roles_of_the_file_and_the_roles_exist(
    cluster, monkeypatch, tmp_path
):
    """Ray's own provider against a simulated AWS, with the roles of deploy/aws_roles.yaml."""
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", cluster["provider"]["region"])
    monkeypatch.setenv("HOME", str(tmp_path))  # Ray writes a key there
    (tmp_path / ".ssh").mkdir()
    import boto3
    from moto import mock_aws
    from ray.autoscaler._private.aws.config import bootstrap_aws
    from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
    from ray.autoscaler._private.util import prepare_config

    requests = []
    with mock_aws():
        boto3.client("cloudformation").create_stack(
            StackName="raybio",
            TemplateBody=(ROOT / "deploy" / "aws_roles.yaml").read_text(),
            Parameters=[{"ParameterKey": "Bucket", "ParameterValue": "mine"}],
            Capabilities=["CAPABILITY_NAMED_IAM"],
        )
        iam = boto3.client("iam")
        profiles = iam.list_instance_profiles()["InstanceProfiles"]
        attached = {
            profile["InstanceProfileName"]: [
                policy["PolicyName"]
                for role in profile["Roles"]
                for policy in iam.list_attached_role_policies(RoleName=role["RoleName"])[
                    "AttachedPolicies"
                ]
            ]
            for profile in profiles
        }
        config = bootstrap_aws(prepare_config(read("cluster.yaml")))
        provider = AWSNodeProvider(config["provider"], "raybio")
        provider.ec2_fail_fast.meta.client.meta.events.register(
            "provide-client-params.ec2.RunInstances",
            lambda params, **rest: requests.append(params),
        )
        for node_type in config["available_node_types"].values():
            provider.create_node(node_type["node_config"], {}, 1)
    for request, node_type in zip(requests, cluster["available_node_types"].values(), strict=True):
        for key in ("ImageId", "IamInstanceProfile", "InstanceType"):
            assert request[key] == node_type["node_config"][key]
        assert request["ImageId"].startswith("resolve:ssm:/aws/service/")
        assert attached[request["IamInstanceProfile"]["Name"]] == ["raybio-bucket"]


def test_without_an_image_ray_would_take_one_with_an_old_python():
    from ray.autoscaler._private.aws.config import DEFAULT_AMI_NAME

    # cluster.yaml says so. When Ray's own image is current, ImageId may go.
    assert "18.04" in DEFAULT_AMI_NAME


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


def test_a_retried_job_for_kubernetes_finds_its_run_by_name_in_the_bucket(manifests):
    spec = manifests["RayJob"]["spec"]
    assert spec["backoffLimit"] > 0
    assert spec["shutdownAfterJobFinishes"] is True
    words = spec["entrypoint"].split()
    assert (ROOT / Path(words[1]).relative_to("/opt/raybio")).exists()
    given = dict(zip(words[2::2], words[3::2], strict=True))
    assert given["--name"]
    assert all(given[name].startswith("s3://YOUR-BUCKET/") for name in ("--store", "--runs"))
    cluster = spec["rayClusterSpec"]
    assert cluster["authOptions"] == {"mode": "token"}
    assert int(given["--workers"]) == sum(
        group["minReplicas"] for group in cluster["workerGroupSpecs"]
    )


def test_pods_share_no_disk_and_reach_the_bucket_by_their_service_account(manifests):
    assert manifests.keys() == {"ServiceAccount", "RayJob"}
    account = manifests["ServiceAccount"]["metadata"]
    assert account["annotations"]
    cluster = manifests["RayJob"]["spec"]["rayClusterSpec"]
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        pod = group["template"]["spec"]
        assert pod["serviceAccountName"] == account["name"]
        assert all(volume.keys() == {"name", "emptyDir"} for volume in pod["volumes"])
        (container,) = pod["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
        environment = {one["name"]: one["value"] for one in container["env"]}
        assert environment["RAYBIO_CACHE"] == mounts["cache"]


def test_the_driver_on_kubernetes_puts_what_no_option_names_into_the_bucket(manifests):
    (head,) = manifests["RayJob"]["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"][
        "containers"
    ]
    environment = {one["name"]: one["value"] for one in head["env"]}
    assert places("s3://YOUR-BUCKET").items() <= environment.items()


def test_the_image_carries_jobs_and_search_spaces_and_only_what_exists():
    text = (ROOT / "deploy" / "kuberay" / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (.+) \S+$", text, re.MULTILINE)
    sources = {source for line in copied for source in line.split()}
    assert {"raybio", "jobs", "search_spaces", "setup.py", "constraints.txt"} <= sources
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_every_place_that_a_job_has_without_an_option_is_one_that_clusters_set():
    texts = [
        path.read_text()
        for path in [*(ROOT / "raybio").rglob("*.py"), *(ROOT / "jobs").glob("*.py")]
    ]
    # As arguments, and as the default of one.
    place = re.compile(r'"\w+",(?: variable: str =)? "(RAYBIO_\w+)"')
    assert {name for text in texts for name in place.findall(text)} == FOLDERS.keys() | LOCAL


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
    image = (ROOT / "deploy" / "kuberay" / "Dockerfile").read_text()
    assert f"ARG RAY={pinned}-py311" in image
    assert compose()["services"]["head"]["build"]["args"]["RAY"] == f"{pinned}-py311"


def compose() -> dict[str, Any]:
    # YAML merges, which Compose resolves as well.
    return yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())


def compose_schema() -> dict[str, Any]:
    return json.loads((ROOT / "tests" / "compose_schema" / "compose-spec.json").read_text())


def test_the_file_of_containers_fits_the_schema_of_compose():
    jsonschema.validate(compose(), compose_schema())


def test_the_schema_of_compose_would_find_misspelt_keys():
    misspelt = compose()
    misspelt["services"]["head"]["comand"] = misspelt["services"]["head"].pop("command")
    with pytest.raises(jsonschema.ValidationError, match="comand"):
        jsonschema.validate(misspelt, compose_schema())
    with pytest.raises(jsonschema.ValidationError, match="serivces"):
        jsonschema.validate(compose() | {"serivces": {}}, compose_schema())


def test_the_services_of_the_laptop_share_no_volume_and_listen_on_loopback():
    services = compose()["services"]
    volumes = [
        volume.split(":")[0] for one in services.values() for volume in one.get("volumes", [])
    ]
    assert sorted(volumes) == sorted(compose()["volumes"])
    ports = [port for one in services.values() for port in one.get("ports", [])]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)
    for service in services.values():
        assert all(other in services for other in service.get("depends_on", {}))
    for name in ("head", "worker"):
        environment = services[name]["environment"]
        assert places("s3://raybio").items() <= environment.items()
        assert environment["AWS_ENDPOINT_URL"] == "http://s3:9000"
        assert environment["RAY_AUTH_MODE"] == "token"
        assert "volumes" not in services[name]
    dockerfile = services["head"]["build"]["dockerfile"]
    assert (ROOT / "deploy" / services["head"]["build"]["context"] / dockerfile).is_file()


def test_no_service_of_the_laptop_has_a_secret_of_its_own():
    for name, service in compose()["services"].items():
        for key, value in service.get("environment", {}).items():
            if re.search("SECRET|PASSWORD|TOKEN", key):
                assert value.startswith("${RAYBIO_SECRET"), (name, key)


def test_the_first_run_of_the_laptop_finds_its_bucket_and_its_store(s3, monkeypatch, tmp_path):
    for _ in range(2):
        for name in ("bucket", "store"):
            (interpreter, option, program) = compose()["services"][name]["command"]
            assert (interpreter, option) == ("python", "-c")
            if name == "store":
                exec(program, {})
                continue
            # boto3 leaves connections open.
            command = [sys.executable, "-c", program]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
    (uploaded,) = [
        request
        for request in s3.requests
        if request.method == "PUT" and "manifest.json" in request.path
    ]
    assert "stores/demo" in uploaded.path
    assert BucketFolder(location("s3://raybio/runs"), is_patient=False).list() == []
    # The run that the head of the file documents, on machines that see none of this one's stores.
    monkeypatch.setenv("RAYBIO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    head = (ROOT / "deploy" / "compose.yaml").read_text().partition("\nname:")[0]
    words = re.sub(r"\\?\n#", "", head).partition("sppt_protein.py")[2].split()
    given = dict(zip(words[:12:2], words[1:12:2], strict=True))
    assert given.keys() == {
        "--store",
        "--recipe",
        "--tracking-uri",
        "--workers",
        "--cpus-per-worker",
        "--name",
    }
    store = location(given["--store"])
    places = {"store": store, "runs": location("s3://raybio/runs")}
    run = resolve(
        "sppt_protein", RunOptions(**places, recipe=given["--recipe"], name=given["--name"])
    )
    assert run.store == store
    assert run.config == METHODS["sppt_protein"].demo
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache"]


@pytest.mark.nightly
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
    paths = [path for path in (ROOT / "raybio").rglob("*") if path.is_file()]
    files = {str(path.relative_to(ROOT)) for path in paths}
    files |= {f"raybio/search_spaces/{path.name}" for path in ROOT.glob("search_spaces/*.yaml")}
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


def test_the_ci_entry_is_the_test_command_of_the_readme():
    entry = ROOT / ".ci" / "run"
    assert entry.stat().st_mode & stat.S_IXUSR
    first, *_, command = entry.read_text(encoding="utf-8").splitlines()
    assert first == "#!/usr/bin/env bash"
    assert command == "exec make test"
    assert "\nmake test" in (ROOT / "README.md").read_text(encoding="utf-8")
