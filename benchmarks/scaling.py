"""A scaling report: predicted efficiency of each method on 2 to 256 workers, from counts and a few stated rates.

    python benchmarks/scaling.py --out benchmarks/SCALING.md

Efficiency is T(1) / T(W), of steps in which each worker has as many rows (weak scaling). Up to ``WORKERS_PER_NODE``
workers are in one node.

Counted, and not timed: tokens of each worker's shard, collectives of a step and their bytes. Methods train on their
built-in corpora with ``ROWS_PER_WORKER`` rows a worker, in 1, 2 and 4 real processes (gloo). The model predicts 4 workers
from 2, and the sum of gradients from the parameters alone; the script fails where it is wrong by more than 10 %.
It also predicts the processor time of a step: that of as many workers that know nothing of each other, next to each
other on this machine, and that of the predicted collectives alone. The page shows where it is wrong.
Rates of a GPU and of a network are options. The GPU's default was measured (gpu_results.jsonl), the latency of gloo is
measured on this machine, the others are assumptions.

Shape letters: W workers.
"""

import argparse
import datetime
import json
import math
import multiprocessing
import os
import platform
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from _measure import seconds_of
from demo_steps import DemoStep
from p32_many_workers import (
    METHODS,
    NUM_STEPS,
    NUM_WORKERS,
    ROWS_PER_WORKER,
    WORKERS_PER_NODE,
    collation,
    shards,
)

from raybio.core.batch import TokenBatch
from raybio.core.interfaces import Encoder
from raybio.core.markdown import markdown_table
from raybio.runtime.run.stream import NUM_TASKS_FOR_GPU
from raybio.training.collective import ProcessGroup, SingleProcess
from raybio.training.gradient_sum import BUCKET_BYTES
from raybio.training.precision import Precision
from raybio.training.step import TrainStep

PLANNED_STEPS = 8
WORKERS = (2, 4, 8, 16, 32, 64, 128, 256)
TOLERANCE = 0.1
"""Of what the model predicts for 4 workers."""

GOAL = 0.95
"""Efficiency that 8 GPUs of one node should reach, the goal G10."""

PARTS = (
    "gradients",
    "gathered rows",
    "gradients of gathered rows",
    "sums",
    "headers and flags",
)


