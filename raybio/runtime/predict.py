"""Predictions of a trained model for files of new inputs."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from raybio.core.files import check_not_input, check_writable_file, replaced_file
from raybio.runtime.heads import method_of_head, output_suffix, require_head
from raybio.store.table_rows import rows_at_once, write_rows
from raybio.training.embedding_model import check_strip_stop
from raybio.training.predictor import InputPrediction, Inputs, Predictor

ID = "id"
"""Column of a table of predictions with the ids of the inputs."""


def read_predictor(folder: str | Path) -> Predictor:
    """Read the head of an export, without its weights.

    Args:
        folder: an ``export/``.

    Raises:
        ConfigError: if there is no such folder, or it has no head.
    """
    path = Path(folder).expanduser()
    predictor = require_head(path).read_predictor(path)
    assert predictor is not None
    return predictor


def find_predictor(folder: Path) -> Predictor | None:
    """Return the head of an export, without its weights; None if it has none.

    Raises:
        ConfigError: if its records are damaged.
    """
    method = method_of_head(folder)
    return None if method is None else method.read_predictor(folder)


class PredictSummary(NamedTuple):
    """Summary of the written predictions.

    Attributes:
        num_rows: rows of the output, or relations of its documents.
        row_noun: noun for these rows, in the plural.
        num_inputs: inputs that were read.
    """

    num_rows: int
    row_noun: str
    num_inputs: int


def predict_file(
    predictor: Predictor,
    files: Sequence[Path],
    out: Path,
    *,
    max_bad_share: float = 0.1,
    strip_stop: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> PredictSummary:
    """Predict for all good inputs of files, in their order, and write the predictions atomically.

    The files are read and checked before weights are loaded. Inputs are predicted in blocks, so
    that memory does not grow with the files. Equal inputs give an equal file.

    Args:
        predictor: the model.
        files: the input files.
        out: ``.tsv``, ``.jsonl``, ``.parquet``, or a suffix of ``predictor.document_writers``.
        max_bad_share: maximum fraction of invalid records.
        strip_stop: remove one ``*`` at a protein's end.
        say: called with remarks, one line each.

    Raises:
        ConfigError: if ``out`` has another suffix, is an input or cannot be written, or the model
            does not read such files.
        DataError: if the input is missing, damaged or mostly invalid.
    """
    suffix = output_suffix(out, predictor.document_writers)
    check_writable_file(out)
    check_not_input(out, files)
    check_strip_stop(strip_stop, predictor.reads, predictor.folder)
    with predictor.open_files(files, max_bad_share=max_bad_share, strip_stop=strip_stop) as inputs:
        for remark in inputs.remarks:
            say(remark)
        predictions = _Counted(predictor, inputs)
        out.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(out) as partial:
            if suffix in predictor.document_writers:
                write = predictor.document_writers[suffix]
                num_rows = write(partial, inputs, predictions)
            else:
                schema = pa.schema([(ID, pa.string()), *predictor.columns])
                num_rows = write_rows(partial, suffix, schema, _row_blocks(predictions, schema))
        for missing, num in predictions.num_missing.items():
            say(f"{num:,} of {predictions.num_inputs:,} inputs got no {missing}")
    return PredictSummary(num_rows, predictor.row_noun, predictions.num_inputs)


class _Counted:
    """Iterates over the predictions for all blocks, and counts inputs and missing predictions."""

    def __init__(self, predictor: Predictor, inputs: Inputs) -> None:
        self.num_inputs = 0
        self.num_missing: Counter[str] = Counter()
        self._predictor = predictor
        self._predict = predictor.load()
        self._inputs = inputs

    def __iter__(self) -> Iterator[InputPrediction]:
        for block in self._inputs.blocks():
            for prediction in self._predict(block):
                self.num_inputs += 1
                if missing := self._predictor.missing(prediction.value):
                    self.num_missing[missing] += 1
                yield prediction


def _row_blocks(predictions: _Counted, schema: pa.Schema) -> Iterator[list[dict[str, Any]]]:
    iterator = iter(predictions)
    num_rows = rows_at_once(len(schema))
    while block := [*islice(iterator, num_rows)]:
        rows = []
        for key, value in block:
            values = value if isinstance(value, list) else [value]
            rows += [{ID: key, **columns} for columns in values]
        yield rows
