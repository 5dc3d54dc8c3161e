"""MEDLINE files parsed one by one into parts, in any process and any order, and which part holds each article.

A part is an Arrow IPC stream of ``ARTICLE_SCHEMA``. Its schema's metadata names the very file it was made of; its last
batch is empty and carries the account (deletions, what was quarantined), so a part without it is not whole.

Shape letters: A articles that remain, C citations of a file or of all files, D deletions.
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
from raybio.methods.biostransformers.formats.medline import (
    ARTICLE_SCHEMA,
    CITATION,
    REASONS,
    read_medline,
)
from raybio.store.quarantine import Quarantine

# Rises whenever the reader gives other articles for the same file: parts of another version are not reused.
FORMAT = "raybio MEDLINE part 1"


SOURCE_KEY, ACCOUNT_KEY = b"raybio.source", b"raybio.account"


HASH_BYTES = 1 << 20


class FileReport(NamedTuple):
    """What became of one file.

    Attributes:
        path: the file, as it was named.
        part: its part; "" for a broken file.
        num_articles: rows of the part.
        num_citations: citations read, those in quarantine included.
        num_deleted: deletions it names.
        quarantine: ``Quarantine.summary()`` of the file.
        is_reused: the part was finished by an earlier try.
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
    """Where the newest revision of each article that was not deleted stands, ascending by PMID.

    Attributes:
        file_A: number of the report, int32.
        row_A: row of its part, int32.
        pmid_A: PMID, int64.
        num_revised: citations that a newer one of the same PMID replaced.
        num_deleted: PMIDs whose newest citation was deleted.
    """

    file_A: np.ndarray
    row_A: np.ndarray
    pmid_A: np.ndarray
    num_revised: int
    num_deleted: int


def parse_file(path: str | Path, part_folder: str | Path) -> FileReport:
    """Read one file of citations into a part.

    The part appears by a rename when all of it is written, so a killed call leaves none (but perhaps a hidden
    ``.….tmp``). One that an earlier call finished is reused if the file's size, time and sha256 are still the same.
    Calls for different files, or for the same file, may run at once.

    Args:
        path: the file.
        part_folder: an existing folder for parts; the part's name is the file's and a digest of where it lies.

    Returns:
        The report; for a broken file it says why.

    Raises:
        StoreError: if the part cannot be written.
    """
    path, part = Path(path), part_path(path, part_folder)
    try:
        source = _source(path)
        if (reused := _finished(path, part, source)) is not None:
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
    """Where the part of a file lies: files of one name in several folders have parts of their own."""
    place = hashlib.blake2b(os.fsencode(Path(path).absolute()), digest_size=6).hexdigest()
    return Path(part_folder) / f"{Path(path).name}.{place}.arrow"


def read_part(part: str | Path) -> pa.Table:
    """The articles of a part, mapped from the file.

    Raises:
        StoreError: if the part is missing or not whole.
    """
    return _open_part(Path(part))[0]


def add_to_quarantine(reports: Iterable[FileReport], quarantine: Quarantine) -> None:
    """Bring together what the files' quarantines hold."""
    for report in reports:
        quarantine.saw(CITATION, report.num_citations)
        for reason, found in report.quarantine.items():
            examples = [(example["line"], example["detail"]) for example in found["examples"]]
            kind, is_bad = REASONS[reason]
            name = Path(report.path).name
            quarantine.add_many(kind, reason, name, found["count"], examples, is_bad=is_bad)


