"""A scaling report: predicted efficiency of each method on 2 to 256 workers, from counts and a few stated rates.

    python benchmarks/scaling.py --out benchmarks/SCALING.md

Counted, and not timed: tokens of each worker's shard, collectives of a step and their bytes. Methods train on their
built-in corpora with ``ROWS_PER_WORKER`` rows a worker, in 1, 2 and 4 real processes (gloo). The model predicts 4 workers
from 2, and the sum of gradients from the parameters alone; the script fails where it is wrong by more than 10 %.
Rates of a GPU and of a network are options. The GPU's default was measured (RESULTS.md), the others are assumptions.

Shape letters: W workers.
"""

import argparse
import datetime
import math
import multiprocessing
import os
import platform
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from p32_many_workers import METHODS, ROWS_PER_WORKER, WORKERS_PER_NODE, collation, shards

from raybio.core.interfaces import Encoder
from raybio.core.markdown import markdown_table
from raybio.runtime.run.stream import NUM_TASKS_FOR_GPU
from raybio.training.collective import ProcessGroup, SingleProcess
from raybio.training.gradient_sum import BUCKET_BYTES
from raybio.training.precision import Precision
from raybio.training.step import TrainStep

NUM_STEPS = 3
PLANNED_STEPS = 8
WORKERS = (2, 4, 8, 16, 32, 64, 128, 256)
TOLERANCE = 0.1
"""Of what the model predicts for 4 workers."""

PARTS = ("gradients", "gathered rows", "gradients of gathered rows", "sums and headers")


@dataclass(frozen=True)
class Rates:
    """Rates of a GPU, its network and its host; the defaults are assumptions except ``tokens``.

    Attributes:
        tokens: tokens that a GPU trains on a second; BERT-base on an H100, compiled.
        tokens_per_worker: tokens of a worker's step.
        micro_batch: tokens of its last micro-batch.
        parameters: parameters that are trained.
        width: of an embedding.
        bandwidth: bytes a second between nodes, of each worker.
        latency: seconds of a small collective of two workers; it grows with the logarithm of their number.
        cores: cores that collate for a worker.
        copy: bytes of a checkpoint that a second of waiting copies to the host.
        checkpoint_steps: steps between two checkpoints.
    """

    tokens: float = 0.45e6
    tokens_per_worker: float = 32_768
    micro_batch: float = 16_384
    parameters: float = 110e6
    width: float = 768
    bandwidth: float = 12.5e9
    latency: float = 30e-6
    cores: float = NUM_TASKS_FOR_GPU
    copy: float = 10e9
    checkpoint_steps: float = 500


@dataclass(frozen=True)
class Counts:
    """A step of one worker, on average: collectives and bytes of each part, as the worker passes them in."""

    collectives: Mapping[str, float]
    num_bytes: Mapping[str, float]
    num_tokens: float


class Ledger:
    """Counts the collectives of torch.distributed that a block calls, by the part of a step that calls them."""

    def __init__(self) -> None:
        self.collectives: Counter[str] = Counter()
        self.num_bytes: Counter[str] = Counter()
        self.part = PARTS[3]

    def __enter__(self) -> "Ledger":
        self._replaced: list[tuple[Any, str, Any]] = []
        self._count(dist, "all_reduce", lambda tensor, *_, **__: tensor)
        self._count(dist, "all_gather", lambda _, tensor, *__, **___: tensor)
        self._count(dist, "reduce_scatter_tensor", lambda _, tensor, *__, **___: tensor)
        self._name(ProcessGroup, "start_sum", PARTS[0])
        self._name(ProcessGroup, "_gather_rows", PARTS[1])
        self._name(ProcessGroup, "_sum_own_rows", PARTS[2])
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name, original in self._replaced:
            setattr(owner, name, original)

    def _count(self, owner: Any, name: str, sent: Callable[..., torch.Tensor]) -> None:
        def counted(*args: Any, **options: Any) -> Any:
            self.collectives[self.part] += 1
            self.num_bytes[self.part] += sent(*args, **options).nbytes
            return original(*args, **options)

        original = self._replace(owner, name, counted)

    def _name(self, owner: Any, name: str, part: str) -> None:
        def named(*args: Any, **options: Any) -> Any:
            before = self.part
            self.part = part
            try:
                return original(*args, **options)
            finally:
                self.part = before

        original = self._replace(owner, name, named)

    def _replace(self, owner: Any, name: str, new: Any) -> Any:
        original = getattr(owner, name)
        self._replaced.append((owner, name, original))
        setattr(owner, name, new)
        return original


