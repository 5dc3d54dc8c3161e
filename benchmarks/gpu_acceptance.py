"""Acceptance of a machine with a GPU in about eight minutes, without Ray: checks that must pass, and absolute figures.

    PYTHONPATH=. python benchmarks/gpu_acceptance.py [--small] [--only machine,packing] [--no-compile]

Parts: ``machine`` (rates of products and copies), ``packing`` (packed sequences equal padded ones, with all gradients;
gradient caching equals plain gradients), ``methods`` (losses and scores of each method equal those of the CPU),
``steps`` (tokens a second, MFU), ``waits`` (20 steps of each method in which nothing makes the host wait), ``kernels`` (idle share, the ten that take longest), ``resume`` (a process that is killed
and started again has the weights of an unbroken one, eager and compiled), ``caching``, ``feeding`` (tokens a core
collates), ``evaluation`` (in fp32, TF32 and bf16), ``evaluation_at_size`` (of a large graph), ``retrieval`` (exact ranks), ``contrast`` (a large contrastive
loss), ``search`` (faiss against exact neighbors), ``workers`` (gradients of two GPUs equal those of one).

Prints one JSON line a result, with the device's name. Exit status 1 if ``packing``, ``methods``, ``waits``, ``resume``,
``search`` or ``workers`` fails. ``--small`` runs the same code at tiny size on any machine: a test of the script, whose figures
mean nothing. It needs what ``raybio`` imports below ``raybio/runtime/`` and no network; ``search`` needs faiss.
"""

import argparse
import contextlib
import gc
import math
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import gpu_figures
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from demo_steps import DemoStep
from gpu_bench import FULL, SMALL, Bench, CheckError, Size
from training_setup import sppt_system

from raybio.core.batch import TokenBatch
from raybio.core.config import override_all
from raybio.core.digest import weights_digest
from raybio.core.interfaces import Collective, System
from raybio.methods import METHODS
from raybio.methods.sppt.proteins.encoder import build_protein_encoder
from raybio.training.checkpoint import CheckpointStore
from raybio.training.collective import ProcessGroup, SingleProcess
from raybio.training.determinism import set_environment
from raybio.training.grad_cache import compute_gradients
from raybio.training.gradient_sum import GradientSum
from raybio.training.loop import fit
from raybio.training.precision import Precision, embedding_precision
from raybio.training.settings import TrainingConfig
from tests.device_operations import DeviceOperations

NUM_RESUMED_STEPS = 40
METHOD = METHODS["sppt_protein"]


def packing(bench: Bench) -> None:
    """Gradients of packed sequences, and of gradient caching, against padded ones kept whole.

    In fp32 they differ by rounding. In bf16, where a GPU has another kernel of attention for packed sequences, they
    may differ from fp32 by twice as much as padded ones do.
    """
    for name, config in {"BERT": bench.size.encoder, **bench.size.large}.items():
        encoder = build_protein_encoder(config, seed=0).to(bench.device)
        system = sppt_system(encoder)
        batch = bench.protein_batch(encoder, bench.size.lengths[-1], bench.size.checked_tokens)
        gradients = partial(gradients_on, bench, system, batch)
        padded = gradients("fp32", is_packed=False)
        for label, packed in {
            "packed": gradients("fp32", is_packed=True),
            "packed, cached": gradients("fp32", is_packed=True, is_cached=True),
        }.items():
            difference = relative_difference(packed, padded)
            bench.report("packing", encoder=name, precision="fp32", what=label, off=difference)
            if not difference < 1e-3:
                raise CheckError(f"{name}, {label}: gradients are off by {difference:.2g} in fp32")
        half_padded = relative_difference(gradients("bf16", is_packed=False), padded)
        half_packed = relative_difference(gradients("bf16", is_packed=True), padded)
        bench.report(
            "packing", encoder=name, precision="bf16", off=half_packed, padded_off=half_padded
        )
        if not half_packed <= 2 * half_padded:
            raise CheckError(
                f"{name}: packed gradients in bf16 are off by {half_packed:.2g}, padded ones by "
                f"{half_padded:.2g}"
            )


def gradients_on(
    bench: Bench,
    system: System,
    batch: TokenBatch,
    precision: str,
    *,
    is_packed: bool,
    is_cached: bool = False,
    collective: Collective | None = None,
) -> list[torch.Tensor]:
    """Return the gradients of all weights, of the global batch."""
    collective = collective or SingleProcess()
    system.model.packing = is_packed
    weights = [weight for weight in system.model.parameters() if weight.requires_grad]
    compute_gradients(
        system,
        batch,
        collective,
        max_tokens=bench.size.tokens_per_micro_batch,
        gradient_caching=is_cached,
        precision=Precision(precision, bench.device.type),
        seed_of=lambda number: number,
        gradients=GradientSum(weights, collective),
    )
    return [weight.grad.clone() for weight in weights if weight.grad is not None]


