"""A trained encoder in a folder, and how it turns the inputs of a file into embeddings.

Shape letters: R inputs, M some of them, T tokens, D embedding width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from raybio.core.batch import TokenBatch
from raybio.core.digest import digest_of, sha256_of
from raybio.core.errors import ConfigError, DataError
from raybio.core.interfaces import Encoder
from raybio.encoders.config import Pooling
from raybio.encoders.hub import OTHER_WEIGHTS
from raybio.encoders.input_lengths import InputLengths
from raybio.ops.segments import positions_within
from raybio.store.json import is_text
from raybio.store.quarantine import Quarantine
from raybio.training.collective import SingleProcess
from raybio.training.embed import check_embeddings, embed_rows, embed_tokens

MAX_TOKENS_AT_ONCE = 16_384
"""Maximum tokens of a batch that is embedded without gradients, padding included."""

_CARD = "README.md"


@dataclass(frozen=True)
class InputEmbedder(ABC):
    """A model in a folder that turns the records of a file into rows of a table.

    Attributes:
        folder: a folder as ``save_pretrained`` writes it.
    """

    reads: ClassVar[str]
    """Kind of its inputs, in the plural."""

    row_noun: ClassVar[str]
    """Noun for the rows of the table, in the plural."""

    record_kinds: ClassVar[tuple[str, ...]]
    """Kinds of records of which the quarantine may refuse a share; the first is an input."""

    rows_per_part: ClassVar[int] = 256
    """Default number of inputs between two commits; it is small, since an input has many rows."""

    folder: str

    @abstractmethod
    def read_file(
        self, source: Path, quarantine: Quarantine, *, strip_stop: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns ``key`` and ``content`` (bytes) of the good records of a file.

        Args:
            source: the file. A model of whole inputs reads FASTA for proteins, ``text_lines`` for
                texts, plain or gzip; or a table of ``table_rows`` with a column "sequence" or
                "text", and perhaps "id".
            quarantine: collects the records that are skipped.
            strip_stop: remove one ``*`` at the end of a protein.

        Raises:
            DataError: if the file is missing, or not of the kind that the model reads.
        """

    @abstractmethod
    def load(self) -> Encoder:
        """Load the encoder, in evaluation mode.

        Raises:
            ConfigError: if it cannot be loaded.
        """

    @abstractmethod
    def truncation_remark(self, contents: Iterable[pa.ChunkedArray], num_contents: int) -> str:
        """Return a line that says which inputs are cut; empty if none is.

        Args:
            contents: blocks of inputs.
            num_contents: number of blocks.
        """

    @abstractmethod
    def embed_table(
        self, encoder: Encoder, keys: pa.ChunkedArray, contents: list[bytes], dtype: np.dtype
    ) -> pa.Table:
        """Return a table of embeddings: their inputs' ``key`` first, ``embedding`` last.

        The arithmetic is that of the surrounding ``embedding_precision``.

        Args:
            encoder: from ``load``.
            keys: ids of the inputs (R,).
            contents: the inputs (R,), from ``read_file``.
            dtype: of the numbers.
        """

    def digest(self) -> str:
        """Return 64 hex digits that change with anything that changes an embedding."""
        folder = Path(self.folder)
        settings = asdict(self) | {"reads": self.reads}
        del settings["folder"]
        # Skip hidden files of hubs and file managers, which no loader reads.
        paths = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
        names = sorted(
            path.as_posix()
            for path in paths
            if not any(part.startswith(".") for part in path.parts)
        )
        names = [name for name in names if name != _CARD and _is_loaded(folder, name)]
        files = {name: sha256_of(folder / name) for name in names}
        return digest_of({"settings": settings, "files": files})


