"""Cleaning of blocks of protein sequences, without Python per letter.

The letters A to Z are legal: the 20 amino acids, the ambiguous B, J, X and Z, selenocysteine U and
pyrrolysine O. J is kept, since an encoder's vocabulary decides its meaning.

Shape letters: N records of a block, T letters of them end to end.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raybio.methods.sppt.table_columns import is_missing, null_words
from raybio.store.quarantine import Quarantine
from raybio.store.ragged import Ragged

STOP = ord("*")
LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
UPPER = bytes.maketrans(LETTERS.lower(), LETTERS)
_IS_LEGAL = np.zeros(256, dtype=bool)
_IS_LEGAL[list(LETTERS)] = True

PROTEIN_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("group", pa.string()),
        ("sequence", pa.large_binary()),
        ("line", pa.int64()),
    ]
)
"""Columns that every reader of proteins yields; group: the species, empty if the file has none."""


def clean(
    batch: pa.RecordBatch, quarantine: Quarantine, file: str, *, strip_stop: bool, max_length: int
) -> pa.RecordBatch:
    """Return the good records of a block, with upper-case sequences.

    Args:
        batch: records in ``PROTEIN_SCHEMA``, sequences as in the file, without white space.
        quarantine: takes bad records.
        file: name of the file, for the quarantine.
        strip_stop: remove one ``*`` at a sequence's end.
        max_length: longest sequence that is kept, in letters.

    Returns:
        The good records, in order.
    """
    quarantine.saw("protein", len(batch))
    ragged = Ragged.of(batch.column("sequence"))
    ragged = ragged._replace(
        value_T=np.frombuffer(ragged.value_T.tobytes().translate(UPPER), dtype=np.uint8)
    )
    if strip_stop:
        ragged = _without_stop(ragged)
    length_N = np.diff(ragged.indptr_N1)
    num_illegal_N, first_illegal_N = _illegal(ragged)
    is_null_N = np.asarray(
        pc.is_in(batch.column("sequence"), value_set=null_words(pa.large_binary()))
    )
    reasons = [
        ("no id", is_missing(batch.column("key"))),
        ("no sequence", (length_N == 0) | is_null_N),
        (f"sequence longer than {max_length:,} letters", length_N > max_length),
        (
            "stop symbol '*' in the sequence (--strip-stop removes it at the end)",
            first_illegal_N == STOP,
        ),
        ("letter that is not an amino acid", num_illegal_N > 0),
    ]
    bad_N = np.zeros(len(batch), dtype=bool)
    for reason, is_here_N in reasons:
        rows = np.flatnonzero(is_here_N & ~bad_N)
        bad_N |= is_here_N
        first = rows[: quarantine.num_examples]
        details = [_detail(batch, int(row), int(first_illegal_N[row])) for row in first]
        lines = batch.column("line").take(pa.array(first)).to_pylist()
        quarantine.add_many("protein", reason, file, len(rows), zip(lines, details, strict=True))
    cleaned = batch.set_column(
        batch.schema.get_field_index("sequence"), "sequence", ragged.to_arrow()
    )
    return cleaned.take(pa.array(np.flatnonzero(~bad_N))) if bad_N.any() else cleaned


def _without_stop(ragged: Ragged) -> Ragged:
    length_N = np.diff(ragged.indptr_N1)
    last = ragged.indptr_N1[1:][length_N > 0] - 1
    stop = last[ragged.value_T[last] == STOP]
    num_before_N1 = np.searchsorted(stop, ragged.indptr_N1)
    return Ragged(np.delete(ragged.value_T, stop), ragged.indptr_N1 - num_before_N1)


def _illegal(ragged: Ragged) -> tuple[np.ndarray, np.ndarray]:
    """Return each sequence's number of illegal letters and the first of them (0 if none)."""
    num_rows = len(ragged.indptr_N1) - 1
    first_N = np.zeros(num_rows, dtype=np.uint8)
    position = np.flatnonzero(~_IS_LEGAL[ragged.value_T])
    row = np.searchsorted(ragged.indptr_N1, position, side="right") - 1
    first_N[row[::-1]] = ragged.value_T[position[::-1]]
    return np.bincount(row, minlength=num_rows), first_N


def _detail(batch: pa.RecordBatch, row: int, illegal: int) -> str:
    key = batch.column("key")[row].as_py()
    return f"{key}: {chr(illegal)!r}" if illegal else key
