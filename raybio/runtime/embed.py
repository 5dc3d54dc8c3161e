"""Bulk embedding of a FASTA file by Ray Data: resumable, in bounded memory, one Parquet file in the end.

The input is cut into parts; a part that is embedded is committed as a file of its own. The same command again embeds
only the parts that are missing. The parts lie beside the output, in a folder that must be seen by all workers.

Shape letters: R sequences of a part, D embedding width.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from raybio.batches import IGNORED_LABEL, TokenBatch
from raybio.data.fasta import read_fasta
from raybio.data.quarantine import Quarantine
from raybio.encoders.protein import EncoderConfig, ProteinEncoder, build_protein_encoder
from raybio.errors import ConfigError, DataError, StoreError
from raybio.runtime.cluster import connected
from raybio.runtime.run_folder import RunFolder, read_recomputable, write_json
from raybio.training.encode import embed_rows
from raybio.training.gather import SingleProcess

MAX_TOKENS_AT_ONCE = 16_384
_DIGEST_KEY = b"raybio"


@dataclass(frozen=True)
class Model:
    """An exported encoder and how it is used.

    Attributes:
        folder: as ``save_pretrained`` writes it.
        pooling: ``cls`` or ``mean``.
        max_length: tokens of a sequence, special ones included; longer ones lose their end. None: the encoder's own.
    """

    folder: str
    pooling: str
    max_length: int | None = None

    @classmethod
    def of_run(cls, runs: Path, name: str) -> "Model":
        """The exported model of a finished run.

        Raises:
            ConfigError: if there is no such run, or it has not finished.
        """
        folder = RunFolder(runs, name)
        identity = folder.read_identity()
        if identity is None or not (folder.export / "config.json").exists():
            raise ConfigError(f"--run {name}: {folder.export} holds no model; want a finished run. Is --runs right?")
        config = identity["config"]
        return cls(str(folder.export), config["encoder"]["pooling"], config["input"]["max_length"])


@dataclass(frozen=True)
class EmbedSummary:
    """What was done: sequences in the output, parts embedded now and found finished, bad records set aside."""

    num_rows: int
    num_parts: int
    num_parts_found: int
    quarantine: dict[str, Any]


def embed_fasta(
    model: Model,
    fasta: Path,
    out: Path,
    *,
    rows_per_part: int = 4096,
    workers: int = 1,
    cpus_per_worker: float | None = None,
    use_gpu: bool | None = None,
    strip_stop: bool = False,
    max_bad_share: float = 0.1,
    verbose: bool = False,
) -> EmbedSummary:
    """Embed every good record of ``fasta`` into ``out``: columns ``key`` and ``embedding`` (D float32), in file order.

    Raises:
        ConfigError: if the model cannot be loaded.
        DataError: if the input is missing or no FASTA.
        StoreError: if ``out`` or its parts come from another model or input.
    """
    order: dict[str, Any] = {"model": asdict(model), "weights": _digest_of_model(model)}
    order |= {"input": _digest_of_file(fasta), "rows_per_part": rows_per_part, "strip_stop": strip_stop}
    digest = hashlib.sha256(json.dumps(order, sort_keys=True).encode()).hexdigest()
    parts = out.with_name(out.name + ".parts")
    if out.exists():
        return _existing(out, digest)
    quarantine = Quarantine(max_bad_share)
    records = read_fasta(fasta, quarantine, strip_stop=strip_stop)
    prepared = _prepare_parts(parts, records, quarantine, digest, rows_per_part)
    missing = [number for number in range(prepared["num_parts"]) if not _output(parts, number).exists()]
    if missing:
        with connected(workers, cpus_per_worker, use_gpu=use_gpu, verbose=verbose) as resources:
            _embed_parts(model, parts, missing, resources)
    num_rows = _join(parts, prepared["num_parts"], out, digest)
    shutil.rmtree(parts)
    num_found = prepared["num_parts"] - len(missing)
    return EmbedSummary(num_rows, prepared["num_parts"], num_found, prepared["quarantine"])


def _embed_parts(model: Model, parts: Path, missing: list[int], resources: Any) -> None:
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
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

    def __init__(self, model: Model, parts: str, threads: int | None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.parts, self.device = Path(parts), "cuda" if torch.cuda.is_available() else "cpu"
        self.encoder, self.max_tokens = load_encoder(model)
        self.encoder.to(self.device)

    def __call__(self, batch: pa.Table) -> pa.Table:
        for number in batch.column("part").to_pylist():
            table = pa.ipc.open_file(pa.memory_map(str(_input(self.parts, number)))).read_all()
            embedding_RD = embed_sequences(self.encoder, table.column("sequence").to_pylist(), self.max_tokens)
            values = pa.array(embedding_RD.reshape(-1), pa.float32())
            column = pa.FixedSizeListArray.from_arrays(values, embedding_RD.shape[1])
            _commit_table(pa.table({"key": table.column("key"), "embedding": column}), _output(self.parts, number))
        return batch


def load_encoder(model: Model) -> tuple[ProteinEncoder, int]:
    """The encoder in evaluation mode, and how many tokens of a sequence it is given."""
    config = EncoderConfig.from_mapping({"source": model.folder, "pooling": model.pooling})
    encoder = build_protein_encoder(config, seed=0).eval()
    return encoder, min(model.max_length or encoder.max_tokens, encoder.max_tokens)


def embed_sequences(encoder: ProteinEncoder, sequences: list[bytes], max_tokens: int) -> np.ndarray:
    """Embeddings (R, D), float32, of upper-case residue letters."""
    vocabulary = encoder.vocabulary
    kept = max_tokens - vocabulary.num_special_per_sequence
    token_lists = [vocabulary.encode(sequence[:kept]).astype(np.int64) for sequence in sequences]

    def read(row_M: np.ndarray) -> TokenBatch:
        token_T = torch.from_numpy(np.concatenate([token_lists[row] for row in row_M]))
        length_M = [len(token_lists[row]) for row in row_M]
        indptr_M1 = torch.from_numpy(np.concatenate([[0], np.cumsum(length_M)]))
        return TokenBatch(token_T, indptr_M1, torch.full_like(token_T, IGNORED_LABEL))

    rows = np.arange(len(sequences))
    return embed_rows(encoder, read, rows, SingleProcess(), max_tokens=MAX_TOKENS_AT_ONCE).cpu().numpy()


def _prepare_parts(
    parts: Path, records: Iterator[pa.RecordBatch], quarantine: Quarantine, digest: str, rows_per_part: int
) -> dict[str, Any]:
    """Cut the input into files that workers can map; the manifest is written last."""
    manifest = read_recomputable(parts / "manifest.json")
    if manifest is not None:
        if manifest["digest"] != digest:
            raise StoreError(
                f"{parts} holds parts of another model, input or part size. Choose another --out, or delete that folder"
            )
        return dict(manifest)
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir(parents=True)
    num_parts = 0
    for table in _tables(records, rows_per_part):
        with pa.OSFile(str(_input(parts, num_parts)), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        num_parts += 1
    quarantine.check("protein")
    if num_parts == 0:
        raise DataError(f"no good record in the input, want at least one protein: {quarantine.summary()}")
    content = {"digest": digest, "num_parts": num_parts, "quarantine": quarantine.summary()}
    write_json(parts / "manifest.json", content)
    return content


def _tables(records: Iterator[pa.RecordBatch], rows_per_part: int) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    num_waiting = 0
    for batch in records:
        waiting.append(pa.Table.from_batches([batch]).select(["key", "sequence"]))
        num_waiting += len(batch)
        while num_waiting >= rows_per_part:
            table = pa.concat_tables(waiting)
            yield table.slice(0, rows_per_part).combine_chunks()
            waiting, num_waiting = [table.slice(rows_per_part)], num_waiting - rows_per_part
    if num_waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def _join(parts: Path, num_parts: int, out: Path, digest: str) -> int:
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    schema = pq.read_schema(_output(parts, 0)).with_metadata({_DIGEST_KEY: digest.encode()})
    num_rows = 0
    with pq.ParquetWriter(temporary, schema) as writer:
        for number in range(num_parts):
            table = pq.read_table(_output(parts, number)).replace_schema_metadata(schema.metadata)
            writer.write_table(table)
            num_rows += table.num_rows
    os.replace(temporary, out)
    return num_rows


def _existing(out: Path, digest: str) -> EmbedSummary:
    metadata = pq.read_schema(out).metadata or {}
    if metadata.get(_DIGEST_KEY, b"").decode() != digest:
        raise StoreError(f"{out} exists and comes from another model or input. Choose another --out, or delete it")
    return EmbedSummary(pq.read_metadata(out).num_rows, 0, 0, {})


def _commit_table(table: pa.Table, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    pq.write_table(table, temporary)
    os.replace(temporary, path)


def _input(parts: Path, number: int) -> Path:
    return parts / f"input-{number:06d}.arrow"


def _output(parts: Path, number: int) -> Path:
    return parts / f"part-{number:06d}.parquet"


def _digest_of_model(model: Model) -> str:
    files = sorted(Path(model.folder).glob("*.safetensors")) + [Path(model.folder) / "config.json"]
    if len(files) < 2:
        raise ConfigError(f"{model.folder}: no safetensors file in it; want a folder that save_pretrained wrote")
    return "".join(_digest_of_file(path) for path in files)


def _digest_of_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
