"""The sections of the model card that describe a run: scores, training, data, license, citation."""

import math
import platform
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from raybio.core.errors import StorageError, StoreError
from raybio.core.final_report import FinalReport
from raybio.core.interfaces import System
from raybio.core.location import is_uri, location
from raybio.core.markdown import markdown_table
from raybio.core.table_layout import TableLayout
from raybio.core.version import VERSION
from raybio.encoders.model_card import inherited_metadata, license_sentence
from raybio.methods import METHODS
from raybio.runtime.run.cost import cost_of, hours_in_words
from raybio.runtime.run.folder import RunFolder
from raybio.runtime.run.notices import read_starts
from raybio.store.store import open_store
from raybio.training.settings import TrainingConfig

_VERSIONS = ("torch", "transformers", "ray")


def run_card(
    folder: RunFolder,
    system: System,
    config: TrainingConfig,
    *,
    step: int,
    precision: str,
    metrics: Mapping[str, float],
    report: FinalReport | None = None,
) -> dict[str, Any]:
    """Return the sections of the card of a run's model, for ``System.export``.

    Args:
        folder: the run's folder.
        system: the run's system, with the exported weights.
        config: the run's configuration.
        step: step of these weights.
        precision: precision of the run.
        metrics: metrics of these weights.
        report: their final evaluation; None if there is none, as for trials.
    """
    store_name, data = _data(folder, system)
    header, base_model = _base_model(folder)
    card: dict[str, Any] = {"name": folder.name, "metadata": header}
    if report is not None:
        layout = METHODS[system.name].table.shown(report.scores.values())
        index = _model_index(folder.name, report, layout, store_name, system.data_digest)
        if index:
            header["model-index"] = index
        card["Evaluation"] = _evaluation(report, layout)
    card["Training"] = _training(folder, system, step, precision)
    card["Data"] = data
    card["License and base model"] = base_model
    card["Citation"] = _citation(system.name)
    card["Metrics"] = dict(metrics)
    card["Configuration"] = _without_local_paths(config.to_mapping())
    return card


def _model_index(
    name: str, report: FinalReport, layout: TableLayout, store_name: str, digest: str
) -> list[dict[str, Any]]:
    """Return the hub's ``model-index``: the trained model's scores with their intervals."""
    results = []
    for split, scores in report.scores.get("trained", {}).items():
        if split not in layout.compared:
            continue
        metrics = []
        for key, title in layout.measures.items():
            score = scores.get(key)
            if score is None or math.isnan(score["value"]):
                continue
            metric: dict[str, Any] = {"type": key, "name": title, "value": float(score["value"])}
            # The hub does not accept YAML's NaN.
            if not math.isnan(score.get("low", math.nan)):
                metric["args"] = {
                    "low": float(score["low"]),
                    "high": float(score["high"]),
                    "confidence": 0.95,
                }
            metrics.append(metric)
        if metrics:
            results.append(
                {
                    "task": {"type": "feature-extraction", "name": layout.title},
                    "dataset": {
                        "type": store_name,
                        "name": f"{store_name}, {layout.splits[split]}",
                        "split": split,
                        "revision": digest.split()[0],
                    },
                    "metrics": metrics,
                }
            )
    return [{"name": name, "results": results}] if results else []


def _evaluation(report: FinalReport, layout: TableLayout) -> str:
    parts = []
    for split, heading in layout.splits.items():
        rows = []
        for stage, scores_by_split in report.scores.items():
            scores = scores_by_split.get(split, {})
            cells = [
                layout.cell(scores[key], key) if key in scores else "" for key in layout.measures
            ]
            if any(cells):
                rows.append([stage, *cells])
        if rows:
            size = f": {report.sizes[split]}" if split in report.sizes else ""
            table = markdown_table(["model", *layout.measures.values()], rows)
            parts.append(f"{layout.title}, {heading}{size}\n\n{table}")
    percent = [name for key, name in layout.measures.items() if key not in layout.plain]
    legend = "95 % bootstrap intervals over units, one seed"
    if percent:
        legend += f"; {', '.join(percent)} in %"
    return "\n\n".join([*parts, f"{legend}. Chance: {layout.chance}."])


