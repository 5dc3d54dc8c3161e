"""P33: bytes that travel to one of 64 workers for each real token, counted for each method on its built-in corpus."""

import tempfile
from pathlib import Path

from _measure import report
from p32_many_workers import METHODS, NUM_WORKERS, shards

from raybio.runtime.run.stream import pack, unpack

GOAL = 8
NUM_STEPS = 3


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in METHODS:
            bytes_by_world = {}
            for world in (1, NUM_WORKERS):
                collate = shards(name, Path(folder), world).system.collate
                # As Ray carries them.
                steps = [
                    unpack(pack(step, collate(step, 0, world)), 0)[1] for step in range(NUM_STEPS)
                ]
                num_bytes = sum(array.nbytes for step in steps for array in step.values())
                bytes_by_world[world] = num_bytes / sum(len(step["token_T"]) for step in steps)
            ratio = GOAL / bytes_by_world[NUM_WORKERS]
            note = (
                f"{bytes_by_world[NUM_WORKERS]:.1f} bytes a token with {NUM_WORKERS} workers, "
                f"{bytes_by_world[1]:.1f} with one"
            )
            report("P33", name, ratio, ratio, note)


if __name__ == "__main__":
    main()
