"""Parts of a bulk embedding on disk or in a bucket, each verified before it is used.

    OUT.parts/
        manifest.json          how the input was cut, and the sha256 of each part; written last
        input-000000.arrow     key and content of some records
        part-000000.parquet    key and embedding (D numbers) of the same records
        part-000000.json       sha256 of that part; digests of its input, and of model and format

On a disk, every file is written under another name, forced to the disk and renamed; an object of a
bucket appears whole. A damaged part is embedded again.

One command at a time works on an output: it holds ``OUT.parts/.lock``, in a bucket
``OUT.parts/lease.json`` (``spool/lease``).
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raybio.core.errors import ClusterError, RecordFormatError, StoreError, one_line
from raybio.core.files import atomic_folder, named_failure, replaced_file, try_lock
from raybio.core.location import BucketPath, Location
from raybio.core.records import parse_recomputable, record_text
from raybio.runtime.spool.lease import AN_EMBEDDING, LEASE, Lease, held
from raybio.runtime.whole_files import whole_files
from raybio.store.bucket import BucketFolder
from raybio.store.data_sets import table_files
from raybio.store.table_rows import parquet_batches, parquet_errors

VERSION = 1
"""Version of the embedding itself: outputs and parts of another one are not reused."""

_MANIFEST = "manifest.json"

_LOCK = ".lock"

_NUMBERED = re.compile(r"(?:input|part)-(\d{6,})\.(?:arrow|parquet|json)")

_OUTPUT_NAME = re.compile(r"part-(\d{6,})\.parquet")

_ORIGIN_KEY = b"raybio"
_CUT_KEY = b"raybio.cut"
_MODEL_KEY = b"raybio.model"


class PartError(Exception):
    """A part cannot be used; the message says why."""


class DamagedPartsError(StoreError):
    """Parts cannot be joined.

    Attributes:
        fault_by_part: number of each such part -> reason.
    """

    def __init__(self, message: str, fault_by_part: Mapping[int, str]) -> None:
        super().__init__(message)
        self.fault_by_part = fault_by_part


@contextlib.contextmanager
def held_alone(folder: Location) -> Iterator[Lease | None]:
    """Hold the folder of an output's parts for a ``with`` block; yield its lease in a bucket.

    A successful block deletes the parts; the folder is then removed.

    Raises:
        ClusterError: if another command holds it; for a bucket, with the holder's name.
        StorageError: if a bucket cannot be read or written.
    """
    if isinstance(folder, BucketPath):
        with held(BucketFolder(folder, is_patient=False), AN_EMBEDDING) as lease:
            yield lease
            lease.delete()
        return
    path = folder / _LOCK
    with contextlib.ExitStack() as stack:
        while True:
            folder.mkdir(parents=True, exist_ok=True)
            # Another command may delete the folder, or the lock file that was just opened.
            with contextlib.suppress(FileNotFoundError):
                file = stack.enter_context(path.open("a"))
                if not try_lock(file):
                    raise ClusterError(
                        f"{folder}: another command is at work on this embedding. Wait until it "
                        "ends, stop it, or choose another --out"
                    )
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    break
        try:
            yield None
        finally:
            path.unlink(missing_ok=True)
            # After a failure, parts remain and the folder is not empty.
            with contextlib.suppress(OSError):
                folder.rmdir()


class Parts:
    """The folder ``OUT.parts``; driver and workers see it under one path.

    In a bucket, every method raises StorageError if the bucket refuses or does not answer.

    Args:
        folder: the folder.
        check_held: called before each change; raises if another command has taken over.
    """

    def __init__(self, folder: Location, check_held: Callable[[], None] = lambda: None) -> None:
        self.folder = folder
        self._check_held = check_held
        self._files = whole_files(folder)

    def cut(self, tables: Iterator[pa.Table]) -> list[str]:
        """Write each table as an input part; return their sha256.

        ``finish_cut`` makes them valid.
        """
        return [self._write_input(number, table) for number, table in enumerate(tables)]

    def finish_cut(
        self, origin: str, inputs: Sequence[str], quarantine: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Write and return the manifest, which marks the input parts as complete.

        Surplus parts of an earlier, interrupted cut are deleted.

        Args:
            origin: digest of the input and of how it is cut; not of the model.
            inputs: sha256 of each part.
            quarantine: the skipped records of the input.
        """
        manifest = {
            "origin": origin,
            "inputs": list(inputs),
            "quarantine": dict(quarantine),
        }
        numbered = [match for name in self._files.names() if (match := _NUMBERED.fullmatch(name))]
        self._delete({match[0] for match in numbered if int(match[1]) >= len(inputs)})
        self._write_record(_MANIFEST, "embedding manifest", manifest)
        return manifest

    def read_manifest(self, origin: str) -> dict[str, Any] | None:
        """Return the manifest of an input that was cut before; None if it is missing or damaged.

        Raises:
            StoreError: if the folder belongs to another input or part size, or to another version
                of raybio.
        """
        try:
            manifest = self._read_record(_MANIFEST, "embedding manifest")
        except RecordFormatError:
            manifest = {}
        if manifest is not None and manifest.get("origin") != origin:
            raise StoreError(
                f"{self.folder} holds parts of another input or part size, or of another version "
                "of raybio. Choose another --out, or delete that folder"
            )
        return manifest

    def contents(self, inputs: Sequence[str]) -> Iterator[pa.ChunkedArray]:
        """Yield the verified contents of each input part.

        Raises:
            PartError: if one is missing or its bytes have changed.
        """
        for number, digest in enumerate(inputs):
            try:
                content = self._files.read(self.input(number).name)
            except FileNotFoundError:
                content = b""
            if sha256(content).hexdigest() != digest:
                raise PartError(f"{self.input(number)} is missing or damaged")
            yield _table(content).column("content")

    def embedded(self) -> set[int]:
        """Return the numbers of the existing parts, valid or not."""
        numbers = map(_OUTPUT_NAME.fullmatch, self._files.names())
        return {int(match[1]) for match in numbers if match is not None}

    def read_input(self, number: int) -> tuple[pa.Table, str]:
        """Read an input part; return it and the sha256 of its bytes."""
        content = self._files.read(self.input(number).name)
        return _table(content), sha256(content).hexdigest()

    def write(self, number: int, table: pa.Table, *, input_digest: str, model_digest: str) -> None:
        """Write a part, then its record."""
        stream = pa.BufferOutputStream()
        pq.write_table(table, stream)
        written = self._write(self.output(number).name, stream)
        record = {"sha256": written, "input": input_digest, "model": model_digest}
        self._write_record(self.record(number).name, "embedding part", record)

    def read(self, number: int, *, input_digest: str, model_digest: str) -> pa.Table:
        """Read a part that was made from this input by this model.

        Raises:
            PartError: if it was not, or its bytes have changed.
        """
        try:
            content = self._files.read(self.output(number).name)
        except OSError as error:
            raise PartError(f"cannot be read ({error.strerror})") from None
        if sha256(content).hexdigest() != self._recorded(number, input_digest, model_digest):
            raise PartError("is damaged")
        return pq.read_table(pa.BufferReader(content))

    def fault(self, number: int, *, input_digest: str, model_digest: str) -> str | None:
        """Return why a part cannot be used, according to its record; None if it can.

        The part itself is verified when it is read.
        """
        try:
            self._recorded(number, input_digest, model_digest)
        except PartError as error:
            return str(error)
        return None

    def delete(self) -> None:
        """Delete all files but those of ``held_alone``."""
        self._delete(self._files.names() - {_LOCK, LEASE})

    def input(self, number: int) -> Location:
        """Path of an input part."""
        return self.folder / f"input-{number:06d}.arrow"

    def output(self, number: int) -> Location:
        """Path of an embedded part."""
        return self.folder / f"part-{number:06d}.parquet"

    def record(self, number: int) -> Location:
        """Path of an embedded part's record."""
        return self.folder / f"part-{number:06d}.json"

    def _delete(self, names: set[str]) -> None:
        self._check_held()
        self._files.delete(names)

    def _write(self, name: str, stream: pa.BufferOutputStream) -> str:
        """Write a file, and return its sha256."""
        content = memoryview(stream.getvalue())
        self._check_held()
        self._files.write(name, content)
        return sha256(content).hexdigest()

    def _write_record(self, name: str, kind: str, content: Mapping[str, Any]) -> None:
        self._check_held()
        self._files.write(name, record_text(kind, content).encode(errors="backslashreplace"))

    def _read_record(self, name: str, kind: str) -> dict[str, Any] | None:
        try:
            text = self._files.read(name)
        except FileNotFoundError:
            return None
        return parse_recomputable(text, kind, self.folder / name)

    def _write_input(self, number: int, table: pa.Table) -> str:
        stream = pa.BufferOutputStream()
        with pa.ipc.new_file(stream, table.schema) as writer:
            writer.write_table(table)
        return self._write(self.input(number).name, stream)

    def _recorded(self, number: int, input_digest: str, model_digest: str) -> str:
        """Return the recorded sha256 of a part of this input and model."""
        try:
            record = self._read_record(self.record(number).name, "embedding part")
        except RecordFormatError:
            record = None
        if record is None:
            raise PartError("has no record of this version")
        if record.get("model") != model_digest:
            raise PartError("comes from another model")
        if record.get("input") != input_digest:
            raise PartError("comes from another input")
        return str(record.get("sha256"))