def relative_difference(ours: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """Return the norm of the difference of all gradients over their norm."""
    differences = [one - other for one, other in zip(ours, expected, strict=True)]
    return float(
        torch.nn.utils.get_total_norm(differences) / torch.nn.utils.get_total_norm(expected)
    )


def methods(bench: Bench) -> None:
    """Train each method a few steps in fp32 here and on the CPU, then score the same weights on both.

    Losses may differ by rounding; nothing is dropped, since devices draw other numbers. A score may differ by more where
    rounding changes a rank: by a hundredth at most.
    """
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for name in METHODS:
            here = DemoStep(name, Path(folder) / "here")
            there = DemoStep(name, Path(folder) / "there")
            for each in (here, there):
                each.system.model.eval()
            here.system.model.to(bench.device)
            take_steps = [bench.train_step(each.system, precision="fp32") for each in (here, there)]
            loss_off = 0.0
            for step in range(3):
                loss, expected = (
                    take_step(step, here.batch(step))["loss"] for take_step in take_steps
                )
                loss_off = max(loss_off, abs(loss - expected) / abs(expected))
            there.system.model.load_state_dict(here.system.model.state_dict())
            scores, expected_scores = (final_scores(each) for each in (here, there))
            off = {
                key: abs(scores.get(key, math.nan) - value)
                for key, value in expected_scores.items()
                if math.isfinite(value)
            }
            score_off = max(off.values(), default=0.0)
            bench.report(
                "methods", method=name, loss_off=loss_off, scores=len(off), score_off=score_off
            )
            if not (loss_off < 1e-3 and all(value < 0.01 for value in off.values())):
                worst = sorted(off, key=lambda key: -off[key])[:3]
                failed.append(f"{name}: losses by {loss_off:.2g}, {worst} by {score_off:.2g}")
    if failed:
        raise CheckError(f"other than on the CPU: {'; '.join(failed)}")


def final_scores(demo: DemoStep) -> dict[tuple[str, str, str], float]:
    """Return the values of a system's final table, which computes where its model is."""
    system = demo.system
    assert system.final_evaluate is not None
    device = next(system.model.parameters()).device
    with torch.no_grad(), embedding_precision(Precision("fp32", device.type)):
        report = system.final_evaluate(system.model, SingleProcess(), None)
    return {
        (stage, split, measure): score["value"]
        for stage, by_split in report.scores.items()
        for split, by_measure in by_split.items()
        for measure, score in by_measure.items()
    }


def waits(bench: Bench) -> None:
    """Take steps of each method in which only the reading of metrics may wait for the device."""
    with tempfile.TemporaryDirectory() as folder:
        for name in METHODS:
            demo = DemoStep(name, Path(folder))
            demo.system.model.to(bench.device)
            take_step = bench.train_step(demo.system)
            batches = [demo.batch(step) for step in range(2 * bench.size.num_steps)]
            take_step(0, batches[0])
            launched = None
            with no_waiting(bench, name):
                for step, batch in enumerate(batches):
                    following = take_step.launch(step, batch)
                    if launched is not None:
                        with reading_is_allowed(bench):
                            launched.read()
                    launched = following
            bench.report("waits", method=name, steps=len(batches), waits=0)


@contextlib.contextmanager
def no_waiting(bench: Bench, name: str) -> Iterator[None]:
    """Within this block nothing makes the host wait; a CPU counts what would make it wait for a GPU."""
    if bench.is_gpu:
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        except RuntimeError as error:
            raise CheckError(f"{name}: {error}") from error
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return
    with DeviceOperations() as operations:
        yield
    # Reading the metrics of a step is one tolist.
    if operations.synchronizing.keys() - {"tolist"}:
        raise CheckError(f"{name}: {dict(operations.synchronizing)}")


@contextlib.contextmanager
def reading_is_allowed(bench: Bench) -> Iterator[None]:
    if not bench.is_gpu:
        yield
        return
    torch.cuda.set_sync_debug_mode("default")
    yield
    torch.cuda.set_sync_debug_mode("error")


def resume(bench: Bench, *, compiled: bool = False) -> None:
    """Kill training processes at a random step, eager and compiled; see ``resume_once``."""
    for is_compiled in (False, True) if compiled else (False,):
        resume_once(bench, is_compiled)


def resume_once(bench: Bench, is_compiled: bool) -> None:
    """Kill a training process at a random step, start it again, and compare its weights with an unbroken one's."""
    # The checkpoint of step 5 is on the disk when that of step 15 begins to be written.
    killed_at = random.randrange(16, NUM_RESUMED_STEPS - 5)
    with tempfile.TemporaryDirectory() as folder:
        store = METHOD.prepare_demo(Path(folder) / "store")
        lines = {
            name: train_elsewhere(bench, store, Path(folder) / where, is_compiled, end)
            for name, where, end in (
                ("unbroken", "unbroken", None),
                ("killed", "killed", killed_at),
                ("resumed", "killed", None),
            )
        }
    first_step = int(lines["resumed"][0])
    is_equal = lines["unbroken"][-1] == lines["resumed"][-1]
    bench.report(
        "resume",
        compiled=is_compiled,
        killed_at=killed_at,
        first_step=first_step,
        is_equal=is_equal,
    )
    if lines["killed"][-1] != str(killed_at) or first_step == 1:
        raise CheckError(f"nothing was resumed: killed at {lines['killed'][-1]}, {first_step=}")
    if not is_equal:
        raise CheckError(f"other weights after a kill at step {killed_at}")


def train_elsewhere(
    bench: Bench, store: Path, folder: Path, is_compiled: bool, killed_at: int | None
) -> list[str]:
    """Train in another process, and kill it at a step; return what it printed."""
    layout = "compiled" if is_compiled else "eager"
    arguments = (str(store), str(folder), bench.device.type, layout)
    command = [sys.executable, "-W", "ignore", __file__, "--train", *arguments]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.strip())
            if killed_at is not None and lines[-1] == str(killed_at):
                process.kill()
                break
    if killed_at is None and process.returncode:
        raise CheckError(f"training ended with status {process.returncode}")
    return lines


