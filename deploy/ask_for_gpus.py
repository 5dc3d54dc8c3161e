"""Ask the autoscaler of the cluster for GPUs, and wait for them: ``ask_for_gpus.py 4``; 0 lets idle ones go again."""

import os
import sys
import time

import ray
from ray.autoscaler.sdk import request_resources


def main(num_gpus: int) -> None:
    """Say what is wanted from now on; the request stands until the next one."""
    ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=False)
    request_resources(bundles=[{"GPU": 1}] * num_gpus)
    while (has := ray.cluster_resources().get("GPU", 0)) < num_gpus:
        print(f"{has:g} of {num_gpus} GPUs", flush=True)
        time.sleep(10)
    print(f"{has:g} GPUs, {num_gpus} asked for")


if __name__ == "__main__":
    main(int(sys.argv[1]))