def _is_loaded(folder: Path, name: str) -> bool:
    """Return whether a file is loaded; the hub's cache also holds weights for other programs."""
    path = folder / name
    if "openvino" in Path(name).parts[:-1]:
        return False
    if not any(path.match(pattern) for pattern in OTHER_WEIGHTS):
        return True
    is_pickled = path.match("*.bin") or path.match("*.bin.index.json")
    return is_pickled and not any(path.parent.glob("*.safetensors"))


@dataclass(frozen=True)
class EmbeddingModel(InputEmbedder):
    """An encoder's folder and how it embeds whole inputs, as the folder itself says.

    Attributes:
        folder: as ``save_pretrained`` writes it.
        pooling: "cls" or "mean"; of proteins the mean over residues, of texts the mean over all
            tokens.
        max_tokens: tokens of an input, special ones included; longer inputs are cut. None: the
            encoder's own limit.
        is_normalized: whether embeddings have length 1.
    """

    reads: ClassVar[Literal["proteins", "texts"]]
    """Kind of input that the encoder was trained on."""

    unit: ClassVar[str]
    """Name of the parts of an input, in the plural."""

    rows_per_part: ClassVar[int] = 4096

    pooling: Pooling
    max_tokens: int | None
    is_normalized: bool

    @abstractmethod
    def contents_of(self, values: Iterable[str]) -> list[bytes]:
        """Return inputs in memory as ``embed`` takes them.

        Raises:
            DataError: naming the first one that is no such input.
        """

    @abstractmethod
    def reader(self, encoder: Encoder, contents: list[bytes]) -> Callable[[np.ndarray], TokenBatch]:
        """Return a function from rows of ``contents`` (M,) to their tokens."""

    @abstractmethod
    def input_lengths(self, contents: Iterable[pa.ChunkedArray], num_contents: int) -> InputLengths:
        """Count the inputs that are truncated.

        For many texts, the count comes from an evenly spaced sample.

        Args:
            contents: blocks of inputs.
            num_contents: number of blocks.
        """

    def embed(self, encoder: Encoder, contents: list[bytes]) -> np.ndarray:
        """Return the embeddings (R, D) of inputs, float32.

        They are computed in the precision of the surrounding ``embedding_precision``, or else in
        fp32. This holds even if the run trained in another precision, so that an export gives the
        same embeddings on every machine. Scores of commands that embed with an export may therefore
        differ from the table of the run.

        Args:
            encoder: from ``load``.
            contents: upper-case residue letters, or texts in UTF-8.

        Raises:
            ConfigError: if an embedding is not finite.
        """
        read = self.reader(encoder, contents)
        rows = np.arange(len(contents))
        embedding_RD = embed_rows(
            encoder, read, rows, SingleProcess(), max_tokens=MAX_TOKENS_AT_ONCE
        )
        check_embeddings(embedding_RD, self.folder)
        return embedding_RD.cpu().numpy()

    def truncation_remark(self, contents: Iterable[pa.ChunkedArray], num_contents: int) -> str:
        """Return a line that says which inputs are cut; empty if none is."""
        return self.input_lengths(contents, num_contents).remark

    def embed_table(
        self, encoder: Encoder, keys: pa.ChunkedArray, contents: list[bytes], dtype: np.dtype
    ) -> pa.Table:
        """Return columns ``key`` and ``embedding``, with one row per input."""
        embedding_RD = self.embed(encoder, contents)
        return pa.table({"key": keys, "embedding": embedding_column(embedding_RD, dtype)})

    def embed_token_table(
        self, encoder: Encoder, keys: pa.ChunkedArray, contents: list[bytes], dtype: np.dtype
    ) -> pa.Table:
        """Return columns ``key``, ``position`` and ``embedding``, with one row per token.

        The embedding is the token's last hidden state. Positions count from 0: residues of a
        protein, or all tokens of a text, special ones included.
        """
        batch = self.reader(encoder, contents)(np.arange(len(contents)))
        is_shown_T = self.shown_tokens(encoder, batch.token_T).numpy()
        states = embed_tokens(encoder, batch, max_tokens=MAX_TOKENS_AT_ONCE)
        check_embeddings(states, self.folder)
        state_TD = states.numpy()
        row_T = np.repeat(np.arange(batch.num_rows), batch.length_R.numpy())[is_shown_T]
        count_R = np.bincount(row_T, minlength=batch.num_rows)
        position_T = positions_within(count_R)
        return pa.table(
            {
                "key": keys.take(pa.array(row_T)),
                "position": position_T,
                "embedding": embedding_column(state_TD[is_shown_T], dtype),
            }
        )

    def shown_tokens(self, encoder: Encoder, token_T: Tensor) -> Tensor:
        """Return which tokens have rows of their own, bool (T,): all of them."""
        return torch.ones_like(token_T, dtype=torch.bool)

    def __str__(self) -> str:
        """Describe in a line what is done with an input."""
        pooled = "[CLS] state" if self.pooling == "cls" else f"mean over {self.unit}"
        length = (
            "the encoder's own limit" if self.max_tokens is None else f"{self.max_tokens:,} tokens"
        )
        scaled = "length 1" if self.is_normalized else "not normalized"
        return f"{self.folder} ({self.reads}): {pooled}, inputs cut to {length}, {scaled}"


