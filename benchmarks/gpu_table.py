"""The table of what ``gpu_acceptance.py`` printed on a GPU, kept in ``gpu_results.jsonl``, for RESULTS.md."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from raybio.core.markdown import markdown_table

STORED = Path(__file__).parent / "gpu_results.jsonl"

GOALS = {
    "BERT-base": "0.70 M tokens/s, MFU 0.45",
    "ESM-2 35M": "MFU 0.25",
    "ESM-2 650M": "MFU 0.50",
    "biostransformers": "MFU 0.30",
    "mtb_pretrain, 512 tokens": "MFU 0.30",
}
"""Goals of training steps, set for an H200."""

LAYOUTS = ("padded", "packed", "packed, compiled")

Line = Mapping[str, Any]


def gpu_section(text: str) -> str:
    """Return the Markdown of the lines that the script printed, by device; of equal steps the last counts."""
    by_device: dict[str, list[Line]] = {}
    for one in text.splitlines():
        if one.startswith("{"):
            line = json.loads(one)
            by_device.setdefault(f"{line['device']}, torch {line['torch']}", []).append(line)
    parts = [
        "## One GPU",
        "What `gpu_acceptance.py` printed. The goals were set for an H200. README.md next to this file says what "
        "explains the misses. `commit` is the code that was measured. Training steps are in bf16, with micro-batches "
        "of 32,768 tokens (raybio's default: 16,384): thousands of real tokens a second, and MFU.",
    ]
    for device, lines in by_device.items():
        parts += [f"### {device}", *device_parts(lines)]
    return "\n\n".join(parts) + "\n"


def device_parts(all_lines: list[Line]) -> Iterable[str]:
    lines = [line for line in all_lines if "failed" not in line]
    yield steps_table(line for line in lines if line["name"] == "training step")
    yield markdown_table(["what", "goal", "measured", "commit"], list(other_rows(lines)))
    for line in all_lines:
        if "failed" in line:
            yield f"- `{line['name']}` failed: {line['failed']}"


def steps_table(lines: Iterable[Line]) -> str:
    cells: dict[tuple[str, int, int, str], dict[str, str]] = {}
    for line in lines:
        key = line["encoder"], line["longest"], line["real_tokens"], line["commit"]
        rate = f"{line['real_tokens_per_second'] / 1000:.0f} ({line['mfu']:.2f})"
        cells.setdefault(key, {})[line["layout"]] = rate
    rows = [
        [
            name,
            str(longest),
            f"{tokens:,}",
            *(by_layout.get(layout, "") for layout in LAYOUTS),
            GOALS.get(name, ""),
            commit,
        ]
        for (name, longest, tokens, commit), by_layout in cells.items()
    ]
    header = ["encoder", "longest", "tokens a step", *LAYOUTS, "goal", "commit"]
    return markdown_table(header, rows)


def other_rows(lines: list[Line]) -> Iterable[list[str]]:
    by_name: dict[str, list[Line]] = {}
    for line in lines:
        name = line["name"]
        if line.get("compiled"):
            name += ", compiled"
        by_name.setdefault(name, []).append(line)
    for name, describe in DESCRIPTIONS.items():
        commits = sorted({line["commit"] for line in by_name.get(name, [])})
        for what, goal, measured in describe(by_name.get(name, [])):
            yield [what, goal, measured, ", ".join(commits)]


def _packing(lines: list[Line]) -> Iterable[tuple[str, str, str]]:
    if lines:
        worst = max(line["off"] for line in lines if line["precision"] == "fp32")
        half = max(line["off"] / line["padded_off"] for line in lines if "padded_off" in line)
        measured = f"{worst:.1g} at most; in bf16 {half:.2f} times padded ones' distance from fp32"
        yield "gradients of packed and cached sequences against padded ones, fp32", "1e-3", measured


def _methods(lines: list[Line]) -> Iterable[tuple[str, str, str]]:
    if lines:
        loss = max(line["loss_off"] for line in lines)
        score = max(line["score_off"] for line in lines)
        total = sum(line["scores"] for line in lines)
        yield (
            f"losses and {total:,} scores of {len(lines)} methods against the CPU's, fp32",
            "1e-3; 0.01",
            f"{loss:.1g}; {score:.1g}",
        )


def _waits(lines: list[Line]) -> Iterable[tuple[str, str, str]]:
    checked = [line for line in lines if "waits" in line]
    if checked:
        yield (
            f"steps in which the host waits for the GPU, {len(checked)} methods",
            "0",
            str(sum(line["waits"] for line in checked)),
        )


def _kernels(lines: list[Line]) -> Iterable[tuple[str, str, str]]:
    for line in lines:
        what = f"share of a packed step of {line['kernels']:,} kernels in which the GPU is idle"
        yield what, "3 %", f"{100 * line['idle_share']:.0f} %"


def _resume(lines: list[Line]) -> Iterable[tuple[str, str, str]]:
    if lines:
        kind = "compiled" if lines[0]["compiled"] else "eager"
        equal = sum(line["is_equal"] for line in lines)
        yield f"killed and resumed, {kind}", "equal weights", f"{equal} of {len(lines)}"


def _evaluation(lines: list[Line]) -> Iterable[tuple[str, str, str]]:
    for line in lines:
        if line["precision"] == "fp32":
            continue
        what = f"LRAP of links in {line['precision']} against fp32"
        yield what, "1e-3", f"{line['lrap_off']:.1g}"


def _at_size(lines: list[Line]) -> Iterable[tuple[str, str, str]]:
    for line in lines:
        what = f"evaluation of {line['nodes']:,} proteins, {line['tokens'] / 1e6:.0f} M tokens"
        seconds = f"{line['encode_seconds']:.1f} s to encode, {line['rank_seconds']:.1f} s to rank"
        yield what, "12 s", f"{seconds}; {line['tokens_per_second'] / 1e6:.2f} M tokens/s"


def _retrieval(lines: list[Line]) -> Iterable[tuple[str, str, str]]:
    for line in lines:
        shape = f"{line['anchors']:,} × {line['rows']:,} × {line['width']}"
        yield (
            f"exact ranks and average precision of links, {shape}, {line['scores']}",
            "0.4 s",
            f"{line['seconds']:.1f} s; a search of the nearest 100: {line['top_100_search_seconds']:.2f} s",
        )


def _contrast(lines: list[Line]) -> Iterable[tuple[str, str, str]]:
    for line in lines:
        what = f"contrastive loss and gradient, {line['pairs']:,} × {line['width']}, fp32"
        measured = f"{1000 * line['seconds']:.0f} ms, {line['peak_gib']:.1f} GiB"
        yield what, "60 ms, 1.5 GiB", measured


def _caching(lines: list[Line]) -> Iterable[tuple[str, str, str]]:
    for line in lines:
        measured = (
            f"{line['time_ratio']:.2f} times the time, {line['peak_gib_cached']:.0f} of "
            f"{line['peak_gib_plain']:.0f} GiB"
        )
        yield f"gradient caching, crop {line['max_length']}", "1.4 times", measured


def _left_out(what: str, lines: list[Line]) -> Iterable[tuple[str, str, str]]:
    for reason in dict.fromkeys(line["left_out"] for line in lines if "left_out" in line):
        yield what, "", f"left out: {reason}"


def _feeding(lines: list[Line]) -> Iterable[tuple[str, str, str]]:
    for line in lines:
        what = f"tokens that a core collates, {line['method']}"
        layout = "" if line["packed"] else "; read padded"
        yield what, "", f"{line['tokens_per_core_second'] / 1e6:.2f} M tokens/s{layout}"


def _search(lines: list[Line]) -> Iterable[tuple[str, str, str]]:
    for line in lines:
        if "recall" in line:
            shape = f"{line['rows']:,} × {line['width']}"
            what = f"recall@10 of faiss against exact neighbors, {shape}, {line['metric']}"
            speed = f"{line['queries_per_second']:,.0f} queries/s"
            yield what, "0.999", f"{line['recall']:.4f}; {speed}, {line['faiss']}"
    yield from _left_out("neighbors that faiss finds", lines)


def _workers(lines: list[Line]) -> Iterable[tuple[str, str, str]]:
    what = "gradients of two GPUs against those of one, fp32"
    if any("left_out" not in line for line in lines):
        yield what, "1e-4", "passed"
    yield from _left_out(what, lines)


def _machine(lines: list[Line]) -> Iterable[tuple[str, str, str]]:
    for line in lines:
        measured = (
            f"{line['gemm_tflops_bf16']:.0f} TFLOP/s bf16, {line['gemm_tflops_fp32']:.0f} fp32, "
            f"{line['device_copy_gb_per_second'] / 1000:.1f} TB/s"
        )
        yield "matrix product and copy on the device", "", measured


DESCRIPTIONS = {
    "machine": _machine,
    "packing": _packing,
    "methods": _methods,
    "waits": _waits,
    "kernels": _kernels,
    "resume": _resume,
    "resume, compiled": _resume,
    "evaluation": _evaluation,
    "evaluation at size": _at_size,
    "link retrieval": _retrieval,
    "contrastive loss": _contrast,
    "gradient caching": _caching,
    "feeding": _feeding,
    "search": _search,
    "workers": _workers,
}
"""Name of a line -> what its rows of the table are, in their order."""
