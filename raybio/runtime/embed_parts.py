"""Parts of a bulk embedding on disk, each verified before it is used.

    OUT.parts/
        manifest.json          how the input was cut, and the sha256 of each part; written last
        input-000000.arrow     key and content of some records
        part-000000.parquet    key and embedding (D float32) of the same records
        part-000000.json       sha256 of that part, and of its input and model

Every file is written under another name, forced to the disk and renamed. A damaged part is embedded
again.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raybio.core.errors import RecordFormatError, StoreError
from raybio.core.records import read_recomputable, write_record
from raybio.training.durable import commit_file, file_sha256, replace_file

VERSION = 1
"""Version of the embedding itself: outputs and parts of another one are not reused."""

_ORIGIN_KEY = b"raybio"
_CUT_KEY = b"raybio.cut"


class PartError(Exception):
    """A part that cannot be used; says why."""


class Parts:
    """The folder ``OUT.parts``; driver and workers see it under one path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def cut(self, tables: Iterator[pa.Table]) -> list[str]:
        """Write each table as an input part; return their sha256.

        ``finish_cut`` makes them valid.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        return [self._write_input(number, table) for number, table in enumerate(tables)]

    def finish_cut(
        self, origin: str, inputs: Sequence[str], quarantine: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Write and return the manifest, which says that all input parts are there.

        Args:
            origin: digest of the input and of how it is cut; not of the model.
            inputs: sha256 of each part.
            quarantine: what was left out of the input.
        """
        manifest = {
            "origin": origin,
            "inputs": list(inputs),
            "quarantine": dict(quarantine),
        }
        write_record(self._manifest, "embedding manifest", manifest)
        return manifest

    def read_manifest(self, origin: str) -> dict[str, Any] | None:
        """Return the manifest of an input that was cut before, None if there is none or it is torn.

        Raises:
            StoreError: if the folder belongs to another input or part size, or to another version
                of raybio.
        """
        try:
            manifest = read_recomputable(self._manifest, "embedding manifest")
        except RecordFormatError:
            manifest = {}
        if manifest is not None and manifest.get("origin") != origin:
            raise StoreError(
                f"{self.folder} holds parts of another input or part size, or of another version "
                "of raybio. Choose another --out, or delete that folder"
            )
        return manifest

    def damaged_inputs(self, inputs: Sequence[str]) -> list[Path]:
        """Return the input parts that are missing or whose bytes have changed."""
        damaged = []
        for number, digest in enumerate(inputs):
            path = self.input(number)
            if not path.is_file() or file_sha256(path) != digest:
                damaged.append(path)
        return damaged

    def read_input(self, number: int) -> tuple[pa.Table, str]:
        """Read an input part; return it and the sha256 of the bytes that were read."""
        content = self.input(number).read_bytes()
        return pa.ipc.open_file(pa.BufferReader(content)).read_all(), sha256(content).hexdigest()

    def write(self, number: int, table: pa.Table, *, input_digest: str, model_digest: str) -> None:
        """Write a part, then its record."""
        stream = pa.BufferOutputStream()
        pq.write_table(table, stream)
        written = replace_file(self.output(number), memoryview(stream.getvalue()))
        record = {"sha256": written.sha256, "input": input_digest, "model": model_digest}
        write_record(self.record(number), "embedding part", record)

    def read(self, number: int, *, input_digest: str, model_digest: str) -> pa.Table:
        """Read a part that was made from this input by this model.

        Raises:
            PartError: if it was not, or its bytes have changed.
        """
        content = self._verified(number, input_digest, model_digest)
        return pq.read_table(pa.BufferReader(content))

    def fault(self, number: int, *, input_digest: str, model_digest: str) -> str | None:
        """Say why a part cannot be used; None if it can."""
        try:
            self._verified(number, input_digest, model_digest)
        except PartError as error:
            return str(error)
        return None

    def input(self, number: int) -> Path:
        """Path of an input part."""
        return self.folder / f"input-{number:06d}.arrow"

    def output(self, number: int) -> Path:
        """Path of an embedded part."""
        return self.folder / f"part-{number:06d}.parquet"

    def record(self, number: int) -> Path:
        """Path of an embedded part's record."""
        return self.output(number).with_suffix(".json")

    @property
    def _manifest(self) -> Path:
        return self.folder / "manifest.json"

    def _write_input(self, number: int, table: pa.Table) -> str:
        stream = pa.BufferOutputStream()
        with pa.ipc.new_file(stream, table.schema) as writer:
            writer.write_table(table)
        return replace_file(self.input(number), memoryview(stream.getvalue())).sha256

    def _verified(self, number: int, input_digest: str, model_digest: str) -> bytes:
        try:
            content = self.output(number).read_bytes()
        except OSError as error:
            raise PartError(f"cannot be read ({error.strerror})") from None
        try:
            record = read_recomputable(self.record(number), "embedding part")
        except RecordFormatError:
            record = None
        if record is None:
            raise PartError("has no record of this version")
        if record.get("model") != model_digest:
            raise PartError("comes from another model")
        if record.get("input") != input_digest:
            raise PartError("comes from another input")
        if record.get("sha256") != sha256(content).hexdigest():
            raise PartError("is damaged")
        return content


