"""For test_stream.py: a worker on one of two nodes, with free CPUs there and without."""

import os
import sys
import time

import numpy as np
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raybio.core.batch import TokenBatch
from raybio.runtime.run.stream import stream_batches

CPUS = 2
NUM_STEPS = 500


def origin(step: int, rank: int, world: int) -> dict[str, np.ndarray]:
    """Return the process and the node that collate, and the step."""
    node = ray.get_runtime_context().get_node_id()
    token_T = np.frombuffer(bytes.fromhex(node), dtype=np.uint8)
    return {
        "token_T": token_T,
        "indptr_R1": np.array([0, len(token_T)]),
        "label_T": np.array([os.getpid(), step]),
    }


@ray.remote
def nodes_of_tasks() -> list[str]:
    """Return the nodes on which other processes have collated."""
    nodes = set()
    steps = []
    for step, batch in stream_batches(
        origin, first_step=0, num_steps=NUM_STEPS, rank=0, world=1, batch_type=TokenBatch
    ):
        process, collated = batch.label_T.tolist()
        assert step == collated
        steps.append(step)
        if process != os.getpid():
            nodes.add(bytes(batch.token_T.tolist()).hex())
        elif not nodes:
            time.sleep(0.5)  # the first block of Ray Data is on its way
    assert steps == list(range(NUM_STEPS))
    return sorted(nodes)


def main() -> None:
    head = {"num_cpus": CPUS, "include_dashboard": False, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        there = cluster.add_node(num_cpus=CPUS, object_store_memory=80 * 2**20)
        ray.init(cluster.address)
        other = ray.get_runtime_context().get_node_id()
        for num_cpus, expected in ((1, there.node_id), (CPUS, other)):
            strategy = NodeAffinitySchedulingStrategy(there.node_id, soft=False)
            worker = nodes_of_tasks.options(num_cpus=num_cpus, scheduling_strategy=strategy)
            nodes = ray.get(worker.remote())
            assert nodes == [expected], (num_cpus, nodes, expected)
        ray.shutdown()
    finally:
        cluster.shutdown()
    print("each step was collated on the expected node")


if __name__ == "__main__":
    sys.exit(main())