def train(store: str, folder: str, device: str, layout: str) -> None:
    """Train the demo from its newest checkpoint on; print each step, then the digest of the weights."""
    settings = {
        "memory.compile": layout == "compiled",
        "schedule.max_steps": NUM_RESUMED_STEPS,
        "schedule.log_every_steps": 1,
        "schedule.checkpoint_every_steps": 5,
        "schedule.evaluate_every_steps": 0,
        "schedule.keep_best": None,
    }
    config = override_all(METHOD.demo, settings)
    system = METHOD.build(config, store)
    for report in fit(system, config, device=device, checkpoints=CheckpointStore(folder)):
        print(report.step, flush=True)
    print(weights_digest(system.model.state_dict().items()), flush=True)


def workers(bench: Bench) -> None:
    """Compare the gradients of two processes, each on a GPU of its own, with those of one."""
    if bench.is_gpu and torch.cuda.device_count() < 2:
        bench.report("workers", left_out="there is one GPU")
        return
    with tempfile.TemporaryDirectory() as folder:
        store = METHOD.prepare_demo(Path(folder) / "store")
        try:
            mp.spawn(compare_workers, (bench.size, bench.device.type, str(store), folder), nprocs=2)
        except mp.ProcessRaisedException as error:
            raise CheckError(str(error).strip().splitlines()[-1]) from error
    bench.report("workers", world=2)


def compare_workers(rank: int, size: Size, device_type: str, store: str, folder: str) -> None:
    """Compare the gradients of this worker's and the other's shard with those of the whole batch."""
    device = torch.device(device_type, rank) if device_type == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=2,
    )
    bench = Bench(size, device)
    system = METHOD.build(METHOD.demo, store)
    system.model.to(device)

    def batch(rank: int, world: int) -> TokenBatch:
        return system.batch_type.from_arrays(system.collate(0, rank, world))

    whole = gradients_on(bench, system, batch(0, 1), "fp32", is_packed=True)
    shared = gradients_on(
        bench, system, batch(rank, 2), "fp32", is_packed=True, collective=ProcessGroup()
    )
    dist.destroy_process_group()
    difference = relative_difference(shared, whole)
    if not difference < 1e-4:
        raise CheckError(f"rank {rank}: gradients of two workers are off by {difference:.2g}")


def main() -> None:
    arguments = parsed()
    # As a worker does, before CUDA starts; processes that this one starts inherit it.
    set_environment(TrainingConfig().determinism)
    if arguments.train:
        train(*arguments.train)
        return
    if not arguments.small and not torch.cuda.is_available():
        sys.exit("no CUDA device; --small tries the script on a CPU")
    size = SMALL if arguments.small else FULL
    bench = Bench(size, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    has_compiler = bench.is_gpu or shutil.which("g++") is not None
    is_compiled = has_compiler and not arguments.no_compile
    parts: dict[str, Callable[[Bench], None]] = {
        "machine": gpu_figures.machine,
        "packing": packing,
        "methods": methods,
        "steps": partial(gpu_figures.steps, compiled=is_compiled),
        "waits": waits,
        "kernels": gpu_figures.kernels,
        "resume": partial(resume, compiled=is_compiled),
        "caching": gpu_figures.caching,
        "feeding": gpu_figures.feeding,
        "evaluation": gpu_figures.evaluation,
        "evaluation_at_size": gpu_figures.evaluation_at_size,
        "retrieval": gpu_figures.retrieval,
        "contrast": gpu_figures.contrast,
        "search": gpu_figures.search,
        "workers": workers,
    }
    chosen = arguments.only.split(",") if arguments.only else list(parts)
    if unknown := set(chosen) - parts.keys():
        sys.exit(f"no part {', '.join(sorted(unknown))}; there are {', '.join(parts)}")
    num_failed = 0
    for name in chosen:
        try:
            parts[name](bench)
        except (
            Exception
        ) as error:  # such as a GPU out of memory: the other parts are still worth their time
            num_failed += 1
            reason = str(error) if isinstance(error, CheckError) else f"{error!r:.500}"
            bench.report(name, failed=reason)
        gc.collect()
        if bench.is_gpu:
            torch.cuda.empty_cache()
    sys.exit(1 if num_failed else 0)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="tiny sizes, on any machine")
    parser.add_argument("--only", help="parts to run, separated by commas")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--train", nargs=4, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
