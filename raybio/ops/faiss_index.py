"""Search among millions of stored vectors, by faiss.

Only the vectors are stored, with their sha256; the index is built anew when it is opened. faiss's own files are not
read: its reader trusts what it reads.

C candidates, D width, Q queries, K nearest.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raybio.core.errors import ConfigError, RecordError, StoreError
from raybio.core.records import read_record, write_record
from raybio.ops.nearest import Metric

EXACT_AT_MOST = 100_000
"""Candidates up to which the default index is exact."""


class VectorIndex:
    """Nearest neighbours among fixed vectors; above 100,000 of them not always the very nearest.

    Attributes:
        vector_CD: the candidates, float32, memory-mapped where they come from a folder.
        metric: "l2" or "cosine".
    """

    def __init__(
        self, vector_CD: NDArray[np.float32], metric: Metric = "l2", factory: str | None = None
    ):
        """Build the index.

        Args:
            vector_CD: finite vectors, at least one.
            metric: "l2" or "cosine".
            factory: what faiss calls an index factory string, such as "Flat" or "IVF4096,Flat"; None: "Flat" up to
                100,000 candidates, above that inverted lists of which a sixteenth is searched.

        Raises:
            ConfigError: if faiss is not installed, or knows no such index.
            ValueError: for vectors that are not finite, or none.
        """
        if (
            vector_CD.ndim != 2
            or 0 in vector_CD.shape
            or not np.isfinite(vector_CD.sum(dtype=np.float64))
        ):
            raise ValueError(
                f"vectors {vector_CD.shape}: want (C, D), at least one of each and all finite"
            )
        faiss = _faiss()
        self.vector_CD, self.metric = vector_CD, metric
        num, width = vector_CD.shape
        num_lists = int(4 * num**0.5)
        factory = factory or ("Flat" if num <= EXACT_AT_MOST else f"IVF{num_lists},Flat")
        try:
            self._index: Any = faiss.index_factory(width, factory)
        except RuntimeError as error:
            raise ConfigError(
                f"faiss knows no index {factory!r}; want such as 'Flat' or 'IVF4096,Flat'"
            ) from error
        prepared_CD = self._prepared(vector_CD)
        self._index.train(prepared_CD)
        self._index.add(prepared_CD)
        if hasattr(self._index, "nprobe"):
            self._index.nprobe = max(1, self._index.nlist // 16)

    def search(self, query_QD: NDArray[np.float32], k: int) -> NDArray[np.int64]:
        """The k nearest candidates (Q, k) of each query, in order; -1 where fewer were found."""
        index_QK: NDArray[np.int64] = self._index.search(self._prepared(query_QD), k)[1]
        return index_QK

    def save(self, folder: Path, of: Mapping[str, str] | None = None) -> None:
        """Store the vectors; ``index.json`` is written last, and without it there is nothing to open.

        Args:
            folder: where.
            of: what they are vectors of, such as the encoder's and the texts' fingerprints, by what each is called.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "index.json").unlink(missing_ok=True)
        np.save(folder / "vectors.npy", np.asarray(self.vector_CD, np.float32), allow_pickle=False)
        facts = {
            "metric": self.metric,
            "of": dict(of or {}),
            "sha256": _sha256(folder / "vectors.npy"),
        }
        write_record(folder / "index.json", "vector index", facts)

    @classmethod
    def open(
        cls, folder: Path, factory: str | None = None, of: Mapping[str, str] | None = None
    ) -> "VectorIndex":
        """Build the index of a folder that ``save`` wrote.

        Args:
            folder: where.
            factory: as for a new index.
            of: what its vectors must be of, as they were saved; None: whatever it is.

        Raises:
            StoreError: if the folder is not whole, its vectors were changed, or they are of something else.
            ConfigError: if faiss is not installed, or knows no such index.
        """
        try:
            facts = read_record(folder / "index.json", "vector index")
            if facts is None:
                raise StoreError(f"{folder}: holds no whole index (no index.json). Save it again.")
            metric = facts["metric"]
            expected = facts["sha256"]
            kept = dict(facts["of"])
            found = _sha256(folder / "vectors.npy")
        except (OSError, RecordError, LookupError, TypeError) as error:
            raise StoreError(f"{folder}: holds no whole index ({error}). Save it again.") from error
        if found != expected or metric not in ("l2", "cosine"):
            raise StoreError(
                f"{folder}: vectors.npy has sha256 {found}, want {expected}. Save it again."
            )
        if others := [what for what, wanted in (of or {}).items() if kept.get(what) != wanted]:
            raise StoreError(
                f"{folder}: holds vectors of another {' and '.join(others)}. Choose another folder, or remove this one."
            )
        return cls(
            np.load(folder / "vectors.npy", mmap_mode="r", allow_pickle=False), metric, factory
        )

    def _prepared(self, vector_ND: NDArray[np.float32]) -> NDArray[np.float32]:
        prepared_ND = np.ascontiguousarray(vector_ND, np.float32)
        if self.metric == "l2":
            return prepared_ND
        # Distances of unit vectors are in the order of cosines; a zero vector stays, as far from all.
        length_N1 = np.linalg.norm(prepared_ND.astype(np.float64), axis=1, keepdims=True)
        return (prepared_ND / np.where(length_N1 > 0, length_N1, 1)).astype(np.float32)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ConfigError(
            "faiss is not installed; pip install faiss-cpu, or use retrieval.nearest"
        ) from error
    return faiss


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
