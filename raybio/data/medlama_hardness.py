"""Which queries of a MedLAMA folder are hard by its own files, by the authors' code and by the clean scores."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from raybio.data.probe_benchmark import COLUMNS, SEPARATOR, medlama_files, medlama_rows
from raybio.errors import DataError
from raybio.functional.name_overlap import Overlap, name_overlap


@dataclass(frozen=True)
class Hardness:
    """One query of the full set, judged three times.

    Attributes:
        file: its file's name.
        line: and where it ends there.
        relation: of the query.
        head: the head's name.
        stored: the scores that the file has.
        legacy: as the authors' code reckons them.
        clean: as they are meant.
    """

    file: str
    line: int
    relation: str
    head: str
    stored: Overlap
    legacy: Overlap
    clean: Overlap

    @property
    def is_disputed(self) -> bool:
        """Whether the three disagree on the query."""
        return len({self.stored.is_hard, self.legacy.is_hard, self.clean.is_hard}) > 1


def read_hardness(folder: str | Path) -> Iterator[Hardness]:
    """Judge every query of the full set, in order of relation and line.

    Raises:
        DataError: for files that are missing or of another layout, with file and line.
    """
    for path in medlama_files(Path(folder))["full"]:
        for line, row in medlama_rows(path, (*COLUMNS, "avg_match", "avg_rouge_l")):
            try:
                stored = Overlap(float(row["avg_match"]), float(row["avg_rouge_l"]))
            except ValueError as error:
                raise DataError(f"{path}, line {line}: {error}; want numbers for avg_match and avg_rouge_l") from None
            head, tails = row["head_name"], row["tail_names"].split(SEPARATOR)
            legacy, clean = name_overlap(head, tails, legacy=True), name_overlap(head, tails)
            yield Hardness(path.name, line, row["rel"], head, stored, legacy, clean)
