"""Embeddings on disk: each corpus is embedded once by each model, also over several starts.

A corpus is a sequence of inputs. ``embeddings/MODEL/CORPUS.npy`` holds its vectors, and the record
next to it what they cost and the sha256 of that file. The array is written first: with its record,
it is complete. An array that does not match its record is computed again.

Shape letters: N inputs, D width.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from raybio.benchmark.memory import with_peak_bytes
from raybio.core.digest import digest_of, file_digest
from raybio.core.errors import RecordError
from raybio.core.files import locked, replacing
from raybio.core.records import fields_of, read_recomputable, write_record
from raybio.training.precision import default_device

KIND = "benchmark embeddings"

_log = logging.getLogger(__name__)

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class EmbeddingCost:
    """The cost of some embeddings.

    Attributes:
        rows: inputs that the encoder read.
        seconds: of ``device_seconds``, without loading the encoder.
        device: "cuda" or "cpu".
        peak_bytes: peak memory of ``with_peak_bytes``; None: it was not measured.
    """

    rows: int
    seconds: float
    device: str
    peak_bytes: int | None


class Embedded(NamedTuple):
    """Embeddings that were just computed.

    Attributes:
        vector_ND: a vector for each input of the corpus.
        num_read: inputs that the encoder read: some may be known, or have several vectors.
    """

    vector_ND: Vectors
    num_read: int


def device_seconds() -> float:
    """Return the reading of a clock in seconds; only differences are meaningful.

    On a GPU it is elapsed time, and waits for the work that was given to the GPU. On CPUs it is the
    processor time of all threads of this process, which does not depend on what else runs.
    """
    if default_device() == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def saved_embeddings(
    folder: Path,
    what: str,
    model: str,
    inputs: Sequence[str],
    load: Callable[[], object],
    make: Callable[[], Embedded],
    say: Callable[[str], None],
) -> Vectors:
    """Return the embeddings (N, D) of a corpus; the first call computes and writes them.

    Other processes wait for the one that computes.

    Args:
        folder: of the model's embeddings.
        what: everything that embeddings depend on besides inputs and weights; part of messages.
        model: its name in messages.
        inputs: the corpus.
        load: loads the encoder, if embeddings are computed; its time does not count.
        make: computes the embeddings.
        say: called with a line on what is computed or read back.
    """
    key = digest_of({"what": what, "inputs": list(inputs)})[:16]
    path = folder / f"{key}.npy"
    corpus = f"{len(inputs):,} {what} (corpus {key[:8]}) by {model}"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / f".{key}.lock"):
        array = _read(path, len(inputs))
        if array is not None:
            say(f"read back: {corpus}")
            return array
        say(f"embedding {corpus}")
        load()
        started = device_seconds()
        made, peak_bytes = with_peak_bytes(make)
        seconds = device_seconds() - started
        cost = EmbeddingCost(made.num_read, seconds, default_device(), peak_bytes)
        array = np.ascontiguousarray(made.vector_ND, np.float32)
        with replacing(path) as file:
            np.save(file, array)
        content = {"what": what, "sha256": file_digest(path), **asdict(cost)}
        write_record(path.with_suffix(".json"), KIND, content)
        say(f"embedded {corpus}")
        return array


def embedding_costs(folder: Path) -> list[EmbeddingCost]:
    """Return the costs of all corpora that a model has embedded."""
    records = [_recorded(path) for path in sorted(folder.glob("*.json"))]
    return [record.cost for record in records if record is not None]


class _Recorded(NamedTuple):
    """The content of a record.

    Attributes:
        sha256: of the file of vectors.
        cost: what they cost.
    """

    sha256: str
    cost: EmbeddingCost


def _recorded(path: Path) -> _Recorded | None:
    """Return a record; None, with a warning, if it is damaged or of another version."""
    try:
        record = read_recomputable(path, KIND)
        if record is None:
            return None
        cost = EmbeddingCost(**fields_of(EmbeddingCost, record, path))
    except RecordError as error:
        _log.warning("%s; its embeddings are computed again", error)
        return None
    return _Recorded(str(record.get("sha256")), cost)


def _read(path: Path, num_inputs: int) -> Vectors | None:
    """Return saved vectors; None if there are none, or, with a warning, if they are damaged."""
    record = _recorded(path.with_suffix(".json"))
    if record is None:
        return None
    try:
        if file_digest(path) == record.sha256:
            array = np.load(path, allow_pickle=False)
            return array if len(array) == num_inputs else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError) as error:
        _log.warning("%s: cannot be read (%s); it is computed again", path, error)
        return None
    _log.warning("%s: damaged, not what was written; it is computed again", path)
    return None
