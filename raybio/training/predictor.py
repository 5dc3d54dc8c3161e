"""A trained model in a folder, with the head that predicts for new inputs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from raybio.core.text import skipped_lines
from raybio.store.quarantine import SkippedRecord


class InputPrediction(NamedTuple):
    """The prediction for one input.

    Attributes:
        key: id of the input.
        value: a row of the output, as a mapping by column, or a list of rows.
    """

    key: str
    value: dict[str, Any] | list[dict[str, Any]]


class Inputs(NamedTuple):
    """Inputs that have been read and validated.

    Attributes:
        blocks: function that returns them in order, in blocks that fit in memory.
        remarks: lines about inputs that are skipped or cut.
        source: data about the inputs that a method's own writers need.
    """

    blocks: Callable[[], Iterator[Any]]
    remarks: list[str]
    source: Any = None


PredictBlock = Callable[[Any], list[InputPrediction]]
"""One of ``Inputs.blocks`` -> its predictions, in order."""

WriteDocuments = Callable[[Path, Inputs, Iterable[InputPrediction]], int]
"""(path, inputs, predictions) -> the number of predictions that the file has."""


@dataclass(frozen=True)
class Predictor(ABC):
    """A folder with a head. Its records are read and checked; weights are read by ``load``.

    Attributes:
        folder: an export.
    """

    row_noun: ClassVar[str]
    """Noun for the rows of the output, in the plural."""

    folder: Path

    @property
    @abstractmethod
    def reads(self) -> str:
        """Kind of its inputs: "proteins", "texts", "sentences" or "documents"."""

    @property
    @abstractmethod
    def columns(self) -> pa.Schema:
        """Columns of the values of its predictions."""

    @abstractmethod
    def open_files(
        self, files: Sequence[Path], *, max_bad_share: float, strip_stop: bool
    ) -> AbstractContextManager[Inputs]:
        """Read and check files, without loading weights.

        Args:
            files: files of a kind that the class reads.
            max_bad_share: maximum fraction of invalid records.
            strip_stop: remove one ``*`` at the end of a protein; False for other inputs.

        Raises:
            DataError: if a file is missing, damaged or of another kind, or too much of it is
                invalid.
            ConfigError: if the model cannot read such inputs.
        """

    @abstractmethod
    def open_values(self, values: Iterable[Any]) -> AbstractContextManager[Inputs]:
        """Check inputs in memory. Unlike in files, none may be invalid.

        Raises:
            DataError: naming the first invalid one.
        """

    @abstractmethod
    def load(self) -> PredictBlock:
        """Load the weights, on a GPU if there is one.

        Raises:
            ConfigError: if they cannot be loaded.
        """

    def missing(self, value: dict[str, Any] | list[dict[str, Any]]) -> str:
        """Return what the prediction of an input lacks, for a remark; "" for nothing."""
        return ""

    @property
    def document_writers(self) -> dict[str, WriteDocuments]:
        """Suffix of a file -> the writer of a format that only this kind of prediction has."""
        return {}


def skipped_remarks(quarantine: Mapping[str, Any]) -> list[str]:
    """Return ``skipped_lines``, each with the first such record."""
    remarks = []
    for line, facts in zip(skipped_lines(quarantine), quarantine.values(), strict=True):
        if facts["examples"]:
            line += f", first {SkippedRecord(**facts['examples'][0])}"
        remarks.append(line)
    return remarks
