"""For test_server.py: two models, and an application of somebody else, on one cluster."""

import sys
from pathlib import Path

import pytest
import ray
from ray import serve

import raybio
from raybio.core.errors import ClusterError
from raybio.runtime.serve.server import serving
from tests.runtime.search.test_queries import export
from tests.runtime.serve.test_server import ask, free_port


@serve.deployment(ray_actor_options={"num_cpus": 0})
class Other:
    """An application of somebody else."""


def main() -> None:
    first = export(Path("first"), 0)
    second = export(Path("second"), 1)
    ray.init(address="local", num_cpus=2, include_dashboard=False)
    with serving(first, port=free_port(), cpus_per_replica=0.5) as address:
        refused = pytest.raises(ClusterError, match="runs on this cluster already, with raybio")
        with refused, serving(second, port=free_port(), cpus_per_replica=0.5):
            pass
        assert ask(f"{address}/health")["model"] == raybio.load(first).digest()
        serve.run(Other.bind(), name="other", route_prefix="/other")
    assert [*serve.status().applications] == ["other"]
    serve.delete("other")
    refused = pytest.raises(ClusterError, match="already, with no application")
    with refused, serving(second, port=free_port(), cpus_per_replica=0.5):
        pass
    serve.shutdown()
    with serving(second, port=free_port(), cpus_per_replica=0.5):
        pass
    assert not serve.status().proxies
    ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
