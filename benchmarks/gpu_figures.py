"""Absolute figures on one device, for ``gpu_acceptance.py``: no goal is checked here.

MFU is the FLOP of real tokens a second over the measured rate of a large matrix product in the same precision on the
same device. Padding and the second encoding of gradient caching count as waste.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from demo_steps import DemoStep
from gpu_bench import STEPS_PER_GROUP, Bench, CheckError, MethodCase, RepeatedStep, flop_of_step
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from training_setup import link_batch

from raybio.core.batch import TokenBatch
from raybio.core.errors import ConfigError
from raybio.core.interfaces import Encoder
from raybio.methods import METHODS
from raybio.methods.mtb_mccl.documents.demo import SIMULATED_DOCUMENTS
from raybio.methods.sppt.link_retrieval import embedding_scores, rank_links
from raybio.methods.sppt.proteins.config import EncoderConfig
from raybio.methods.sppt.proteins.encoder import build_protein_encoder
from raybio.ops.contrastive import info_nce
from raybio.ops.nearest import nearest
from raybio.runtime.search.faiss_package import describe_faiss, load_faiss, num_gpus
from raybio.runtime.search.searcher import Searcher
from raybio.training.collective import SingleProcess
from raybio.training.embed import embed_rows
from raybio.training.micro_batches import reads_packed
from raybio.training.precision import Precision, embedding_precision


def machine(bench: Bench) -> None:
    """Rates of a matrix product and of copies, and what the device is."""
    num_bytes = bench.size.copied_bytes
    pinned = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=bench.is_gpu)
    there = torch.empty_like(pinned, device=bench.device)
    other = torch.empty_like(there)
    copy_seconds = bench.median_seconds(lambda: other.copy_(there))
    upload_seconds = bench.median_seconds(lambda: there.copy_(pinned, non_blocking=True))
    properties = torch.cuda.get_device_properties(bench.device) if bench.is_gpu else None
    bench.report(
        "machine",
        cuda=torch.version.cuda,
        properties=str(properties) if properties else None,
        gemm_tflops_bf16=bench.gemm_flop_per_second(torch.bfloat16) / 1e12,
        gemm_tflops_fp32=bench.gemm_flop_per_second(torch.float32) / 1e12,
        device_copy_gb_per_second=2 * num_bytes / 1e9 / copy_seconds,
        host_to_device_gb_per_second=num_bytes / 1e9 / upload_seconds,
    )


DEEP = 24
"""Encoders of more layers have an eighth of the tokens, since all activations of a step are kept, and are not compiled,
which takes minutes.
"""

LAYOUTS = {
    "padded": {"packing": False, "compiled": False},
    "packed": {"packing": True, "compiled": False},
    "packed, compiled": {"packing": True, "compiled": True},
}


def steps(bench: Bench, *, compiled: bool = False) -> None:
    """Real tokens a second and MFU of whole steps: micro-batches, both losses, clipping, AdamW."""
    gemm = bench.gemm_flop_per_second(torch.bfloat16)
    cases = [("BERT-base", bench.size.encoder, length) for length in bench.size.lengths]
    cases += [(name, config, bench.size.lengths[-1]) for name, config in bench.size.large.items()]
    layouts = [name for name, options in LAYOUTS.items() if compiled or not options["compiled"]]
    for name, config, length in cases:
        is_deep = config.num_layers > DEEP
        for layout in layouts:
            if not (is_deep and LAYOUTS[layout]["compiled"]):
                num_tokens = bench.size.tokens_per_step // (8 if is_deep else 1)
                _protein_steps(bench, name, config, length, num_tokens, layout, gemm)
    with tempfile.TemporaryDirectory() as folder:
        for name, case in bench.size.methods.items():
            demo = method_step(Path(folder), case)
            batch = demo.batch(1)
            model = demo.system.model.to(bench.device).train()
            for layout in layouts:
                make_step = partial(bench.step, demo.system, batch, **LAYOUTS[layout])
                _report_step(bench, name, layout, model, batch, make_step, gemm)


def method_step(folder: Path, case: MethodCase) -> DemoStep:
    """Build a method over its built-in corpus, which is prepared in the folder."""
    store = None
    if case.documents is not None:
        store = SIMULATED_DOCUMENTS.prepare(folder, case.documents).path
    return DemoStep(case.method, folder, store, **case.settings)


def _protein_steps(
    bench: Bench,
    name: str,
    config: EncoderConfig,
    length: int,
    num_tokens: int,
    layout: str,
    gemm: float,
) -> None:
    encoder = build_protein_encoder(config, seed=0).to(bench.device)
    batch = bench.protein_batch(encoder, length, num_tokens)
    make_step = partial(bench.protein_step, encoder, batch, **LAYOUTS[layout])
    _report_step(bench, name, layout, encoder, batch, make_step, gemm)


def _report_step(
    bench: Bench,
    name: str,
    layout: str,
    encoder: Encoder,
    batch: TokenBatch,
    make_step: Callable[[], RepeatedStep],
    gemm: float,
) -> None:
    try:
        step = make_step()
        first_seconds = bench.seconds(step)
        seconds = bench.seconds_of_step(step)
    # Such as an encoder that cannot be compiled: the other layouts are still worth their time.
    except Exception as error:
        bench.report("training step", encoder=name, layout=layout, failed=f"{error!r:.500}")
        return
    num_tokens = len(batch.token_T)
    bench.report(
        "training step",
        encoder=name,
        layout=layout,
        precision="bf16",
        first_step_seconds=first_seconds,
        longest=int(batch.length_R.max()),
        real_tokens=num_tokens,
        real_tokens_per_second=num_tokens / seconds,
        mfu=flop_of_step(encoder, batch) / seconds / gemm,
        peak_gib=bench.peak_gib(step),
    )


def kernels(bench: Bench) -> None:
    """Kernels of a packed step, the share of the time without any, and the ten kinds that take longest."""
    encoder = build_protein_encoder(bench.size.encoder, seed=0).to(bench.device)
    step = bench.protein_step(encoder, bench.protein_batch(encoder, bench.size.lengths[-1]))
    step(2)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.is_gpu else [])]
    with profile(activities=activities) as profiler:
        step(STEPS_PER_GROUP)
        bench.synchronize()
    if bench.is_gpu:
        events = [event for event in profiler.events() if event.device_type == DeviceType.CUDA]
    else:  # operations that no other operation calls
        events = [event for event in profiler.events() if event.cpu_parent is None]
    spans = sorted((event.time_range.start, event.time_range.end) for event in events)
    microseconds = Counter[str]()
    for event in events:
        microseconds[event.name] += event.time_range.elapsed_us()
    bench.report(
        "kernels",
        kernels=round(len(events) / STEPS_PER_GROUP),
        idle_share=idle_share(spans),
        longest_ms={
            name[:80]: round(us / 1000 / STEPS_PER_GROUP, 3)
            for name, us in microseconds.most_common(10)
        },
    )


def idle_share(spans: list[tuple[float, float]]) -> float:
    """Return the share of the time from first start to last end that no (start, end) covers."""
    covered = 0.0
    last_end = spans[0][0]
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, last_end))
        last_end = max(last_end, end)
    return 1 - covered / (last_end - spans[0][0])


def caching(bench: Bench) -> None:
    """Time and memory of gradient caching over those of our own step without it."""
    length = bench.size.lengths[0]
    seconds = []
    memory = []
    for is_cached in (False, True):
        encoder = build_protein_encoder(bench.size.encoder, seed=0).to(bench.device)
        batch = bench.protein_batch(encoder, length)
        step = bench.protein_step(encoder, batch, caching=is_cached)
        seconds.append(bench.seconds_of_step(step))
        memory.append(bench.peak_gib(step))
    bench.report(
        "gradient caching",
        precision="bf16",
        max_length=length,
        time_ratio=seconds[1] / seconds[0],
        peak_gib_plain=memory[0],
        peak_gib_cached=memory[1],
    )


def feeding(bench: Bench) -> None:
    """Tokens that a core collates, for each method on its built-in corpus; ``steps`` says what the device takes."""
    num_steps = bench.size.num_steps
    with tempfile.TemporaryDirectory() as folder:
        for name in METHODS:
            demo = DemoStep(name, Path(folder))
            demo.batch(0)
            started = time.process_time()
            num_tokens = sum(len(demo.batch(step).token_T) for step in range(1, 1 + num_steps))
            rate = num_tokens / (time.process_time() - started)
            is_packed = reads_packed(demo.system.model, torch.device("cuda"))
            bench.report("feeding", method=name, tokens_per_core_second=rate, packed=is_packed)


def evaluation(bench: Bench) -> None:
    """Link retrieval of one encoder that encodes in fp32, TF32 and bf16, and how long each takes.

    The first steps of training draw the encoder's rows apart: those of drawn weights nearly tie.
    """
    with tempfile.TemporaryDirectory() as folder:
        demo = DemoStep("sppt_protein", Path(folder), **bench.size.evaluation)
        assert demo.system.evaluate is not None
        model = demo.system.model.to(bench.device)
        take_step = bench.train_step(demo.system)
        for number in range(5 * bench.size.num_steps):
            take_step(number, demo.batch(number))
        model.eval()
        expected: dict[str, float] = {}
        for name in ("fp32", "tf32", "bf16"):
            with torch.no_grad(), embedding_precision(Precision(name, bench.device.type)):
                if bench.is_gpu:  # a first call loads kernels
                    demo.system.evaluate(model, SingleProcess())
                    bench.synchronize()
                started = time.perf_counter()
                metrics = dict(demo.system.evaluate(model, SingleProcess()))
                seconds = time.perf_counter() - started
            lraps = {key: value for key, value in metrics.items() if "lrap" in key}
            expected = expected or lraps
            off = max(abs(lraps[key] - expected[key]) for key in expected)
            bench.report(
                "evaluation",
                precision=name,
                seconds=seconds,
                lrap_off=off,
                is_within_a_thousandth=off <= 1e-3,
                **lraps,
            )


def evaluation_at_size(bench: Bench) -> None:
    """Encode proteins of a large graph in bf16 and rank their links; both take time between two evaluations."""
    num_nodes = bench.size.evaluated_nodes
    encoder = build_protein_encoder(bench.size.encoder, seed=0).to(bench.device)
    longest = 350 if bench.is_gpu else 32
    proteins = link_batch(encoder, -(-num_nodes // 3), longest)
    indptr_R1 = proteins.indptr_R1.numpy()
    num_tokens = int(indptr_R1[num_nodes])

    def read(row_N: np.ndarray) -> TokenBatch:
        # Rows are read in order.
        tokens = slice(int(indptr_R1[row_N[0]]), int(indptr_R1[row_N[-1] + 1]))
        return TokenBatch(
            proteins.token_T[tokens],
            torch.from_numpy(indptr_R1[row_N[0] : row_N[-1] + 2] - indptr_R1[row_N[0]]),
            proteins.label_T[tokens],
        )

    def embed() -> torch.Tensor:
        with embedding_precision(Precision("bf16", bench.device.type)):
            return embed_rows(
                encoder,
                read,
                np.arange(num_nodes),
                SingleProcess(),
                max_tokens=bench.size.tokens_per_micro_batch,
            )

    embedding_ND = embed()
    encode_seconds = bench.seconds(embed)
    group_N = np.arange(num_nodes) // bench.size.nodes_per_group
    rng = np.random.default_rng(0)
    indptr = np.arange(num_nodes + 1) * 12
    indices = (
        np.repeat(group_N, 12) * bench.size.nodes_per_group
        + rng.integers(bench.size.nodes_per_group, size=indptr[-1])
    ).clip(max=num_nodes - 1)

    def rank() -> object:
        in_group = embedding_scores(embedding_ND, "euclidean")
        return rank_links(in_group, indptr, indices, group_N=group_N)

    rank()
    bench.report(
        "evaluation at size",
        nodes=num_nodes,
        tokens=num_tokens,
        encode_seconds=encode_seconds,
        tokens_per_second=num_tokens / encode_seconds,
        rank_seconds=bench.seconds(rank),
    )


def contrast(bench: Bench) -> None:
    """Time and memory of the tiled contrastive loss, forward and backward."""
    num_pairs = bench.size.contrasted_pairs
    width = bench.size.encoder.width
    anchor_ND = torch.randn(num_pairs, width, device=bench.device, requires_grad=True)
    candidate_ND = torch.randn(num_pairs, width, device=bench.device, requires_grad=True)
    index_N = torch.arange(num_pairs, device=bench.device)

    def step() -> None:
        anchor_ND.grad = None
        candidate_ND.grad = None
        info_nce(anchor_ND, candidate_ND, index_N, temperature=0.05).backward()

    seconds = bench.median_seconds(step)
    bench.report(
        "contrastive loss",
        pairs=num_pairs,
        width=width,
        seconds=seconds,
        peak_gib=bench.peak_gib(step),
    )


def search(bench: Bench) -> None:
    """Neighbors that faiss finds on the GPU, against exact ones; left out where faiss or its GPU is missing."""
    try:
        faiss = load_faiss()
    except ConfigError as error:
        bench.report("search", left_out=str(error))
        return
    if bench.is_gpu and not num_gpus(faiss):
        bench.report("search", left_out=f"{describe_faiss(faiss)}; want faiss-gpu")
        return
    width = 384
    k = 10
    generator = torch.Generator().manual_seed(0)
    vector_ND = torch.randn(bench.size.searched_rows, width, generator=generator)
    query_QD = torch.randn(1000, width, generator=generator)
    for metric in ("cosine", "euclidean"):
        if metric == "cosine":
            vector_ND = torch.nn.functional.normalize(vector_ND)
            query_QD = torch.nn.functional.normalize(query_QD)
        searcher = Searcher(faiss, vector_ND.numpy(), metric, None, use_gpu=True)
        found_QK = searcher.search(query_QD.numpy(), k)[1]
        exact = nearest(query_QD.to(bench.device), vector_ND.to(bench.device), k, metric=metric)
        pairs = zip(found_QK.tolist(), exact.index_QK.tolist(), strict=True)
        recall = sum(len({*found} & {*true}) for found, true in pairs) / found_QK.size
        seconds = bench.median_seconds(partial(searcher.search, query_QD.numpy(), k), repeats=3)
        bench.report(
            "search",
            metric=metric,
            rows=len(vector_ND),
            width=width,
            faiss=describe_faiss(faiss),
            recall=recall,
            queries_per_second=len(query_QD) / seconds,
        )
        if recall < 0.999:
            raise CheckError(f"search by {metric}: recall@{k} is {recall:.4f}, want 0.999")


class OneOf(SingleProcess):
    """A worker that is alone in doing its share: the first of ``world``."""

    def __init__(self, world: int) -> None:
        self.world = world


def retrieval(bench: Bench) -> None:
    """Exact link retrieval of some anchors against all rows, beside a plain top-100 search of the same pairs."""
    num_rows = bench.size.retrieval_rows
    num_anchors = bench.size.retrieval_anchors
    width = bench.size.encoder.width
    small_ND = torch.randn(2000, width, device=bench.device)
    links = random_links(2000, 2000)
    here, there = (
        rank_links(embedding_scores(row_ND, "euclidean"), *links)
        for row_ND in (small_ND, small_ND.cpu())
    )
    assert abs(here.lrap - there.lrap) < 1e-6, "this device and the CPU disagree on link retrieval"

    embedding_ND = torch.randn(num_rows, width, device=bench.device)
    indptr, indices = random_links(num_rows, num_anchors)
    share = OneOf(num_rows // num_anchors)
    for dtype in (torch.float64, torch.float32):

        def retrieve(dtype: torch.dtype = dtype) -> object:
            in_group = embedding_scores(embedding_ND, "euclidean", dtype)
            return rank_links(in_group, indptr, indices, collective=share)

        def search(dtype: torch.dtype = dtype) -> None:
            row_ND = embedding_ND.to(dtype)
            for block_BD in row_ND[:num_anchors].split(1024):
                (block_BD @ row_ND.T).topk(min(100, num_rows), dim=1)

        retrieve()
        seconds = bench.seconds(retrieve)
        bench.report(
            "link retrieval",
            anchors=num_anchors,
            rows=num_rows,
            width=width,
            scores=str(dtype).removeprefix("torch."),
            seconds=seconds,
            pairs_per_second=num_anchors * num_rows / seconds,
            top_100_search_seconds=bench.median_seconds(search, repeats=3),
            peak_gib=bench.peak_gib(retrieve),
        )


def random_links(
    num_rows: int, num_anchors: int, links_per_anchor: int = 12
) -> tuple[np.ndarray, np.ndarray]:
    """Links of the first ``num_anchors`` rows; 12 is the mean degree of the Tree-of-life graph."""
    indptr = np.minimum(np.arange(num_rows + 1), num_anchors) * links_per_anchor
    return indptr, np.random.default_rng(0).integers(num_rows, size=indptr[-1])
