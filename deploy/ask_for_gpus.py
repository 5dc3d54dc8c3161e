"""Request GPUs from the cluster's autoscaler and wait for them; 0 releases idle ones."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence


def main(arguments: Sequence[str]) -> int:
    """Make a request, which stands until the next one; return 1 if the GPUs did not come."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "num_gpus", type=_count, metavar="GPUS", help="as many as a run has workers"
    )
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="how long to wait for them; default: 30"
    )
    asked = parser.parse_args(arguments)
    # Only now: this takes seconds.
    import ray
    from ray.autoscaler.sdk import request_resources

    ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=False)
    request_resources(bundles=[{"GPU": 1}] * asked.num_gpus)
    return wait_for(
        asked.num_gpus, lambda: ray.cluster_resources().get("GPU", 0), 60 * asked.minutes
    )


def wait_for(
    num_gpus: int, count: Callable[[], float], seconds: float, pause_seconds: float = 10.0
) -> int:
    """Wait until ``count`` returns ``num_gpus``, and print it; return 1 if time is over before."""
    deadline = time.monotonic() + seconds
    while (has := count()) < num_gpus:
        print(f"{has:g} of {num_gpus} GPUs", flush=True)
        if time.monotonic() > deadline:
            print(
                f"{has:g} of {num_gpus} GPUs after {seconds / 60:g} minutes. max_workers in "
                "cluster.yaml may allow no more, or the cloud has none: `ray monitor cluster.yaml` "
                "says why. The request stands; 0 releases it",
                file=sys.stderr,
            )
            return 1
        time.sleep(pause_seconds)
    print(f"{has:g} GPUs, {num_gpus} asked for")
    return 0


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"got {text!r}, want 0 or more")
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
