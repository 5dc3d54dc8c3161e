"""Workers as threads of one process: collectives that sum, or gather without gradient."""

import threading

import torch

from raybio.core.interfaces import Gathered


def in_threads(world, work):
    """Run ``work`` on each rank of a collective over threads; return the results by rank."""
    barrier = threading.Barrier(world)
    slots = [None] * world
    results = [None] * world

    class ThreadCollective:
        def __init__(self, rank):
            self.rank, self.world = rank, world

        def all_sum(self, tensor):
            slots[self.rank] = tensor.clone()
            barrier.wait()
            total = sum(slots[1:], slots[0])
            barrier.wait()
            return total

        def all_gather(self, local, like=None):
            slots[self.rank] = local.clone()
            barrier.wait()
            num_rows = [len(slot) for slot in slots]
            gathered = Gathered(torch.cat(slots), sum(num_rows[: self.rank]), num_rows)
            barrier.wait()
            return gathered

    def run(rank):
        results[rank] = work(ThreadCollective(rank))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