def _table(content: bytes) -> pa.Table:
    return pa.ipc.open_file(pa.BufferReader(content)).read_all()


def join(
    parts: Parts,
    inputs: Sequence[str],
    out: Path,
    *,
    origin: str,
    part_digest: str,
    model_digest: str,
    cut: str,
    numbers: Sequence[int] | None = None,
) -> int:
    """Write parts into one Parquet file, in order; return its number of rows.

    ``numbers`` selects parts; None: all. ``part_digest`` identifies the model and the format with
    which the parts were written.

    The pages of the file have checksums. ``check_output`` identifies the file by ``origin``;
    ``cut_of`` returns ``cut``, and ``model_digest_of`` the model's digest.

    Raises:
        DamagedPartsError: if parts are not whole; it names all of them.
        StoreError: if the file cannot be read back as it was written.
    """
    writer: pq.ParquetWriter | None = None
    num_rows = 0
    fault_by_part: dict[int, str] = {}
    with replaced_file(out) as temporary, contextlib.ExitStack() as at_end:
        for number in range(len(inputs)) if numbers is None else numbers:
            try:
                table = parts.read(number, input_digest=inputs[number], model_digest=part_digest)
            except PartError as error:
                fault_by_part[number] = str(error)
                continue
            if fault_by_part:
                continue
            table = table.replace_schema_metadata(
                {
                    _ORIGIN_KEY: origin.encode(),
                    _CUT_KEY: cut.encode(),
                    _MODEL_KEY: model_digest.encode(),
                }
            )
            # Arrow's errors name neither the file nor its size.
            with named_failure(out, table.nbytes):
                if writer is None:
                    writer = pq.ParquetWriter(temporary, table.schema, write_page_checksum=True)
                    at_end.callback(writer.close)
                writer.write_table(table)
            num_rows += table.num_rows
        if fault_by_part:
            number, fault = next(iter(fault_by_part.items()))
            raise DamagedPartsError(
                f"{parts.output(number)} {fault}, although it was just embedded: the model or the "
                "disk changed meanwhile. Give the same command again",
                fault_by_part,
            )
        if writer is not None:
            with named_failure(out, 0):
                writer.close()
        num_read = check_output(temporary, origin)
        if num_read != num_rows:
            raise StoreError(
                f"{temporary} holds {num_read:,} rows, want {num_rows:,}. Give the same command "
                "again"
            )
    return num_rows


