"""The inputs of a bulk embedding: the records of a file, or the rows of a prepared store.

Shape letter: M inputs of a block.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from raybio.core.digest import digest_of, sha256_of
from raybio.core.errors import ConfigError, DataError
from raybio.core.location import Location
from raybio.runtime.any_store import open_store
from raybio.store.data_sets import is_table, table_files
from raybio.store.manifest import MANIFEST
from raybio.store.quarantine import Quarantine
from raybio.store.store import Store
from raybio.training.embedding_model import (
    InputEmbedder,
    check_strip_stop,
)

ROWS_AT_ONCE = 4096


class EmbeddingInputs(ABC):
    """Inputs in a fixed order."""

    @abstractmethod
    def digest(self) -> str:
        """Return 64 hex digits that change with the inputs."""

    @abstractmethod
    def blocks(self, model: InputEmbedder, quarantine: Quarantine) -> Iterator[pa.RecordBatch]:
        """Yield columns ``key`` and ``content`` (bytes) of the good inputs (M,).

        Raises:
            DataError: if they are missing, or not what the model reads.
        """


@dataclass(frozen=True)
class FileInputs(EmbeddingInputs):
    """The records of a file or of a data set's folder; see ``InputEmbedder.read_file``."""

    path: Path
    strip_stop: bool

    def digest(self) -> str:
        """Return the sha256 of the file, or that of a folder's files."""
        digests = [sha256_of(file) for file in table_files(self.path)]
        return digests[0] if len(digests) == 1 else digest_of({"files": digests})

    def blocks(self, model: InputEmbedder, quarantine: Quarantine) -> Iterator[pa.RecordBatch]:
        """Yield the good records."""
        yield from model.read_file(self.path, quarantine, strip_stop=self.strip_stop)


@dataclass(frozen=True)
class StoreInputs(EmbeddingInputs):
    """One field of the rows of a prepared store; rows without it are skipped."""

    store: Store
    field: str

    def digest(self) -> str:
        """Return the digest of the store and the field."""
        return f"{self.store.digest} {self.field}"

    def blocks(self, model: InputEmbedder, quarantine: Quarantine) -> Iterator[pa.RecordBatch]:
        """Yield the rows that have the field."""
        kind = model.record_kinds[0]
        name = self.store.path.name
        for start in range(0, self.store.num_rows, ROWS_AT_ONCE):
            end = min(start + ROWS_AT_ONCE, self.store.num_rows)
            keys, contents = self.store.inputs(self.field, start, end)
            has_content = pc.greater(pc.binary_length(contents), 0)
            quarantine.saw(kind, end - start)
            missing = pc.indices_nonzero(pc.invert(has_content)).to_pylist()
            examples = [(start + row + 1, str(keys[row])) for row in missing]
            quarantine.add_many(
                kind, f"row without {self.field}", name, len(missing), examples, is_bad=False
            )
            yield pa.record_batch(
                {"key": keys.filter(has_content), "content": contents.filter(has_content)}
            )


def inputs_of(
    source: Path, model: InputEmbedder, *, field: str | None = None, strip_stop: bool = False
) -> EmbeddingInputs:
    """Return the inputs of a file or a store.

    Args:
        source: a file or a data set's folder, or the folder of a prepared store.
        model: what embeds them.
        field: field of a store's rows; None: the first.
        strip_stop: remove one ``*`` at the end of a protein of a file.

    Raises:
        ConfigError: for a field that the store lacks, a field of a file, or ``strip_stop`` of
            anything but proteins in a file.
        DataError: for a folder that is not a store, or a store of inputs that the model does not
            read.
        StoreError: if the store is damaged.
    """
    check_strip_stop(strip_stop, model.reads, model.folder)
    is_store = (source / MANIFEST).is_file()
    if not source.is_dir() or (is_table(source) and not is_store):
        if field is not None:
            raise ConfigError(f"--field {field}: is for a store; {source} is none. Leave it out")
        return FileInputs(source, strip_stop)
    if not is_store:
        raise DataError(
            f"{source}: is a folder and neither a prepared store nor a data set; want one of "
            "these, or a file"
        )
    if strip_stop:
        raise ConfigError("--strip-stop is for files: no sequence of a store ends in *")
    store, field = open_input_store(source, field)
    if store.inputs_are != model.reads:
        raise DataError(
            f"{source}: is a store of {store.inputs_are}, and {model.folder} reads {model.reads}"
        )
    return StoreInputs(store, field)


def open_input_store(source: Location, field: str | None) -> tuple[Store, str]:
    """Open a store of whole proteins or texts, verified; return it and the field of its rows.

    Args:
        source: its folder, or its path in a bucket.
        field: the wanted field; None: the store's first.

    Raises:
        ConfigError: for a field that the store does not have.
        DataError: for a store of another kind.
        StorageError: if it cannot be fetched from a bucket.
        StoreError: if it is missing or damaged.
    """
    store = open_store(source, verify=True)
    if not store.input_fields:
        kind = store.manifest["kind"]
        raise DataError(f"{source}: a store of {kind} has no whole proteins or texts")
    if field is not None and field not in store.input_fields:
        raise ConfigError(
            f"--field {field}: {source} has {', '.join(store.input_fields)}; want one of these"
        )
    return store, field or store.input_fields[0]
