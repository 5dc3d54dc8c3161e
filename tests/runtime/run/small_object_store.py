"""For test_stream.py: streams more than Ray's object store holds, and a step larger than it."""

import hashlib
import sys

import numpy as np
import ray

from raybio.core.batch import TokenBatch
from raybio.runtime.run.stream import stream_batches

STORE_BYTES = 75 * 2**20
"""The least that Ray takes."""

NUM_STEPS, LARGEST = 16, 11


def large(step: int, rank: int, world: int) -> dict[str, np.ndarray]:
    num_tokens = (90 if step == LARGEST else 24) * 2**20
    token_T = np.random.default_rng(step).integers(0, 256, num_tokens, dtype=np.uint8)
    return {
        "token_T": token_T,
        "indptr_R1": np.array([0, num_tokens]),
        "label_T": np.zeros(1, dtype=np.uint8),
    }


def digest(token_T: np.ndarray) -> str:
    return hashlib.sha256(token_T.tobytes()).hexdigest()


def main() -> None:
    ray.init(address="local", num_cpus=2, object_store_memory=STORE_BYTES, include_dashboard=False)
    steps = []
    for step, batch in stream_batches(
        large, first_step=0, num_steps=NUM_STEPS, rank=0, world=1, batch_type=TokenBatch
    ):
        assert digest(batch.token_T.numpy().astype(np.uint8)) == digest(
            large(step, 0, 1)["token_T"]
        ), step
        steps.append(step)
    ray.shutdown()
    assert steps == list(range(NUM_STEPS)), steps
    print("every step arrived as it was made")


if __name__ == "__main__":
    sys.exit(main())
