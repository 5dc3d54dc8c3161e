"""Files of downstream tasks: find the layout of a folder or file, and read its examples."""

from pathlib import Path

from raybio.core.errors import DataError
from raybio.methods.sppt.downstream.config import TASKS
from raybio.methods.sppt.downstream.formats import flip, gfp
from raybio.methods.sppt.downstream.formats.example import TaskFiles
from raybio.methods.sppt.downstream.formats.own_tables import read_labeled_rows, read_own_tables
from raybio.methods.sppt.downstream.formats.scibert import read_scibert
from raybio.methods.sppt.downstream.formats.scop import read_scop_domains
from raybio.methods.sppt.downstream.formats.tape import read_tape
from raybio.store.data_sets import is_table
from raybio.store.sources import MAX_LINE_LENGTH, open_source
from raybio.store.table_rows import column_names

FLIP_COLUMNS = {"sequence", "target", "set"}
"""Columns of FLIP's tables, besides ``validation``."""


def read_task_files(name: str, source: Path) -> TaskFiles:
    """Return the files of a task and an iterator over their examples.

    Args:
        name: one of ``TASKS``.
        source: a folder with TAPE's files (``*_train.lmdb`` or ``*_train.json``, ...), with
            SciBERT's ``train.txt``, ``dev.txt`` and ``test.txt``, or with FLIP's three FASTA files
            of secondary structure (or the zip of it). Or a file: FLIP's CSV (``sequence, target,
            set, validation``), the table of GFP genotypes, or a FASTA file with SCOP classes in its
            headers. All but LMDB and the zip may be gzip. Users' own tasks are tables (see
            ``read_own_tables``).

    Raises:
        DataError: if the source is missing or has no layout of the task. Iterating over the
            examples raises it for damaged records.
    """
    source = Path(source)
    if not source.exists():
        raise DataError(f"{source}: does not exist, want the files of {name}")
    if TASKS[name].is_own:
        return read_own_tables(TASKS[name], source)
    if TASKS[name].on_texts:
        task_files = read_scibert(source)
        wanted = "train.txt, dev.txt and test.txt"
    else:
        task_files = (
            read_tape(name, source)
            or flip.read_flip_structure(name, source)
            or _read_single_file(name, source)
        )
        wanted = "TAPE's LMDB or JSON, or FLIP's files"
    if task_files is None:
        raise DataError(f"{source}: holds no known layout of {name}; want {wanted}")
    return task_files


def _read_single_file(name: str, source: Path) -> TaskFiles | None:
    """Return the examples of a table or FASTA file, recognized by its columns, else None."""
    if not is_table(source):
        if not source.is_file():
            return None
        with open_source(source, "a table or FASTA") as file:
            first_line = file.readline(MAX_LINE_LENGTH)
        if not first_line.strip():
            raise DataError(
                f"{source}: is empty, or begins with an empty line; want the files of {name}"
            )
        if first_line.startswith(b">"):
            is_known = name == "remote_homology"
            return TaskFiles([source], read_scop_domains(source)) if is_known else None
    columns = column_names(source)
    if columns >= FLIP_COLUMNS:
        return TaskFiles([source], read_labeled_rows(TASKS[name], source))
    if columns >= set(gfp.TABLE_COLUMNS) and name == "fluorescence":
        return TaskFiles([source], gfp.read_gfp_genotypes(source))
    return None