def merge_parts(reports: Sequence[FileReport]) -> Merged:
    """Which citation of each PMID remains.

    A later file's beats an earlier file's; within a file the higher version wins, then the later place. A deletion
    takes away what its own and earlier files brought; a later file may bring the PMID again. All citations that the
    parts hold are revised, deleted or remain. Memory: some 50 bytes a citation, 1.8 GB for 35 million.

    Args:
        reports: of all files, oldest first: for PubMed, in order of name, the baseline before the updates.

    Raises:
        DataError: if one of the files is broken.
        StoreError: if a part is missing or damaged.
    """
    if broken := [report.problem for report in reports if report.problem]:
        raise DataError(
            f"{len(broken):,} of {len(reports):,} files are broken; the first: {'; '.join(broken[:3])}"
        )
    newest = [_newest_within(report) for report in reports]
    num_citations = sum(report.num_articles for report in reports)
    pmid_C = _concatenated([pmid for pmid, _, _ in newest], np.int64)
    row_C = _concatenated([row for _, row, _ in newest], np.int32)
    file_C = np.repeat(np.arange(len(newest), dtype=np.int32), [len(pmid) for pmid, _, _ in newest])
    deleted = [np.unique(pmid) for _, _, pmid in newest]
    deleted_pmid_D = _concatenated(deleted, np.int64)
    deleting_file_D = np.repeat(
        np.arange(len(newest), dtype=np.int32), [len(pmid) for pmid in deleted]
    )
    del newest, deleted

    last = _last_of_each(pmid_C)
    pmid_A, file_A, row_A = pmid_C[last], file_C[last], row_C[last]
    del pmid_C, file_C, row_C, last
    num_revised = num_citations - len(pmid_A)
    last = _last_of_each(deleted_pmid_D)
    remains = ~_is_deleted(pmid_A, file_A, deleted_pmid_D[last], deleting_file_D[last])
    return Merged(
        file_A[remains],
        row_A[remains],
        pmid_A[remains],
        num_revised,
        int(len(remains) - remains.sum()),
    )


def _newest_within(report: FileReport) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """PMID and row of the newest revision of each PMID in a part, and the deletions."""
    table, account = _open_part(Path(report.part))
    if table.num_rows != report.num_articles:
        raise StoreError(
            f"{report.part}: {table.num_rows:,} rows, want the {report.num_articles:,} of its report"
        )
    pmid_C, version_C = table["pmid"].to_numpy(), table["version"].to_numpy()
    # Stable, so that of equal versions the later place comes last.
    by_version = np.argsort(version_C, kind="stable")
    row_C = by_version[_last_of_each(pmid_C[by_version])]
    return pmid_C[row_C], row_C.astype(np.int32), np.asarray(account["deleted"], np.int64)


def _last_of_each(value_C: np.ndarray) -> np.ndarray:
    """Index of the last occurrence of each value, ascending by value."""
    order = np.argsort(value_C, kind="stable")
    ordered = value_C[order]
    is_last = np.ones(len(ordered), bool)
    is_last[:-1] = ordered[1:] != ordered[:-1]
    return order[is_last]


def _is_deleted(
    pmid_A: np.ndarray, file_A: np.ndarray, pmid_D: np.ndarray, file_D: np.ndarray
) -> np.ndarray:
    """Whether a deletion of the same PMID stands in the same or a later file; ``pmid_D`` ascends."""
    is_deleted = np.zeros(len(pmid_A), bool)
    at_D = np.searchsorted(pmid_A, pmid_D)
    hit_D = at_D < len(pmid_A)
    hit_D[hit_D] = pmid_A[at_D[hit_D]] == pmid_D[hit_D]
    at = at_D[hit_D]
    is_deleted[at] = file_A[at] <= file_D[hit_D]
    return is_deleted


def _concatenated(arrays: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *arrays])


def _write(
    draft: Path, path: Path, source: dict[str, Any], quarantine: Quarantine
) -> dict[str, Any]:
    """Write the draft of a part; its account."""
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
    """The report of an earlier try, if its part was made of this very file and is whole."""
    try:
        table, account = _open_part(part)
    except StoreError:
        return None
    found = json.loads((table.schema.metadata or {}).get(SOURCE_KEY, b"null"))
    return _report(path, part, account, is_reused=True) if found == source else None


def _open_part(part: Path) -> tuple[pa.Table, dict[str, Any]]:
    try:
        batches, account = [], None
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
    """What a part's metadata says of the file it was made of."""
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
    """Size and time of a file."""
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{path}: is not a file")
    return status.st_size, status.st_mtime_ns
