"""MEDLINE files parsed into parts, in any process and order; newest revision of each article.

A part is an Arrow IPC stream of ``ARTICLE_SCHEMA``. Its schema's metadata identifies the source
file. Its last batch is empty and holds the account (deletions, quarantine), so a part without it
is incomplete.

Shape letters: A remaining articles, C citations of a file or of all files, D deletions.
"""

import hashlib
import json
import os
import stat
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raybio.core.errors import DataError, StoreError
from raybio.methods.biostransformers.formats.columns import ARTICLE_SCHEMA
from raybio.methods.biostransformers.formats.medline import CITATION, REASONS, read_medline
from raybio.store.quarantine import Quarantine

FORMAT = "raybio MEDLINE part 1"
"""The number increases whenever the reader returns other articles for the same file.

Parts of another format are not reused.
"""

SOURCE_KEY = b"raybio.source"
ACCOUNT_KEY = b"raybio.account"
HASH_BYTES = 1 << 20


class FileReport(NamedTuple):
    """Result of parsing one file.

    Attributes:
        path: the file, as given.
        part: its part; "" for a broken file.
        num_articles: rows of the part.
        num_citations: citations read, skipped ones included.
        num_deleted: deletions in the file.
        quarantine: ``Quarantine.summary()`` of the file.
        is_reused: whether an earlier call finished the part.
        problem: why the file is broken, with its name and line; "" for a sound one.
    """

    path: str
    part: str
    num_articles: int
    num_citations: int
    num_deleted: int
    quarantine: dict[str, Any]
    is_reused: bool
    problem: str


class Merged(NamedTuple):
    """File and row of the newest revision of each article, ascending by PMID, without deletions.

    Attributes:
        file_A: index of the report, int32.
        row_A: row of its part, int32.
        pmid_A: PMID, int64.
        num_revised: citations replaced by a newer one of the same PMID.
        num_deleted: PMIDs whose newest citation was deleted.
    """

    file_A: np.ndarray
    row_A: np.ndarray
    pmid_A: np.ndarray
    num_revised: int
    num_deleted: int


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
        return FileReport(str(path), "", 0, 0, 0, {}, False, str(error))
    return _report(path, part, account, is_reused=False)


def part_path(path: str | Path, part_folder: str | Path) -> Path:
    """Return the path of a file's part. It depends on the file's absolute path."""
    digest = hashlib.blake2b(os.fsencode(Path(path).absolute()), digest_size=6).hexdigest()
    return Path(part_folder) / f"{Path(path).name}.{digest}.arrow"


def read_part(part: str | Path) -> pa.Table:
    """Return the articles of a part, memory-mapped.

    Raises:
        StoreError: if the part is missing or incomplete.
    """
    return _open_part(Path(part))[0]


def add_to_quarantine(reports: Iterable[FileReport], quarantine: Quarantine) -> None:
    """Add the quarantines of all files to ``quarantine``."""
    for report in reports:
        quarantine.saw(CITATION, report.num_citations)
        name = Path(report.path).name
        for reason, records in report.quarantine.items():
            examples = [(example["line"], example["detail"]) for example in records["examples"]]
            kind, is_bad = REASONS[reason]
            quarantine.add_many(kind, reason, name, records["count"], examples, is_bad=is_bad)


def merge_parts(reports: Sequence[FileReport]) -> Merged:
    """Return the remaining citation of each PMID.

    A later file takes precedence over an earlier one. Within a file the higher version takes
    precedence, then the later position. A deletion removes a PMID of its own and earlier files; a
    later file may add it again. Memory: about 50 bytes a citation, 1.8 GB for 35 million.

    Args:
        reports: reports of all files, oldest first. For PubMed: in order of name, the baseline
            before the updates.

    Raises:
        DataError: if one of the files is broken.
        StoreError: if a part is missing or damaged.
    """
    broken = [report.problem for report in reports if report.problem]
    if broken:
        raise DataError(
            f"{len(broken):,} of {len(reports):,} files are broken; the first: "
            f"{'; '.join(broken[:3])}"
        )
    newest = [_newest_within(report) for report in reports]
    num_citations = sum(report.num_articles for report in reports)
    files = np.arange(len(newest), dtype=np.int32)
    pmid_C = _concatenate([pmid for pmid, _, _ in newest], np.int64)
    row_C = _concatenate([row for _, row, _ in newest], np.int32)
    file_C = np.repeat(files, [len(pmid) for pmid, _, _ in newest])
    deleted = [np.unique(pmid) for _, _, pmid in newest]
    deleted_pmid_D = _concatenate(deleted, np.int64)
    deleting_file_D = np.repeat(files, [len(pmid) for pmid in deleted])
    del newest, deleted  # arrays of all citations: free them early

    last = _last_occurrences(pmid_C)
    pmid_A = pmid_C[last]
    file_A = file_C[last]
    row_A = row_C[last]
    del pmid_C, file_C, row_C, last
    num_revised = num_citations - len(pmid_A)
    last = _last_occurrences(deleted_pmid_D)
    remains_A = ~_is_deleted(pmid_A, file_A, deleted_pmid_D[last], deleting_file_D[last])
    num_deleted = int(len(remains_A) - remains_A.sum())
    return Merged(file_A[remains_A], row_A[remains_A], pmid_A[remains_A], num_revised, num_deleted)


