"""MEDLINE files parsed into parts, in any process and order.

A part is an Arrow IPC stream of ``ARTICLE_SCHEMA``. Its schema's metadata identifies the source
file. Its last batch is empty and holds the account (deletions, quarantine), so a part without it
is incomplete.

Shape letters: C citations of a file, D deletions.
"""

import hashlib
import json
import os
import stat
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybio.core.digest import file_digest
from raybio.core.errors import DataError, StoreError
from raybio.methods.biostransformers.config import FIELDS
from raybio.methods.biostransformers.formats.columns import ARTICLE_SCHEMA
from raybio.methods.biostransformers.formats.medline import CITATION, REASONS, read_medline
from raybio.store.quarantine import Quarantine

FORMAT = "raybio MEDLINE part 1"
"""The number increases whenever the reader returns other articles for the same file.

Parts of another format are not reused.
"""

SOURCE_KEY = b"raybio.source"
ACCOUNT_KEY = b"raybio.account"

ARTICLE_BYTES = 64
"""Bytes of an article in a bucket, besides its texts and terms: PMID, year and offsets."""

TERM_BYTES = 8


class FileReport(NamedTuple):
    """Result of parsing one file.

    Attributes:
        path: the file, as given.
        part: its part; "" for a broken file.
        num_articles: rows of the part.
        num_citations: citations read, skipped ones included.
        num_deleted: deletions in the file.
        quarantine: ``Quarantine.summary()`` of the file.
        problem: why the file is broken, with its name and line; "" for a sound one.
    """

    path: str
    part: str
    num_articles: int
    num_citations: int
    num_deleted: int
    quarantine: dict[str, Any]
    problem: str


def parse_file(path: str | Path, part_folder: str | Path) -> FileReport:
    """Parse one file of citations into a part.

    The part is renamed into place when it is complete, so a killed call leaves none (except perhaps
    a hidden ``.….tmp``). A finished part is reused if size, time and sha256 of the file are still
    the same. Calls for different files, or for the same file, may run at once.

    Args:
        path: the file.
        part_folder: existing folder for parts. The part's name consists of the file's name and a
            digest of its absolute path.

    Returns:
        The report; for a broken file it holds the reason.

    Raises:
        StoreError: if the part cannot be written.
    """
    path = Path(path)
    part = part_path(path, part_folder)
    try:
        source = _source(path)
        reused = _finished(path, part, source)
        if reused is not None:
            return reused
        quarantine = Quarantine()
        draft = part.with_name(f".{part.name}.{uuid.uuid4().hex}.tmp")
        try:
            account = _write(draft, path, source, quarantine)
            if _stamp(path) != (source["size"], source["mtime_ns"]):
                raise DataError(f"{path}: changed while it was read. Run again when it is whole.")
            draft.replace(part)
        except OSError as error:
            raise StoreError(
                f"{part}: cannot be written ({error}). Free some space or choose another."
            ) from None
        finally:
            draft.unlink(missing_ok=True)
    except DataError as error:
        return FileReport(str(path), "", 0, 0, 0, {}, str(error))
    return _report(path, part, account)


def part_path(path: str | Path, part_folder: str | Path) -> Path:
    """Return the path of a file's part. It depends on the file's absolute path."""
    digest = hashlib.blake2b(os.fsencode(Path(path).absolute()), digest_size=6).hexdigest()
    return Path(part_folder) / f"{Path(path).name}.{digest}.arrow"


def total_bytes(reports: Iterable[FileReport]) -> int:
    """Return the bytes of the parts of all files."""
    return sum(Path(report.part).stat().st_size for report in reports)


def read_keys(report: FileReport) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return PMID, version and bytes (C,) of the articles of a part, and the PMIDs (D,) it deletes.

    Bytes are at least those of the article's texts and of its terms as numbers.

    Raises:
        StoreError: if the part is missing or incomplete, or is not the report's.
    """
    table, account = _open_part(Path(report.part))
    if table.num_rows != report.num_articles:
        raise StoreError(
            f"{report.part}: {table.num_rows:,} rows, want the {report.num_articles:,} of its "
            "report"
        )
    deleted_D = np.asarray(account["deleted"], np.int64)
    num_bytes_C = ARTICLE_BYTES + TERM_BYTES * _lengths(pc.list_value_length(table["mesh"]))
    for field in FIELDS:
        num_bytes_C += _lengths(pc.binary_length(table[field]))
    return table["pmid"].to_numpy(), table["version"].to_numpy(), num_bytes_C, deleted_D


def _lengths(lengths: pa.ChunkedArray) -> np.ndarray:
    return pc.fill_null(lengths, 0).to_numpy()


def read_blocks(
    part: str | Path, columns: Sequence[str], block_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yield some columns of a part in blocks of record batches, of about ``block_bytes`` bytes.

    It reads the file instead of mapping it, so that no more than a block is in memory.

    Raises:
        StoreError: if the part cannot be read.
    """
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    try:
        with pa.OSFile(str(part)) as file, pa.ipc.open_stream(file) as reader:
            for batch in reader:
                waiting.append(batch.select(list(columns)))
                waiting_bytes += waiting[-1].nbytes
                if waiting_bytes >= block_bytes:
                    yield pa.concat_batches(waiting)
                    waiting = []
                    waiting_bytes = 0
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(part, error) from None
    if any(map(len, waiting)):
        yield pa.concat_batches(waiting)


