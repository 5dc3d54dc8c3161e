"""For test_stream.py: where the steps of a stream are collated in a cluster of two nodes."""

import sys

import numpy as np
import pyarrow as pa
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raybio.runtime.run.stream import _blocks, _tables, unpack

NUM_STEPS = 40
STORE_BYTES = 75 * 2**20


def collate(step: int, rank: int, world: int) -> dict[str, np.ndarray]:
    node = ray.get_runtime_context().get_node_id()
    return {"node": np.frombuffer(node.encode(), dtype=np.uint8)}


def nodes_of_steps() -> list[str]:
    """Return the node that has collated each step, and check their order."""
    tables = pa.concat_tables(_tables(collate, _blocks(0, NUM_STEPS, 2), 0, 1, 2))
    rows = [unpack(tables, row) for row in range(tables.num_rows)]
    assert [step for step, _ in rows] == list(range(NUM_STEPS))
    return [arrays["node"].tobytes().decode() for _, arrays in rows]


def main() -> None:
    node = {"num_cpus": 1, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    cluster.add_node(**node)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address)
    here = ray.get_runtime_context().get_node_id()
    assert set(nodes_of_steps()) == {here}
    print("collated here")

    class Busy:
        def wait(self) -> None:
            pass

    pinned = NodeAffinitySchedulingStrategy(here, soft=False)
    busy = ray.remote(num_cpus=1)(Busy).options(scheduling_strategy=pinned).remote()
    ray.get(busy.wait.remote())
    assert here not in nodes_of_steps()
    print("collated elsewhere where there is no room")
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main())
