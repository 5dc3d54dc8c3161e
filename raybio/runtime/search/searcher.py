"""Search by faiss among vectors in memory or in mapped files.

faiss finds candidates in single precision, from matrix products. Its results depend on the size of
a call, and are wrong for vectors that lie close together and far from 0. Therefore a common center
is subtracted from the vectors, and faiss ranks by Euclidean distance, which for vectors of length 1
gives the order of cosines. The best candidates are then scored by exact differences of vectors.

Without a GPU, the vectors of an ``Approximation`` are searched in two steps. First, faiss scans the
inverted lists nearest to a query (IVF; Sivic and Zisserman 2003), in which vectors are
product-quantized to 4 bits per two numbers (Jégou et al. 2011; André et al. 2015). Opening needs no
training, since lists and codes are saved. faiss's own file format is not used, since its reader
does not validate what it reads.

Shape letters: N vectors, D width, L lists, Q queries, K neighbors, R candidates.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from raybio.core.distance import Distance
from raybio.runtime.search.embeddings import ROWS_AT_ONCE
from raybio.runtime.search.faiss_package import num_gpus

BITS = 4
"""Bits of a code; faiss scans 4-bit codes by far the fastest."""

MIN_CANDIDATES = 50
QUERIES_AT_ONCE = 256

CANDIDATE_BYTES = 64 << 20
"""Maximum bytes of candidate vectors that are scored at once; a single query may need more."""

SPARE_CANDIDATES = 40
"""Extra candidates of an exact search, whose result is wrong only if more vectors are as near."""

MAX_GPU_NEIGHBORS = 2048
"""Maximum number of neighbors that faiss finds on a GPU."""

_SAMPLE = 1000
"""Size of the sample of vectors whose median is the center."""


@dataclass(frozen=True)
class Approximation:
    """Inverted lists and codes of vectors that are stored list after list.

    Attributes:
        list_size_L: number of vectors of each list.
        centroid_LD: centroids of the lists, float32.
        code_NB: codes of the vectors, uint8.
        codebook: centroids of the product quantizer, float32.
    """

    list_size_L: np.ndarray
    centroid_LD: np.ndarray
    code_NB: np.ndarray
    codebook: np.ndarray


class Effort(NamedTuple):
    """The effort of a search of an ``Approximation``.

    Attributes:
        num_probes: number of lists that are read.
        candidates_per_neighbor: number of candidates per neighbor that are scored exactly.
    """

    num_probes: int = 1
    candidates_per_neighbor: int = 5


LEAST_EFFORT = Effort()


def num_subvectors(width: int) -> int:
    """Return the number of parts of a product-quantized vector: of two numbers each, or of one."""
    return width // 2 if width % 2 == 0 else width


def center_of(vector_ND: np.ndarray) -> np.ndarray:
    """Return a point (D,) in the middle of vectors, float32."""
    # The median, because a single outlier would move the mean.
    sample_MD = vector_ND[:: len(vector_ND) // _SAMPLE + 1]
    return np.median(sample_MD, axis=0).astype(np.float32)


def on_gpu(faiss: Any, index: Any) -> Any:
    """Return an index moved to the first GPU, or the index itself if there is no GPU."""
    if num_gpus(faiss) == 0:
        return index
    return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index)


class Searcher:
    """Finds the nearest of fixed vectors.

    With a GPU the search is exact if the vectors take at most a third of its free memory.

    Attributes:
        is_exact: whether all vectors are compared with a query.
        effort: effort of a search that is not exact.
        center_D: vector that is subtracted from vectors and queries.
    """

    def __init__(
        self,
        faiss: Any,
        vector_ND: np.ndarray,
        metric: Distance,
        approximation: Approximation | None,
        effort: Effort = LEAST_EFFORT,
        *,
        use_gpu: bool = True,
    ) -> None:
        """Load vectors or codes into faiss.

        Args:
            faiss: the module.
            vector_ND: the vectors, float32, of length 1 for "cosine".
            metric: "euclidean" or "cosine".
            approximation: approximation of these vectors; None: the search is exact.
            effort: effort of a search that is not exact.
            use_gpu: whether to use a GPU if there is one.
        """
        self._faiss = faiss
        self._vector_ND = vector_ND
        self._metric = metric
        self._approximation = approximation
        self.effort = effort
        fits_gpu = use_gpu and _fits_gpu(faiss, vector_ND)
        self._is_on_gpu = fits_gpu
        self.is_exact = approximation is None or fits_gpu
        if self.is_exact:
            self.center_D = center_of(vector_ND)
            index = faiss.IndexFlatL2(vector_ND.shape[1])
            if fits_gpu:
                index = on_gpu(faiss, index)
            self._index = self._filled(index)
        else:
            assert approximation is not None
            # Use the centroids, so that a saved index opens without reading its vectors.
            self.center_D = center_of(approximation.centroid_LD)
            self._index = _scanner(faiss, approximation, self.center_D)

    @cached_property
    def _index_on_cpu(self) -> Any:
        return self._filled(self._faiss.IndexFlatL2(self._vector_ND.shape[1]))

    def _filled(self, index: Any) -> Any:
        """Add the vectors to an exact index, and return it."""
        # Add them in blocks: a shifted copy of all vectors may not fit into memory.
        for start in range(0, len(self._vector_ND), ROWS_AT_ONCE):
            index.add(self._vector_ND[start : start + ROWS_AT_ONCE] - self.center_D)
        return index

    def search(self, query_QD: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return scores (Q, K) and rows (Q, K) of the k <= N nearest vectors, the nearest first.

        Scores are cosines, or squared Euclidean distances. Equally near vectors are ordered by row.
        """
        scores = [np.zeros((0, k), np.float32)]
        rows = [np.zeros((0, k), np.int64)]
        row_bytes = self.num_candidates(k) * query_QD.shape[1] * self._vector_ND.itemsize
        step = min(max(CANDIDATE_BYTES // row_bytes, 1), QUERIES_AT_ONCE)
        # For few queries, faiss compares with all vectors one by one, which is 20 times slower.
        exact_QR = self._candidates(query_QD, k) if self.is_exact else None
        for start in range(0, len(query_QD), step):
            block_MD = query_QD[start : start + step]
            if exact_QR is None:
                row_MR = self._candidates(block_MD, k)
            else:
                row_MR = exact_QR[start : start + step]
            score_MK, row_MK = self._nearest(block_MD, row_MR, k)
            scores.append(score_MK)
            rows.append(row_MK)
        return np.concatenate(scores), np.concatenate(rows)

    def num_candidates(self, k: int) -> int:
        """Return the number of vectors that are scored exactly for each query, R."""
        wanted = max(MIN_CANDIDATES, k * self.effort.candidates_per_neighbor)
        if self.is_exact:
            wanted = k + SPARE_CANDIDATES
        return min(wanted, len(self._vector_ND))

    def _candidates(self, query_QD: np.ndarray, k: int) -> np.ndarray:
        """Return the rows (Q, R) that faiss finds, at least k; -1 if lists hold fewer than R."""
        query_QD = query_QD - self.center_D
        num_candidates = self.num_candidates(k)
        if self.is_exact:
            index = self._index
            if self._is_on_gpu and num_candidates > MAX_GPU_NEIGHBORS:
                index = self._index_on_cpu
            exact_QR: np.ndarray = index.search(query_QD, num_candidates)[1]
            return exact_QR
        row_QR = self._scan(query_QD, num_candidates, self.effort.num_probes)
        is_short_Q = (row_QR >= 0).sum(axis=1) < k
        if is_short_Q.any():
            # The lists that were read hold fewer than k vectors.
            assert self._approximation is not None
            num_lists = len(self._approximation.centroid_LD)
            row_QR[is_short_Q] = self._scan(query_QD[is_short_Q], num_candidates, num_lists)
        return row_QR

    def _nearest(
        self, query_QD: np.ndarray, row_QR: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return scores (Q, K) and rows (Q, K) of the k candidates nearest to each query."""
        row_QR = np.sort(row_QR, axis=1)
        difference_QRD = self._vector_ND[np.maximum(row_QR, 0)]
        difference_QRD -= query_QD[:, None]
        # One pass over the differences; squaring first would write and read them again.
        distance_QR = torch.linalg.vector_norm(torch.from_numpy(difference_QRD), dim=2).square_()
        distance_QR[torch.from_numpy(row_QR < 0)] = torch.inf
        nearest_QR = distance_QR.sort(dim=1, stable=True)
        distance_QK = nearest_QR.values[:, :k].numpy()
        row_QK = np.take_along_axis(row_QR, nearest_QR.indices[:, :k].numpy(), axis=1)
        # Vectors of length 1: |a - b|^2 = 2 - 2 cos.
        return (1 - distance_QK / 2 if self._metric == "cosine" else distance_QK), row_QK

    def _scan(self, query_QD: np.ndarray, num: int, num_probes: int) -> np.ndarray:
        """Return the rows (Q, R) of the candidates; -1 if the lists hold fewer."""
        self._index.nprobe = num_probes
        row_QR: np.ndarray = self._index.search(query_QD, num)[1]
        return row_QR


def _fits_gpu(faiss: Any, vector_ND: np.ndarray) -> bool:
    if num_gpus(faiss) == 0 or not torch.cuda.is_available():
        return False
    num_free_bytes, _ = torch.cuda.mem_get_info(0)
    # While an index grows block by block, it holds its vectors up to twice, plus a quarter.
    return vector_ND.nbytes <= num_free_bytes / 3


def _scanner(faiss: Any, approximation: Approximation, center_D: np.ndarray) -> Any:
    """Return a faiss index of lists and codes that exist already, shifted to a center."""
    num_lists, width = approximation.centroid_LD.shape
    num_parts = num_subvectors(width)
    quantizer = faiss.IndexFlatL2(width)
    quantizer.add(approximation.centroid_LD - center_D)
    index = faiss.IndexIVFPQ(quantizer, width, num_lists, num_parts, BITS)
    # Encode the vectors themselves: codes of residuals would need a table for each list.
    index.by_residual = False
    codebook = approximation.codebook.reshape(num_parts, 2**BITS, -1)
    codebook = codebook - center_D.reshape(num_parts, 1, -1)
    faiss.copy_array_to_vector(codebook.reshape(-1), index.pq.centroids)
    code_NB = np.ascontiguousarray(approximation.code_NB)
    row_N = np.arange(len(code_NB), dtype=np.int64)
    start = 0
    for number, size in enumerate(approximation.list_size_L.tolist()):
        end = start + size
        if size:
            index.invlists.add_entries(
                number, size, faiss.swig_ptr(row_N[start:end]), faiss.swig_ptr(code_NB[start:end])
            )
        start = end
    index.ntotal = len(code_NB)
    index.is_trained = True
    return faiss.IndexIVFPQFastScan(index)