def counted(name: str, folder: Path, world: int) -> tuple[Counts, "Model"]:
    """Train a few steps in ``world`` processes; return the counts of rank 0, and what the model knows beforehand."""
    demo = shards(name, folder, world)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    rendezvous = Path(tempfile.mkdtemp(dir=folder)) / "rendezvous"

    def work(rank: int) -> None:
        if world > 1:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{rendezvous}",
                rank=rank,
                world_size=world,
                timeout=datetime.timedelta(minutes=30),
            )
        collective = ProcessGroup() if world > 1 else SingleProcess()
        step = TrainStep(demo.system, demo.config, collective, Precision("fp32", "cpu"))
        demo.system.model.train()
        num_tokens = 0
        with Ledger() as ledger:
            for number in range(NUM_STEPS):
                arrays = demo.system.collate(number, rank, world)
                num_tokens += len(arrays["token_T"])
                step(number, demo.system.batch_type.from_arrays(arrays))
        if rank == 0:
            sender.send((ledger.collectives, ledger.num_bytes, num_tokens))

    processes = [context.Process(target=work, args=(rank,)) for rank in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode != 0:
            raise SystemExit(f"{name}: a worker of {world} ended with status {process.exitcode}")
    collectives, num_bytes, num_tokens = receiver.recv()
    counts = Counts(
        {part: collectives[part] / NUM_STEPS for part in PARTS},
        {part: num_bytes[part] / NUM_STEPS for part in PARTS},
        num_tokens / NUM_STEPS,
    )
    return counts, Model.of(demo.system.model)


@dataclass(frozen=True)
class Model:
    """What parameters alone say about the sum of gradients.

    Attributes:
        gradient_bytes: of all parameters.
        num_buckets: collectives of a step.
        width: of an embedding.
    """

    gradient_bytes: float
    num_buckets: int
    width: int

    @classmethod
    def of(cls, encoder: Encoder) -> "Model":
        parameters = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
        num_buckets = 0
        room = 0
        for parameter in parameters:
            if num_buckets == 0 or parameter.nbytes > room:
                num_buckets += 1
                room = BUCKET_BYTES
            room -= parameter.nbytes
        num_bytes = sum(parameter.nbytes for parameter in parameters)
        return cls(num_bytes, num_buckets, encoder.width)

    def predicted(self, at_two: Counts, world: int) -> Counts:
        """Return the counts of a step with ``world`` workers that have as many rows each as with two."""
        num_bytes = dict(at_two.num_bytes)
        num_bytes[PARTS[0]] = self.gradient_bytes
        # Over gloo each worker sums the gradients of the rows of all workers.
        num_bytes[PARTS[2]] *= world / 2
        collectives = dict(at_two.collectives) | {PARTS[0]: self.num_buckets}
        return Counts(collectives, num_bytes, at_two.num_tokens)


def largest_over_mean(name: str, folder: Path, world: int) -> float:
    """Tokens of the worker that has most, over the mean of all, on average over steps."""
    collate = shards(name, folder, world).system.collate
    ratios = []
    for step in range(PLANNED_STEPS):
        num_tokens = [len(collate(step, rank, world)["token_T"]) for rank in range(world)]
        ratios.append(max(num_tokens) / np.mean(num_tokens))
    return float(np.mean(ratios))


@dataclass(frozen=True)
class Inputs:
    """What was counted or measured for a method.

    Attributes:
        at_two: a step with two workers.
        width: of the embeddings in it.
        imbalance: ``largest_over_mean`` by number of workers.
        collate_seconds: processor time a token to collate for a worker that is alone, and for one of 64.
    """

    at_two: Counts
    width: int
    imbalance: Mapping[int, float]
    collate_seconds: tuple[float, float]


def step_seconds(inputs: Inputs, world: int, rates: Rates) -> dict[str, float]:
    """Seconds of a step by what they are spent on; ``compute`` is what a single worker needs."""
    compute = rates.tokens_per_worker / rates.tokens
    scale = rates.tokens_per_worker / inputs.at_two.num_tokens
    # Nearly all that is gathered are embeddings.
    gathered = inputs.at_two.num_bytes[PARTS[1]] * scale * rates.width / inputs.width
    # A ring: each byte of a sum passes twice, each gathered row once.
    gradients = 2 * (world - 1) / world * 4 * rates.parameters / rates.bandwidth
    rows = 2 * (world - 1) * gathered / rates.bandwidth
    # Sums run during the last micro-batch's backward pass, two thirds of its computation; the last
    # bucket is complete when that ends.
    hidden = 2 / 3 * rates.micro_batch / rates.tokens
    last_bucket = gradients * min(BUCKET_BYTES / (4 * rates.parameters), 1)
    small = sum(inputs.at_two.collectives[part] for part in PARTS[1:])
    num_buckets = math.ceil(4 * rates.parameters / BUCKET_BYTES)
    alone, shared = inputs.collate_seconds
    collate = alone + max(shared - alone, 0) * (world - 1) / 63
    working = compute * imbalance_at(inputs.imbalance, world)
    return {
        "compute": compute,
        "imbalance": working - compute,
        "bytes": max(gradients - hidden, last_bucket) + rows,
        "collectives": (small + num_buckets) * rates.latency * math.log2(world),
        "input": max(collate * rates.tokens_per_worker / rates.cores - working, 0),
        "checkpoint": 12 * rates.parameters / rates.copy / rates.checkpoint_steps,
    }


def imbalance_at(imbalance: Mapping[int, float], world: int) -> float:
    """Return the ratio of the largest counted number of workers that is at most ``world``."""
    return imbalance[max(number for number in imbalance if number <= world)]


def check(name: str, model: Model, at_two: Counts, at_four: Counts) -> list[list[str]]:
    """Return the rows of a table, predicted next to counted; fail where they differ."""
    rows = []
    predicted = model.predicted(at_two, 4)
    wrong = []
    for what, expected, found in (
        ("collectives", predicted.collectives, at_four.collectives),
        ("bytes", predicted.num_bytes, at_four.num_bytes),
    ):
        for part in PARTS:
            if not found[part] and not expected[part]:
                continue
            rows.append([name, f"{what}, {part}", f"{expected[part]:,.0f}", f"{found[part]:,.0f}"])
            if abs(expected[part] - found[part]) > TOLERANCE * found[part]:
                wrong.append(rows[-1])
    if wrong:
        raise SystemExit(f"the model is wrong by more than {TOLERANCE:.0%}: {wrong}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("SCALING.md"))
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument(
        "--max-counted", type=int, default=64, help="workers whose shards are counted"
    )
    for name, default in vars(Rates()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=default)
    arguments = vars(parser.parse_args())
    rates = Rates(**{name: arguments[name] for name in vars(Rates())})
    torch.set_num_threads(1)
    checks = []
    inputs_by_method = {}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        os.environ["RAYBIO_CACHE"] = f"{folder}/cache"
        for name in arguments["methods"]:
            alone, _ = counted(name, folder, 1)
            if sum(alone.collectives.values()):
                raise SystemExit(f"{name}: a single worker calls collectives")
            at_two, model = counted(name, folder, 2)
            at_four, _ = counted(name, folder, 4)
            checks += check(name, model, at_two, at_four)
            shared_by = [world for world in (1, *WORKERS) if world <= arguments["max_counted"]]
            demos = [shards(name, folder, world) for world in (1, 64)]
            demos[0].prepare_node()
            inputs_by_method[name] = Inputs(
                at_two,
                model.width,
                {world: largest_over_mean(name, folder, world) for world in shared_by},
                tuple(collation(demo, world)() for demo, world in zip(demos, (1, 64), strict=True)),  # type: ignore[arg-type]
            )
            print(f"{name}: counted", flush=True)
    arguments["out"].write_text(page(inputs_by_method, checks, rates))
    print(arguments["out"])


def page(inputs_by_method: Mapping[str, Inputs], checks: list[list[str]], rates: Rates) -> str:
    """Return the report."""
    efficiencies = []
    parts = []
    for name, inputs in inputs_by_method.items():
        seconds = {world: step_seconds(inputs, world, rates) for world in WORKERS}
        efficiencies.append(
            [name, *(f"{spent['compute'] / sum(spent.values()):.2f}" for spent in seconds.values())]
        )
        spent = seconds[64]
        shares = [f"{100 * value / sum(spent.values()):.1f}" for value in spent.values()]
        ratios = [f"{inputs.imbalance[world]:.2f}" for world in (2, max(inputs.imbalance))]
        collate = [f"{1e6 * value:.2f}" for value in inputs.collate_seconds]
        parts.append([name, *shares, *ratios, *collate])
    most = max(next(iter(inputs_by_method.values())).imbalance)
    return "\n".join(
        [
            "# Scaling",
            "",
            f"Written by `scaling.py` on {datetime.date.today()}, {platform.processor() or platform.machine()}, torch "
            f"{torch.__version__}. Each worker has as many rows, whatever their number (weak scaling).",
            "",
            "## Predicted efficiency",
            "",
            "Share of a step that a single worker would need as well. The rate of a GPU is BERT-base's on one H100, compiled. **No network was measured.** Assumed: "
            f"{rates.tokens / 1e6:g} M tokens/s a GPU, {rates.tokens_per_worker:,.0f} tokens a worker and step, the last {rates.micro_batch:,.0f} of them in one micro-batch, "
            f"{rates.parameters / 1e6:g} M parameters, embeddings of {rates.width:g}, {rates.bandwidth / 1e9:g} GB/s between nodes, "
            f"{1e6 * rates.latency:g} µs a small collective of two workers, {rates.cores:g} cores of this machine collate for a worker, a checkpoint every "
            f"{rates.checkpoint_steps:g} steps that is copied at {rates.copy / 1e9:g} GB/s. Gradients are summed in fp32 "
            "during the last micro-batch's backward pass; what does not fit there counts. Evaluation is not in it: its cost depends on the store.",
            "",
            markdown_table(["method", *(f"{world} workers" for world in WORKERS)], efficiencies),
            "",
            "## What a step of 64 workers is spent on",
            "",
            "In percent. `imbalance`: the worker with most tokens over the mean, counted on the built-in corpus with "
            f"{ROWS_PER_WORKER} rows a worker; larger shards differ less. `collate`: µs of processor time a token on this "
            f"machine, alone and with 64 workers, {WORKERS_PER_NODE} a node, tokens from the node's cache "
            "where a method has one.",
            "",
            markdown_table(
                [
                    "method", "compute", "imbalance", "bytes", "collectives", "input", "checkpoint",
                    "largest over mean, 2", f"largest over mean, {most}", "collate alone", "collate of 64",
                ],
                parts,
            ),
            "",
            "## Predicted and counted",
            "",
            "A step of one of 4 workers: gradients from the parameters alone, the rest from 2 workers. Counted in real "
            f"processes over gloo, {NUM_STEPS} steps; bytes as a worker passes them to a collective.",
            "",
            markdown_table(["method", "what", "predicted", "counted"], checks),
            "",
        ]
    )  # fmt: skip


if __name__ == "__main__":
    main()
