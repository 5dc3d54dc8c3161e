"""Bulk embedding of proteins or texts by Ray Data: resumable, in bounded memory.

The input is cut into parts; a part that is embedded is committed as a file of its own. The same
command again verifies the parts that are there and embeds only those that are missing, damaged or
of another model. The parts lie next to the output, in a folder that all workers must see
(``embed_parts``). In the end they become one Parquet file.

Shape letters: R inputs of a part, D embedding width.
"""

import logging
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from raybio.core.errors import ConfigError, DataError
from raybio.core.files import check_writable_file
from raybio.encoders.config import Pooling
from raybio.methods import METHODS
from raybio.runtime.cluster.connection import connected
from raybio.runtime.embed_parts import VERSION, Parts, check_output, cut_of, join
from raybio.runtime.run.folder import RunFolder
from raybio.store.quarantine import Quarantine
from raybio.training.embedding_model import EmbeddingModel, digest_of, digest_of_file
from raybio.training.text_embedding_model import read_text_embedding_model


def model_of_run(runs: Path, name: str) -> EmbeddingModel:
    """Return the exported model of a finished run.

    Raises:
        ConfigError: if there is no such run, it has not finished, or its model embeds no whole
            inputs.
    """
    export = RunFolder(runs, name).export
    if not (export / "config.json").exists():
        raise ConfigError(
            f"--run {name}: {export} holds no model; want a finished run. Is --runs right?"
        )
    return model_of_folder(export)


def model_of_folder(folder: str | Path, pooling: Pooling | None = None) -> EmbeddingModel:
    """Read how the encoder in a folder embeds.

    Args:
        folder: an ``export/``, or any folder that ``save_pretrained`` or sentence_transformers
            wrote.
        pooling: for a folder that does not state it; None: it must.

    Raises:
        ConfigError: if the folder holds no encoder of whole inputs, does not state its pooling and
            ``pooling`` is None, or states another one.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ConfigError(
            f"{folder}: no such folder; want the export/ of a run, or a folder of save_pretrained"
        )
    for method in METHODS.values():
        encoder = method.part_encoder
        if encoder is not None and (path / encoder.settings).is_file():
            raise ConfigError(
                f"{folder}: embeds {encoder.parts} in their context ({encoder.settings}); want an "
                "encoder of whole proteins or texts, such as a run of sppt_protein, sppt_mag, "
                "biostransformers, contrastive_probe or finetune"
            )
    if not [*path.rglob("*.safetensors")]:
        raise ConfigError(
            f"{folder}: no safetensors file in it; want a folder that save_pretrained wrote"
        )
    for method in METHODS.values():
        model = method.read_embedding_model(path, pooling)
        if model is not None:
            return model
    return read_text_embedding_model(path, pooling)


@dataclass(frozen=True)
class EmbedSummary:
    """The result of a bulk embedding.

    Attributes:
        num_rows: inputs in the output.
        num_parts: parts of the input; 0 if the output was already finished.
        num_parts_found: parts that were finished before.
        quarantine: the skipped records by reason.
        cut: one line that says which inputs were cut; empty if none was.
    """

    num_rows: int
    num_parts: int
    num_parts_found: int
    quarantine: dict[str, Any]
    cut: str


def embed_file(
    model: EmbeddingModel,
    source: Path,
    out: Path,
    *,
    rows_per_part: int = 4096,
    workers: int = 1,
    cpus_per_worker: float | None = None,
    use_gpu: bool | None = None,
    strip_stop: bool = False,
    max_bad_share: float = 0.1,
    verbose: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> EmbedSummary:
    """Embed every good record of ``source`` into ``out``.

    The output has columns ``key`` and ``embedding`` (D float32), in the order of the input.

    Args:
        model: the encoder.
        source: FASTA for a model of proteins, ``text_lines`` for one of texts; plain or gzip.
        out: Parquet file.
        rows_per_part: inputs between two commits.
        workers: processes that embed.
        cpus_per_worker: logical CPUs of each; None: an equal share of what there is.
        use_gpu: whether workers have GPUs; None: if there are any.
        strip_stop: remove one ``*`` at a protein's end.
        max_bad_share: maximum fraction of invalid records.
        verbose: show Ray's own logs.
        say: called with warnings about the parts, one line each.

    Raises:
        ConfigError: if the model cannot be loaded, or ``out`` not be written.
        DataError: if the input is missing, or not what the model reads.
        StoreError: if ``out`` comes from another model or input or is damaged, or its parts from
            another input.
    """
    check_writable_file(out)
    if strip_stop and model.reads == "texts":
        raise ConfigError(
            f"--strip-stop is for proteins, and {model.folder} reads texts; leave the option out"
        )
    model_digest = model.digest()
    origin = digest_of(
        {
            "input": digest_of_file(source),
            "reads": model.reads,
            "strip_stop": strip_stop,
            "version": VERSION,
        }
    )
    result = digest_of({"origin": origin, "model": model_digest})
    if out.exists():
        return EmbedSummary(check_output(out, result), 0, 0, {}, cut_of(out))
    parts = Parts(out.with_name(out.name + ".parts"))
    quarantine = Quarantine(max_bad_share)
    tables = partial(_tables, model, source, quarantine, rows_per_part, strip_stop)
    cut_digest = digest_of({"origin": origin, "rows_per_part": rows_per_part})
    kind = "protein" if model.reads == "proteins" else "text"
    manifest = _cut(parts, cut_digest, tables, kind, quarantine, say)
    inputs: list[str] = manifest["inputs"]
    missing = _missing(parts, inputs, model_digest, say)
    if missing:
        with connected(workers, cpus_per_worker, use_gpu=use_gpu, verbose=verbose) as resources:
            _embed_parts(model, parts.folder, missing, resources, verbose=verbose)
    contents = (parts.read_input(number)[0].column("content") for number in range(len(inputs)))
    cut = model.input_lengths(contents, len(inputs)).remark
    num_rows = join(parts, inputs, out, origin=result, model_digest=model_digest, cut=cut)
    shutil.rmtree(parts.folder)
    return EmbedSummary(
        num_rows, len(inputs), len(inputs) - len(missing), manifest["quarantine"], cut
    )


def _cut(
    parts: Parts,
    origin: str,
    tables: Callable[[], Iterator[pa.Table]],
    kind: str,
    quarantine: Quarantine,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Cut the input into files, or verify those that are there; return their manifest."""
    manifest = parts.read_manifest(origin)
    if manifest is not None:
        damaged = parts.damaged_inputs(manifest["inputs"])
        if not damaged:
            return manifest
        say(f"{damaged[0]} is missing or damaged; cutting the input again")
    inputs = parts.cut(tables())
    quarantine.check(kind)
    if not inputs:
        raise DataError(f"no good {kind} in the input, want at least one: {quarantine.summary()}")
    return parts.finish_cut(origin, inputs, quarantine.summary())