def write_shards(parts: Parts, inputs: Sequence[str], out: Path, **facts: str) -> int:
    """Write each part as a Parquet file of a folder; return the number of rows.

    The folder is written atomically. It is a data set of the library ``datasets``. ``facts`` and
    errors are as in ``join``.
    """
    num_rows = 0
    with atomic_folder(out) as folder:
        for number in range(len(inputs)):
            file = folder / f"embeddings-{number:05d}-of-{len(inputs):05d}.parquet"
            num_rows += join(parts, inputs, file, numbers=[number], **facts)
    return num_rows


def check_shards(out: Path, origin: str) -> int:
    """Verify a finished folder of files like ``check_output``; return its number of rows.

    Raises:
        DataError: if a file is missing.
        StoreError: as ``check_output``.
    """
    return sum(check_output(file, origin) for file in table_files(out))


def check_output(out: Path, origin: str, shown: Location | None = None) -> int:
    """Read a finished file and compare the checksums of its pages; return its number of rows.

    Args:
        out: the file.
        origin: where it must come from.
        shown: its path in errors; None: ``out``.

    Raises:
        StoreError: if it is damaged, or comes from another model or input.
    """
    num_rows = 0
    shown = out if shown is None else shown
    try:
        with pq.ParquetFile(out, page_checksum_verification=True) as file:
            metadata = file.schema_arrow.metadata or {}
            if metadata.get(_ORIGIN_KEY, b"").decode() != origin:
                raise StoreError(
                    f"{shown} exists and comes from another model or input. Choose another --out, "
                    "or delete it"
                )
            for batch in parquet_batches(out, file):
                num_rows += len(batch)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise StoreError(
            f"{shown} exists and is damaged, or no Parquet file ({one_line(error)}). Choose "
            "another --out, or delete it if raybio embed wrote it"
        ) from None
    return num_rows


def cut_of(out: Path) -> str:
    """Return the line in a finished file about inputs that were cut; empty if none was."""
    metadata = pq.read_schema(table_files(out)[0]).metadata or {}
    return str(metadata.get(_CUT_KEY, b"").decode())


def model_digest_of(out: Path) -> str:
    """Return the digest of the model that made a finished file; "" if it is not recorded.

    For a folder of files, return the digest of the first file.

    Raises:
        DataError: if it cannot be read.
    """
    file = table_files(out)[0]
    with parquet_errors(file):
        metadata = pq.read_schema(file).metadata or {}
    return str(metadata.get(_MODEL_KEY, b"").decode())
