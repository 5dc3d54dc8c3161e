"""Nearest-neighbor search among millions of stored vectors, by faiss.

Only the vectors are stored, with their sha256. The index is rebuilt when it is opened, because
faiss's own reader does not validate its files.

Shape letters: C candidates, D width, Q queries, K nearest.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raybio.core.digest import file_digest
from raybio.core.errors import ConfigError, RecordError, StoreError
from raybio.core.records import read_record, write_record
from raybio.ops.nearest import Metric

EXACT_AT_MOST = 100_000
"""Maximum number of candidates for which the default index is exact."""


class VectorIndex:
    """An index of fixed vectors; approximate by default above ``EXACT_AT_MOST`` vectors.

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
            factory: faiss's index factory string, such as "Flat" or "IVF4096,Flat". None: "Flat" up
                to ``EXACT_AT_MOST`` candidates, above that inverted lists of which a sixteenth is
                searched.

        Raises:
            ConfigError: if faiss is not installed, or does not know the factory string.
            ValueError: without vectors, or for vectors that are not finite.
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
        self.vector_CD = vector_CD
        self.metric = metric
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
        """Return the k nearest candidates (Q, k) of each query, in order; -1 if fewer are found."""
        index_QK: NDArray[np.int64] = self._index.search(self._prepared(query_QD), k)[1]
        return index_QK

    def save(self, folder: Path, fingerprints: Mapping[str, str] | None = None) -> None:
        """Store the vectors; ``index.json`` is written last and marks a complete folder.

        Args:
            folder: where to store them.
            fingerprints: identify what the vectors were computed from, such as the encoder and the
                texts, by name.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "index.json").unlink(missing_ok=True)
        np.save(folder / "vectors.npy", np.asarray(self.vector_CD, np.float32), allow_pickle=False)
        facts = {
            "metric": self.metric,
            "of": dict(fingerprints or {}),
            "sha256": file_digest(folder / "vectors.npy"),
        }
        write_record(folder / "index.json", "vector index", facts)

    @classmethod
    def open(
        cls,
        folder: Path,
        factory: str | None = None,
        fingerprints: Mapping[str, str] | None = None,
    ) -> "VectorIndex":
        """Build the index from a folder that ``save`` wrote.

        Args:
            folder: where the vectors are stored.
            factory: as for a new index.
            fingerprints: must equal the stored ones; None: they are not compared.

        Raises:
            StoreError: if the folder is incomplete, its vectors were changed, or fingerprints
                differ.
            ConfigError: if faiss is not installed, or does not know the factory string.
        """
        try:
            facts = read_record(folder / "index.json", "vector index")
            if facts is None:
                raise StoreError(
                    f"{folder}: holds no complete index (no index.json). Save it again."
                )
            metric = facts["metric"]
            expected = facts["sha256"]
            found = file_digest(folder / "vectors.npy")
            stored = dict(facts["of"])
        except (OSError, RecordError, LookupError, TypeError) as error:
            raise StoreError(
                f"{folder}: holds no complete index ({error}). Save it again."
            ) from error
        if found != expected or metric not in ("l2", "cosine"):
            raise StoreError(
                f"{folder}: vectors.npy has sha256 {found}, want {expected}. Save it again."
            )
        wanted = fingerprints or {}
        differing = [name for name, value in wanted.items() if stored.get(name) != value]
        if differing:
            raise StoreError(
                f"{folder}: holds vectors of another {' and '.join(differing)}. Choose another "
                "folder, or remove this one."
            )
        vector_CD = np.load(folder / "vectors.npy", mmap_mode="r", allow_pickle=False)
        return cls(vector_CD, metric, factory)

    def _prepared(self, vector_ND: NDArray[np.float32]) -> NDArray[np.float32]:
        prepared_ND = np.ascontiguousarray(vector_ND, np.float32)
        if self.metric == "l2":
            return prepared_ND
        # Distances of unit vectors have the order of cosines. A zero vector stays zero, equally far
        # from all unit vectors.
        length_N1 = np.linalg.norm(prepared_ND.astype(np.float64), axis=1, keepdims=True)
        return (prepared_ND / np.where(length_N1 > 0, length_N1, 1)).astype(np.float32)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ConfigError(
            "faiss is not installed; want pip install 'raybio[cpu]', or 'raybio[gpu]' on a machine "
            "with a GPU and CUDA 12"
        ) from error
    return faiss