def _newest_within(report: FileReport) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return PMID and row of the newest revision of each PMID in a part, and the deletions."""
    table, account = _open_part(Path(report.part))
    if table.num_rows != report.num_articles:
        raise StoreError(
            f"{report.part}: {table.num_rows:,} rows, want the {report.num_articles:,} of its "
            "report"
        )
    pmid_C = table["pmid"].to_numpy()
    # A stable sort, so that among equal versions the later row comes last.
    by_version = np.argsort(table["version"].to_numpy(), kind="stable")
    row_C = by_version[_last_occurrences(pmid_C[by_version])]
    return pmid_C[row_C], row_C.astype(np.int32), np.asarray(account["deleted"], np.int64)


def _last_occurrences(value_C: np.ndarray) -> np.ndarray:
    """Return the index of each value's last occurrence, ascending by value."""
    order = np.argsort(value_C, kind="stable")
    ordered = value_C[order]
    is_last = np.ones(len(ordered), bool)
    is_last[:-1] = ordered[1:] != ordered[:-1]
    return order[is_last]


def _is_deleted(
    pmid_A: np.ndarray, file_A: np.ndarray, pmid_D: np.ndarray, file_D: np.ndarray
) -> np.ndarray:
    """Return whether the same or a later file deletes each PMID; ``pmid_D`` ascends."""
    is_deleted_A = np.zeros(len(pmid_A), bool)
    position_D = np.searchsorted(pmid_A, pmid_D)
    is_match_D = position_D < len(pmid_A)
    is_match_D[is_match_D] = pmid_A[position_D[is_match_D]] == pmid_D[is_match_D]
    matches = position_D[is_match_D]
    is_deleted_A[matches] = file_A[matches] <= file_D[is_match_D]
    return is_deleted_A


def _concatenate(arrays: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *arrays])


def _write(
    draft: Path, path: Path, source: dict[str, Any], quarantine: Quarantine
) -> dict[str, Any]:
    """Write the draft of a part and return its account."""
    schema = ARTICLE_SCHEMA.with_metadata({SOURCE_KEY: json.dumps(source)})
    deleted: list[int] = []
    num_articles = 0
    with draft.open("xb") as file:
        with pa.ipc.new_stream(file, schema) as writer:
            for batch in read_medline(path, quarantine):
                writer.write_batch(batch.articles.replace_schema_metadata(schema.metadata))
                num_articles += batch.articles.num_rows
                deleted += batch.deleted.tolist()
            account = {
                "num_articles": num_articles,
                "num_citations": quarantine.num_seen(CITATION),
                "deleted": deleted,
                "quarantine": quarantine.summary(),
            }
            empty = pa.RecordBatch.from_pylist([], schema=schema)
            writer.write_batch(empty, custom_metadata={ACCOUNT_KEY: json.dumps(account)})
        file.flush()
        os.fsync(file.fileno())
    return account


def _finished(path: Path, part: Path, source: dict[str, Any]) -> FileReport | None:
    """Return the report of a complete part of the same file, None without one."""
    try:
        table, account = _open_part(part)
    except StoreError:
        return None
    part_source = json.loads((table.schema.metadata or {}).get(SOURCE_KEY, b"null"))
    return _report(path, part, account, is_reused=True) if part_source == source else None


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
        raise StoreError(
            f"{part}: cannot be read ({error}). Remove it and parse its file again."
        ) from None


def _report(path: Path, part: Path, account: dict[str, Any], *, is_reused: bool) -> FileReport:
    return FileReport(
        str(path),
        str(part),
        account["num_articles"],
        account["num_citations"],
        len(account["deleted"]),
        account["quarantine"],
        is_reused,
        "",
    )


def _source(path: Path) -> dict[str, Any]:
    """Return the description of a source file for the metadata of its part."""
    size, mtime_ns = _stamp(path)
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(HASH_BYTES):
                digest.update(block)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    return {"format": FORMAT, "size": size, "mtime_ns": mtime_ns, "sha256": digest.hexdigest()}


def _stamp(path: Path) -> tuple[int, int]:
    """Return size and modification time of a file."""
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path}: is not a file")
    return status.st_size, status.st_mtime_ns