def _missing(
    parts: Parts, inputs: list[str], model_digest: str, say: Callable[[str], None]
) -> list[int]:
    """Return the parts that have to be embedded, and say which existing ones are unusable."""
    missing = []
    numbers_by_fault: defaultdict[str, list[int]] = defaultdict(list)
    for number, input_digest in enumerate(inputs):
        if not parts.output(number).exists():
            missing.append(number)
        elif fault := parts.fault(number, input_digest=input_digest, model_digest=model_digest):
            missing.append(number)
            numbers_by_fault[fault].append(number)
    for fault, numbers in numbers_by_fault.items():
        more = f" (and {len(numbers) - 1:,} more)" if len(numbers) > 1 else ""
        say(f"{parts.output(numbers[0])} {fault}{more}; embedding again")
    return missing


def _embed_parts(
    model: EmbeddingModel, parts: Path, missing: list[int], resources: Any, *, verbose: bool
) -> None:
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = verbose
    if not verbose:
        logging.getLogger("ray.data").setLevel(logging.WARNING)
    dataset = ray.data.from_arrow([pa.table({"part": [number]}) for number in missing]).map_batches(
        _EmbedPart,
        fn_constructor_args=(model, str(parts.absolute()), resources.threads_per_worker),
        batch_size=None,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=min(resources.num_workers, len(missing))),
        num_cpus=resources.cpus_per_worker,
        num_gpus=resources.gpus_per_worker or None,
    )
    for _ in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
        pass


class _EmbedPart:
    """A Ray Data actor: loads the model once, then turns input parts into output parts."""

    def __init__(self, model: EmbeddingModel, parts: str, threads: int | None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.parts = Parts(Path(parts))
        self.model = model
        self.encoder = model.load().to("cuda" if torch.cuda.is_available() else "cpu")
        # After loading: a folder that was overwritten since the start gives parts that the driver
        # does not accept.
        self.model_digest = model.digest()

    def __call__(self, batch: pa.Table) -> pa.Table:
        for number in batch.column("part").to_pylist():
            table, input_digest = self.parts.read_input(number)
            embedding_RD = self.model.embed(self.encoder, table.column("content").to_pylist())
            values = pa.array(embedding_RD.reshape(-1), pa.float32())
            column = pa.FixedSizeListArray.from_arrays(values, embedding_RD.shape[1])
            embedded = pa.table({"key": table.column("key"), "embedding": column})
            self.parts.write(
                number, embedded, input_digest=input_digest, model_digest=self.model_digest
            )
        return batch


def _tables(
    model: EmbeddingModel,
    source: Path,
    quarantine: Quarantine,
    rows_per_part: int,
    strip_stop: bool,
) -> Iterator[pa.Table]:
    """Yield key and content (bytes) of the good records, one table for each part."""
    schema = pa.schema([("key", pa.string()), ("content", pa.large_binary())])
    waiting: list[pa.Table] = []
    num_waiting = 0
    for batch in model.read_file(source, quarantine, strip_stop=strip_stop):
        waiting.append(pa.table(batch.columns, schema=schema))
        num_waiting += len(batch)
        while num_waiting >= rows_per_part:
            table = pa.concat_tables(waiting)
            yield table.slice(0, rows_per_part).combine_chunks()
            waiting = [table.slice(rows_per_part)]
            num_waiting -= rows_per_part
    if num_waiting:
        yield pa.concat_tables(waiting).combine_chunks()