def embedding_column(embedding_ND: np.ndarray, dtype: np.dtype) -> pa.FixedSizeListArray:
    """Return finite embeddings as a column of a table.

    Raises:
        ConfigError: if a number is too large for the type.
    """
    with np.errstate(over="ignore"):
        values = embedding_ND.reshape(-1).astype(dtype)
    if not np.isfinite(values).all():
        largest = float(np.abs(embedding_ND).max())
        raise ConfigError(
            f"an embedding has a number of the size {largest:,.0f}, and the largest of {dtype} is "
            f"{float(np.finfo(dtype).max):,.0f}. Choose --dtype float32"
        )
    return pa.FixedSizeListArray.from_arrays(pa.array(values), embedding_ND.shape[1])


def check_values(values: Iterable[str], wanted: str) -> list[str]:
    """Return strings as a list; refuse anything else.

    Args:
        values: what was given; a generator can be read only once.
        wanted: what the strings are, in the plural.

    Raises:
        DataError: naming the first value that is no string, or no Unicode text.
    """
    if isinstance(values, str | bytes):
        raise DataError(f"got one {type(values).__name__}, want a list of {wanted}; put it in []")
    texts = list(values)
    for number, value in enumerate(texts):
        if not isinstance(value, str):
            raise DataError(
                f"input {number}: got {type(value).__name__} {value!r:.60}, want a string; "
                f"give a list of {wanted}"
            )
        if not is_text(value):
            raise DataError(
                f"input {number}: got {value!r:.60}, which holds half of a character (an unpaired "
                "surrogate); want Unicode text"
            )
    return texts


def check_strip_stop(strip_stop: bool, reads: str, folder: str | Path) -> None:
    """Refuse to strip stop symbols of anything but proteins.

    Raises:
        ConfigError: if ``strip_stop`` is set and a model reads something else.
    """
    if strip_stop and reads != "proteins":
        raise ConfigError(f"strip_stop is for proteins, and {folder} reads {reads}; leave it out")


def settled_pooling(folder: Path, stated: Pooling | None, given: Pooling | None) -> Pooling:
    """Return the pooling that a folder states, or the one given by the user if it states none.

    Raises:
        ConfigError: if there is neither, or both and they differ.
    """
    if given not in (None, "cls", "mean"):
        raise ConfigError(f"pooling: got {given!r}, want cls or mean")
    if stated is None and given is None:
        raise ConfigError(
            f"{folder}: does not state how its tokens are pooled; give the pooling, mean or cls"
        )
    if stated is not None and given is not None and stated != given:
        raise ConfigError(
            f"pooling {given}: {folder} states {stated}; leave it out, or choose another folder"
        )
    pooling = stated or given
    assert pooling is not None
    return pooling