def add_to_quarantine(reports: Iterable[FileReport], quarantine: Quarantine) -> None:
    """Add the quarantines of all files to ``quarantine``."""
    for report in reports:
        quarantine.saw(CITATION, report.num_citations)
        name = Path(report.path).name
        for reason, records in report.quarantine.items():
            examples = [(example["line"], example["detail"]) for example in records["examples"]]
            kind, is_bad = REASONS[reason]
            quarantine.add_many(kind, reason, name, records["count"], examples, is_bad=is_bad)


class PartWriter:
    """Writes a part to ``path``, which must not exist; a context manager that closes the file."""

    def __init__(self, path: Path, source: Mapping[str, Any]) -> None:
        """Start a part of the described source file."""
        self.num_articles = 0
        self._deleted: list[int] = []
        self._schema = ARTICLE_SCHEMA.with_metadata({SOURCE_KEY: json.dumps(source)})
        self._file = path.open("xb")
        self._writer = pa.ipc.new_stream(self._file, self._schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, articles: pa.RecordBatch, deleted: Iterable[int] = ()) -> None:
        """Append articles in ``ARTICLE_SCHEMA``, and PMIDs that the source deletes."""
        self._writer.write_batch(articles.replace_schema_metadata(self._schema.metadata))
        self.num_articles += articles.num_rows
        self._deleted += deleted

    def finish(self, quarantine: Quarantine) -> dict[str, Any]:
        """Append the account, flush to disk, and return the account."""
        account = {
            "num_articles": self.num_articles,
            "num_citations": quarantine.num_seen(CITATION),
            "deleted": self._deleted,
            "quarantine": quarantine.summary(),
        }
        empty = pa.RecordBatch.from_pylist([], schema=self._schema)
        self._writer.write_batch(empty, custom_metadata={ACCOUNT_KEY: json.dumps(account)})
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        return account


def _write(
    draft: Path, path: Path, source: dict[str, Any], quarantine: Quarantine
) -> dict[str, Any]:
    """Write the draft of a part and return its account."""
    with PartWriter(draft, source) as writer:
        for batch in read_medline(path, quarantine):
            writer.add(batch.articles, batch.deleted.tolist())
        return writer.finish(quarantine)


def _finished(path: Path, part: Path, source: dict[str, Any]) -> FileReport | None:
    """Return the report of a complete part of the same file, None without one."""
    try:
        table, account = _open_part(part)
    except StoreError:
        return None
    part_source = json.loads((table.schema.metadata or {}).get(SOURCE_KEY, b"null"))
    return _report(path, part, account) if part_source == source else None


def _open_part(part: Path) -> tuple[pa.Table, dict[str, Any]]:
    try:
        batches = []
        account = None
        with pa.memory_map(str(part)) as file, pa.ipc.open_stream(file) as reader:
            schema = reader.schema
            for batch, metadata in reader.iter_batches_with_custom_metadata():
                batches.append(batch)
                account = (metadata or {}).get(ACCOUNT_KEY)
        if account is None or schema.remove_metadata() != ARTICLE_SCHEMA:
            raise StoreError(f"{part}: is not whole. Remove it and parse its file again.")
        return pa.Table.from_batches(batches, schema), json.loads(account)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable(part, error) from None


def _unreadable(part: str | Path, error: Exception) -> StoreError:
    return StoreError(f"{part}: cannot be read ({error}). Remove it and parse its file again.")


def _report(path: Path, part: Path, account: dict[str, Any]) -> FileReport:
    return FileReport(
        str(path),
        str(part),
        account["num_articles"],
        account["num_citations"],
        len(account["deleted"]),
        account["quarantine"],
        "",
    )


def _source(path: Path) -> dict[str, Any]:
    """Return the description of a source file for the metadata of its part."""
    size, mtime_ns = _stamp(path)
    try:
        digest = file_digest(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    return {"format": FORMAT, "size": size, "mtime_ns": mtime_ns, "sha256": digest}


def _stamp(path: Path) -> tuple[int, int]:
    """Return size and modification time of a file."""
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path}: is not a file")
    return status.st_size, status.st_mtime_ns