def measured_tokens_per_second() -> float:
    """Return the rate of BERT-base on an H200, packed and not compiled (the defaults), at most 512 tokens a sequence."""
    wanted = {
        "device": "NVIDIA H200",
        "encoder": "BERT-base",
        "layout": "packed",
        "longest": 512,
    }
    lines = Path(__file__).with_name("gpu_results.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines if line.startswith("{")]
    rates = [step["real_tokens_per_second"] for step in steps if wanted.items() <= step.items()]
    return rates[-1]


@dataclass(frozen=True)
class Rates:
    """Rates of a GPU, its network and its host; the defaults are assumptions except ``tokens`` and ``host_latency``.

    Attributes:
        tokens: tokens that a GPU trains on a second.
        tokens_per_worker: tokens of a worker's step.
        micro_batch: tokens of its last micro-batch.
        parameters: parameters that are trained.
        gradient_bytes: bytes in which the gradient of a parameter is sent; 2: bf16.
        width: of an embedding.
        node_bandwidth: bytes a second between GPUs of a node, each direction; NVLink of an H100 or H200.
        bandwidth: bytes a second between nodes, of each worker.
        latency: seconds of a small collective on the GPUs of two workers; it grows with the logarithm of their number.
        host_latency: seconds of a small collective of two hosts (gloo); 0: ``gloo_latency`` measures it.
        cores: cores that collate for a worker.
        copy: bytes of a checkpoint that a second of waiting copies to the host.
        checkpoint_steps: steps between two checkpoints.
    """

    tokens: float = field(default_factory=measured_tokens_per_second)
    tokens_per_worker: float = 32_768
    micro_batch: float = 16_384
    parameters: float = 110e6
    gradient_bytes: float = 4
    width: float = 768
    node_bandwidth: float = 450e9
    bandwidth: float = 12.5e9
    latency: float = 30e-6
    host_latency: float = 0
    cores: float = NUM_TASKS_FOR_GPU
    copy: float = 10e9
    checkpoint_steps: float = 500


@dataclass(frozen=True)
class Counts:
    """A step of one worker, on average.

    Attributes:
        collectives: of each part.
        num_bytes: of each part, as the worker passes them in.
        num_tokens: of its shard.
        collate_seconds: processor time to collate the shard.
        train_seconds: processor time of the rest of the step.
    """

    collectives: Mapping[str, float]
    num_bytes: Mapping[str, float]
    num_tokens: float
    collate_seconds: float = 0
    train_seconds: float = 0


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
            # Only what the host reads names its group: that is gloo's, next to NCCL's.
            part = PARTS[4] if "group" in options else self.part
            self.collectives[part] += 1
            self.num_bytes[part] += sent(*args, **options).nbytes
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


def in_workers(
    work: Callable[[int], Any], world: int, folder: Path, *, has_group: bool
) -> list[Any]:
    """Call ``work(rank)`` in ``world`` processes, of one gloo group or without one; return the results by rank."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    rendezvous = Path(tempfile.mkdtemp(dir=folder)) / "rendezvous"

    def run(rank: int) -> None:
        if has_group:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{rendezvous}",
                rank=rank,
                world_size=world,
                timeout=datetime.timedelta(minutes=30),
            )
        results.put((rank, work(rank)))

    processes = [context.Process(target=run, args=(rank,)) for rank in range(world)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        if process.exitcode != 0:
            raise SystemExit(f"a worker of {world} ended with status {process.exitcode}")
    result_by_rank = dict(results.get() for _ in range(world))
    return [result_by_rank[rank] for rank in range(world)]


def counted(demo: DemoStep, world: int, folder: Path, *, side_by_side: int = 1) -> list[Counts]:
    """Train ``NUM_STEPS`` steps, after one that does not count; return the counts of each process.

    Args:
        demo: the method.
        world: workers that train together.
        folder: where they meet.
        side_by_side: how often a single worker trains at the same time, each for itself.
    """

    def work(process: int) -> Counts:
        rank = process if world > 1 else 0
        collective = ProcessGroup() if world > 1 else SingleProcess()
        step = TrainStep(demo.system, demo.config, collective, Precision("fp32", "cpu"))
        demo.system.model.train()

        def collate(number: int) -> TokenBatch:
            return demo.system.batch_type.from_arrays(demo.system.collate(number, rank, world))

        step(0, collate(0))
        num_tokens = 0
        collate_seconds = 0.0
        started = time.process_time()
        with Ledger() as ledger:
            for number in range(NUM_STEPS, 2 * NUM_STEPS):
                before = time.process_time()
                batch = collate(number)
                collate_seconds += time.process_time() - before
                num_tokens += len(batch.token_T)
                step(number, batch)
        train_seconds = time.process_time() - started - collate_seconds
        return Counts(
            {part: ledger.collectives[part] / NUM_STEPS for part in PARTS},
            {part: ledger.num_bytes[part] / NUM_STEPS for part in PARTS},
            num_tokens / NUM_STEPS,
            collate_seconds / NUM_STEPS,
            train_seconds / NUM_STEPS,
        )

    return in_workers(work, world * side_by_side, folder, has_group=world > 1)


def collective_seconds(counts: Counts, world: int, folder: Path) -> float:
    """Return the processor time of a step's collectives alone, the mean over the workers."""

    def work(_: int) -> float:
        def step() -> None:
            for part in PARTS:
                for _ in range(round(counts.collectives[part])):
                    mean_bytes = counts.num_bytes[part] / counts.collectives[part]
                    sent = torch.zeros(math.ceil(mean_bytes / 4))
                    if part == PARTS[1]:
                        dist.all_gather(list(sent.new_empty(world, len(sent))), sent)
                    else:
                        dist.all_reduce(sent)

        step()
        started = time.process_time()
        for _ in range(NUM_STEPS):
            step()
        return (time.process_time() - started) / NUM_STEPS

    return mean(in_workers(work, world, folder, has_group=True))


def gloo_latency(folder: Path) -> float:
    """Return the seconds of a small sum over gloo between two processes, in the fastest of 200 short rounds."""
    num_sums = 20

    def work(_: int) -> float:
        collective = ProcessGroup()

        def sums() -> None:
            for _ in range(num_sums):
                collective.host_sum([1])

        return min(seconds_of(sums) for _ in range(200)) / num_sums

    return in_workers(work, 2, folder, has_group=True)[0]


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
    """Seconds of a step by what they are spent on; ``input`` is the time that a GPU waits for its batch."""
    compute = rates.tokens_per_worker / rates.tokens
    scale = rates.tokens_per_worker / inputs.at_two.num_tokens
    # Nearly all that is gathered are embeddings.
    gathered = inputs.at_two.num_bytes[PARTS[1]] * scale * rates.width / inputs.width
    # The slowest link of a ring limits it.
    bandwidth = rates.node_bandwidth if world <= WORKERS_PER_NODE else rates.bandwidth
    # A ring: each byte of a sum passes twice, each gathered row once.
    gradients = 2 * (world - 1) / world * rates.gradient_bytes * rates.parameters / bandwidth
    rows = 2 * (world - 1) * gathered / bandwidth
    # Sums run during the last micro-batch's backward pass, two thirds of its computation; the last
    # bucket is complete when that ends.
    hidden = 2 / 3 * rates.micro_batch / rates.tokens
    last_bucket = gradients * min(BUCKET_BYTES / (4 * rates.parameters), 1)
    num_buckets = math.ceil(4 * rates.parameters / BUCKET_BYTES)
    on_gpus = num_buckets + sum(inputs.at_two.collectives[part] for part in PARTS[1:4])
    # gloo passes numbers on from worker to worker, around a ring.
    on_hosts = inputs.at_two.collectives[PARTS[4]] * (world - 1)
    spent = {
        "compute": compute,
        "imbalance": compute * (imbalance_at(inputs.imbalance, world) - 1),
        "bytes": max(gradients - hidden, last_bucket) + rows,
        "collectives": on_gpus * rates.latency * math.log2(world),
        "headers and flags": on_hosts * rates.host_latency,
        "checkpoint": 12 * rates.parameters / rates.copy / rates.checkpoint_steps,
    }
    # Other processes collate the next batches during all of the step.
    collate = collate_seconds_at(inputs.collate_seconds, world) * rates.tokens_per_worker
    return spent | {"input": max(collate / rates.cores - sum(spent.values()), 0)}


def efficiency(inputs: Inputs, world: int, rates: Rates) -> float:
    """Return T(1) / T(W), each with its wait for input."""
    alone = sum(step_seconds(inputs, 1, rates).values())
    return alone / sum(step_seconds(inputs, world, rates).values())


def input_share(inputs: Inputs, world: int, rates: Rates) -> float:
    """Return the share of a step in which the GPU waits for its batch."""
    seconds = step_seconds(inputs, world, rates)
    return seconds["input"] / sum(seconds.values())


def collate_seconds_at(collate_seconds: tuple[float, float], world: int) -> float:
    """Return the processor time to collate a token, between that of one worker and that of one of 64.

    It grows with the rows of a step, of which each worker makes the plan.
    """
    alone, shared = collate_seconds
    return alone + max(shared - alone, 0) * (world - 1) / (NUM_WORKERS - 1)


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


@dataclass(frozen=True)
class ProcessorTime:
    """Processor time of a step of ``world`` workers.

    Attributes:
        together: steps of workers that train together.
        side_by_side: steps of as many single workers at the same time.
        collectives: seconds of the predicted collectives alone.
    """

    together: list[Counts]
    side_by_side: list[Counts]
    collectives: list[float]


def processor_rows(
    name: str, time_by_world: Mapping[int, ProcessorTime], collate_seconds: tuple[float, float]
) -> list[list[str]]:
    """Return the rows of a table: processor time of a step, predicted next to measured."""
    rows = []
    for world, measured in time_by_world.items():
        growth = collate_seconds_at(collate_seconds, world) / collate_seconds[0]
        size = mean(each.num_tokens for each in measured.together) / mean(
            each.num_tokens for each in measured.side_by_side
        )
        single = size * mean(
            each.train_seconds + each.collate_seconds * growth for each in measured.side_by_side
        )
        collectives = mean(measured.collectives)
        found = mean(each.train_seconds + each.collate_seconds for each in measured.together)
        off = (single + collectives) / found - 1
        percent = f"{100 * off:+.0f} %"
        numbers = [
            f"{1e3 * each:.1f}" for each in (single, collectives, single + collectives, found)
        ]
        shown = f"**{percent}**" if abs(off) > TOLERANCE else percent
        rows.append([name, f"{world}", *numbers, shown])
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
    processor = []
    inputs_by_method = {}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        os.environ["RAYBIO_CACHE"] = f"{folder}/cache"
        if not rates.host_latency:
            rates = replace(rates, host_latency=gloo_latency(folder))
        for name in arguments["methods"]:
            demos = {world: shards(name, folder, world) for world in (1, 2, 4, NUM_WORKERS)}
            demos[1].prepare_node()
            model = Model.of(demos[1].system.model)
            times: dict[int, ProcessorTime] = {world: ProcessorTime([], [], []) for world in (2, 4)}
            # There and back, so that a machine that slows down meanwhile slows all of them.
            for world in (2, 4, 4, 2):
                of_world = times[world]
                of_world.side_by_side.extend(counted(demos[1], 1, folder, side_by_side=world))
                of_world.together.extend(counted(demos[world], world, folder))
                expected = model.predicted(times[2].together[0], world)
                of_world.collectives.append(collective_seconds(expected, world, folder))
            if sum(times[2].side_by_side[0].collectives.values()):
                raise SystemExit(f"{name}: a single worker calls collectives")
            at_two, at_four = (times[world].together[0] for world in (2, 4))
            checks += check(name, model, at_two, at_four)
            collate_seconds = (
                collation(demos[1], 1)(),
                collation(demos[NUM_WORKERS], NUM_WORKERS)(),
            )
            processor += processor_rows(name, times, collate_seconds)
            shared_by = [world for world in (1, *WORKERS) if world <= arguments["max_counted"]]
            imbalance = {world: largest_over_mean(name, folder, world) for world in shared_by}
            inputs_by_method[name] = Inputs(at_two, model.width, imbalance, collate_seconds)
            print(f"{name}: counted", flush=True)
    arguments["out"].write_text(page(inputs_by_method, checks, processor, rates))
    print(arguments["out"])


def page(
    inputs_by_method: Mapping[str, Inputs],
    checks: list[list[str]],
    processor: list[list[str]],
    rates: Rates,
) -> str:
    """Return the report."""
    efficiencies = []
    parts = []
    for name, inputs in inputs_by_method.items():
        values = [efficiency(inputs, world, rates) for world in WORKERS]
        waits = [100 * input_share(inputs, world, rates) for world in (1, 8, 64)]
        efficiencies.append(
            [name, *(f"{value:.2f}" for value in values), *(f"{wait:.0f} %" for wait in waits)]
        )
        spent = step_seconds(inputs, 64, rates)
        shares = [f"{100 * value / sum(spent.values()):.1f}" for value in spent.values()]
        ratios = [f"{inputs.imbalance[world]:.2f}" for world in (2, max(inputs.imbalance))]
        collate = [f"{1e6 * value:.2f}" for value in inputs.collate_seconds]
        parts.append([name, *shares, *ratios, *collate])
    most = max(next(iter(inputs_by_method.values())).imbalance)
    num_off = sum(cell.startswith("**") for row in processor for cell in row)
    return "\n".join(
        [
            "# Scaling",
            "",
            f"Written by `scaling.py` on {datetime.date.today()}, {platform.processor() or platform.machine()}, torch "
            f"{torch.__version__}. Each worker has as many rows, whatever their number (weak scaling).",
            "",
            "## Predicted efficiency",
            "",
            "T(1) / T(W): the time of a single worker's step over that of W workers. T(1) has the waits of a single worker, "
            "for input and for checkpoints. The last columns say how much of a step a GPU waits for input: where it waits "
            "already alone, more cores that collate help, and not a faster network. "
            f"Up to {WORKERS_PER_NODE} workers are GPUs of one node; more are in several nodes, and the network between "
            "them limits all of their sums and gathers.",
            "",
            markdown_table(
                [
                    "method", *(f"{world} workers" for world in WORKERS),
                    "input, 1", "input, 8", "input, 64",
                ],
                efficiencies,
            ),
            "",
            f"**No network was measured, and no step on two GPUs.** The rate of a GPU is {rates.tokens / 1e6:g} M tokens/s for all methods: BERT-base's on one H200, "
            "packed and not compiled, as by default, sequences of at most 512 tokens (gpu_results.jsonl). A slower step scales better. "
            f"The latency of a small collective over gloo was measured between two processes of this machine, in the fastest of 200 rounds: {1e6 * rates.host_latency:.0f} µs. It grows with "
            "W − 1, because gloo passes numbers around a ring. Headers and flags travel so; they count in full, though they do not delay a host that is ahead of its GPU. "
            f"Assumed: {rates.tokens_per_worker:,.0f} tokens a worker and step, the last {rates.micro_batch:,.0f} of them in one micro-batch, "
            f"{rates.parameters / 1e6:g} M parameters, embeddings of {rates.width:g}, {rates.node_bandwidth / 1e9:g} GB/s in a node (NVLink of an H100 or H200, each direction), {rates.bandwidth / 1e9:g} GB/s between nodes, "
            f"{1e6 * rates.latency:g} µs a small collective on the GPUs of two workers, {rates.cores:g} cores of this machine collate for a worker, a checkpoint every "
            f"{rates.checkpoint_steps:g} steps that is copied at {rates.copy / 1e9:g} GB/s. Gradients are summed "
            f"in {'bf16' if rates.gradient_bytes == 2 else 'fp32'} "
            "during the last micro-batch's backward pass; what does not fit there counts. Evaluation is not in it: its cost depends on the store.",
            "",
            *goal_section(inputs_by_method, rates),
            "## What a step of 64 workers is spent on",
            "",
            "In percent. `imbalance`: the worker with most tokens over the mean, counted on the built-in corpus with "
            f"{ROWS_PER_WORKER} rows a worker; larger shards differ less. `input`: what collation takes longer than the rest of the step. "
            "`collate`: µs of processor time a token on this "
            f"machine, alone and with 64 workers, {WORKERS_PER_NODE} a node, tokens from the node's cache "
            "where a method has one.",
            "",
            markdown_table(
                [
                    "method", "compute", "imbalance", "bytes", "collectives", "headers and flags", "checkpoint", "input",
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
            "## Processor time, predicted and measured",
            "",
            "Milliseconds of processor time of a step, mean over the workers of the same runs. *Single*: as many workers that train "
            "alone, at the same time on this machine; collation grows with the number of workers as measured above. "
            "*Collectives*: those of the table above, called without training. Their sum is the prediction. "
            f"**{num_off} of {len(processor)} predictions are off by more than {TOLERANCE:.0%}**, in bold.",
            "",
            markdown_table(
                ["method", "workers", "single", "collectives", "predicted", "measured", "off by"],
                processor,
            ),
            "",
        ]
    )  # fmt: skip


def goal_section(inputs_by_method: Mapping[str, Inputs], rates: Rates) -> list[str]:
    """Return the lines that say which methods reach ``GOAL`` on the GPUs of one node."""
    fed = replace(rates, cores=math.inf)
    settings = [
        (f"{tokens:,.0f}, {name}", replace(rates, tokens_per_worker=tokens, gradient_bytes=size))
        for tokens in (rates.tokens_per_worker, 4 * rates.tokens_per_worker)
        for name, size in (("fp32", 4), ("bf16", 2))
    ]
    settings.append((f"{rates.tokens_per_worker:,.0f}, fp32, fed", fed))
    worlds = (WORKERS_PER_NODE, 2 * WORKERS_PER_NODE, 64)
    rows = []
    num_met = 0
    for name, inputs in inputs_by_method.items():
        verdict = goal_verdict(inputs, rates)
        num_met += verdict.startswith("met")
        for world in worlds:
            values = [f"{efficiency(inputs, world, setting):.3f}" for _, setting in settings]
            last = verdict if world == WORKERS_PER_NODE else ""
            rows.append([name, f"{world}", *values, last])
    return [
        f"## 8 GPUs of one node: the goal G10, at least {GOAL}",
        "",
        f"By the model, with the inputs above: **{num_met} of {len(inputs_by_method)} methods meet it.** A method meets it "
        "if both the first column and the last one do; a miss names what is lost most. Columns: tokens a worker and "
        "step, and the numbers in which gradients are sent (`gradients_sent_as`); `fed`: cores enough that no GPU waits for input, because "
        "that wait hides all others. The rows of 8 workers are predictions inside one node; 16 and 64 workers, in several, stand next to them.",
        "",
        markdown_table(
            ["method", "workers", *(what for what, _ in settings), f"G10, {WORKERS_PER_NODE} workers"], rows
        ),
        "",
    ]  # fmt: skip


def goal_verdict(inputs: Inputs, rates: Rates) -> str:
    """Return whether the GPUs of one node reach ``GOAL``, with and without waits for input, or what they lose most by."""
    for setting in (rates, replace(rates, cores=math.inf)):
        if efficiency(inputs, WORKERS_PER_NODE, setting) < GOAL:
            alone = step_seconds(inputs, 1, setting)
            shared = step_seconds(inputs, WORKERS_PER_NODE, setting)
            most = max(shared, key=lambda part: shared[part] - alone[part])
            return f"missed: {most}"
    wait = input_share(inputs, WORKERS_PER_NODE, rates)
    return f"met, waits for input {100 * wait:.0f} %" if wait >= 0.01 else "met"


if __name__ == "__main__":
    main()