def _training(folder: RunFolder, system: System, step: int, precision: str) -> str:
    method = METHODS[system.name]
    launch = folder.read_launch()
    workers = launch.get("workers") or 1
    threads = launch.get("threads_per_worker")
    device = next(system.model.parameters()).device
    hardware = f"{workers} worker" + ("s" if workers > 1 else "")
    if device.type == "cuda":
        hardware += f", a GPU each: {torch.cuda.get_device_name(device)}"
    else:
        hardware += f", {threads} threads each: " if threads else ": "
        hardware += _cpu_name()
    cost = cost_of(folder, until_ms=int(time.time() * 1000))
    hours = "not known"
    if cost is not None:
        hours = hours_in_words(cost.worker_hours, cost.device)
        if read_starts(folder.notices)[0]["first_step"] > 0:
            # A worker on another machine may lack the log of earlier starts.
            hours = f"at least {hours}"
    versions = [f"{package} {metadata.version(package)}" for package in _VERSIONS]
    rows = [
        ["method", f"`{system.name}`: {method.about}"],
        ["weights", f"of step {step:,}"],
        ["precision", precision],
        ["hardware", hardware],
        ["time", hours],
        ["software", ", ".join([f"raybio {VERSION}", *versions])],
    ]
    return markdown_table(["", ""], rows, num_left=2)


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _data(folder: RunFolder, system: System) -> tuple[str, str]:
    """Return the name of the store, and the section about it."""
    identity = folder.read_identity()
    assert identity is not None
    store_path = location(identity["store"])
    try:
        store = open_store(store_path, digest=identity["data_digest"])
    except (StoreError, StorageError):
        # The store may have been replaced during the training, which is no reason to lose the
        # model.
        return store_path.name, (
            f"Store `{store_path.name}`. Digest: {system.data_digest}\n\nThis store could not be "
            "opened when the card was written, so its sources are not listed."
        )
    lines = [
        f"Store `{store.location.name}` ({store.manifest['kind']}), "
        f"{store.num_rows:,} rows. Digest: {system.data_digest}"
    ]
    rows = [
        [role, source["name"], f"{source['bytes']:,}", f"`{source['sha256']}`"]
        for role, source in store.manifest.get("sources", {}).items()
    ]
    if rows:
        lines.append(markdown_table(["source", "file", "bytes", "sha256"], rows, num_left=2))
    return store.location.name, "\n\n".join(lines)


def _base_model(folder: RunFolder) -> tuple[dict[str, Any], str]:
    """Return header entries, and the section about license and base model."""
    encoder = folder.encoder
    if encoder is None:
        return {}, f"The weights began random. {license_sentence({})}"
    is_on_hub = "commit" in encoder
    header = inherited_metadata(encoder["source"], encoder["revision"], is_on_hub=is_on_hub)
    if is_on_hub:
        base = f"Base model: `{encoder['source']}`, commit `{encoder['commit']}`."
    else:
        name = Path(encoder["source"]).expanduser().name
        base = f"Base model: folder `{name}`, sha256 of its weights `{encoder['sha256']}`."
        if "base_model" in header:
            base += f" It began as `{header['base_model']}`."
    return header, f"{base} {license_sentence(header)} The data may have terms of its own."


def _citation(method: str) -> str:
    lines = [f"- The raybio authors. *raybio*, version {VERSION}."]
    if METHODS[method].citation:
        lines.append(f"- {METHODS[method].citation}")
    return "\n".join(lines)


def _without_local_paths(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with folders of sources reduced to names: a card is published."""
    encoder = config.get("encoder", {})
    source = encoder.get("source")
    if source is None or not (is_uri(source) or Path(source).expanduser().is_dir()):
        return config
    return config | {"encoder": encoder | {"source": Path(source).expanduser().name}}