def join(
    parts: Parts, inputs: Sequence[str], out: Path, *, origin: str, model_digest: str, cut: str
) -> int:
    """Write all parts into one Parquet file, in order; return its number of rows.

    Its pages have checksums, ``check_output`` knows the file again by ``origin``, and ``cut_of``
    returns ``cut``.

    Raises:
        StoreError: if a part is not whole, or the file cannot be read back as it was written.
    """
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    writer: pq.ParquetWriter | None = None
    num_rows = 0
    try:
        for number, input_digest in enumerate(inputs):
            try:
                table = parts.read(number, input_digest=input_digest, model_digest=model_digest)
            except PartError as error:
                raise StoreError(
                    f"{parts.output(number)} {error}, although it was just embedded or verified: "
                    "the model or the disk changed meanwhile. Give the same command again"
                ) from None
            table = table.replace_schema_metadata(
                {_ORIGIN_KEY: origin.encode(), _CUT_KEY: cut.encode()}
            )
            writer = writer or pq.ParquetWriter(temporary, table.schema, write_page_checksum=True)
            writer.write_table(table)
            num_rows += table.num_rows
        if writer is not None:
            writer.close()
        num_read = check_output(temporary, origin)
        if num_read != num_rows:
            raise StoreError(
                f"{temporary} holds {num_read:,} rows, want {num_rows:,}. Give the same command "
                "again"
            )
        commit_file(temporary, out)
    finally:
        if writer is not None:
            writer.close()
        temporary.unlink(missing_ok=True)
    return num_rows


def check_output(out: Path, origin: str) -> int:
    """Read a finished file and compare the checksums of its pages; return its number of rows.

    Raises:
        StoreError: if it is damaged, or comes from another model or input.
    """
    num_rows = 0
    try:
        with pq.ParquetFile(out, page_checksum_verification=True) as file:
            metadata = file.schema_arrow.metadata or {}
            if metadata.get(_ORIGIN_KEY, b"").decode() != origin:
                raise StoreError(
                    f"{out} exists and comes from another model or input. Choose another --out, or "
                    "delete it"
                )
            for batch in file.iter_batches():
                num_rows += len(batch)
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:200]
        raise StoreError(
            f"{out} exists and is damaged, or no Parquet file ({reason}). Delete it"
        ) from None
    return num_rows


def cut_of(out: Path) -> str:
    """Return the line of a finished file that says which inputs were cut; empty if none was."""
    metadata = pq.read_schema(out).metadata or {}
    return str(metadata.get(_CUT_KEY, b"").decode())
