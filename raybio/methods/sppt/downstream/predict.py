"""Predict classes, numbers or residue tags of new proteins and texts, by an exported model.

Shape letters: R inputs of a block, M inputs of a micro-batch, L padded length, D width, C classes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import load_file

from raybio.core.batch import TokenBatch
from raybio.core.errors import ConfigError, DataError
from raybio.methods.sppt.downstream.encoder import TaskModel
from raybio.methods.sppt.downstream.export import HEAD_WEIGHTS, TaskHead
from raybio.methods.sppt.downstream.formats.own_tables import LABEL_SEPARATOR
from raybio.methods.sppt.downstream.heads import build_head
from raybio.methods.sppt.proteins.embedding_model import read_embedding_model
from raybio.methods.sppt.proteins.encoder import ProteinEncoder
from raybio.store.data_sets import is_table
from raybio.store.quarantine import Quarantine
from raybio.store.sources import check_readable_files
from raybio.store.table_rows import ID_COLUMNS, column_names, rows_at_once
from raybio.training.collective import SingleProcess
from raybio.training.embed import embed_rows
from raybio.training.embedding_model import MAX_TOKENS_AT_ONCE, EmbeddingModel
from raybio.training.micro_batches import overhead_tokens_on, token_budget_micro_batches
from raybio.training.precision import default_device
from raybio.training.predictor import (
    InputPrediction,
    Inputs,
    PredictBlock,
    Predictor,
    skipped_remarks,
)
from raybio.training.text_embedding_model import read_text_embedding_model


class TaskBlock(NamedTuple):
    """Some inputs.

    Attributes:
        keys: ids.
        contents: upper-case residue letters, or texts in UTF-8.
    """

    keys: list[str]
    contents: list[bytes]


@dataclass(frozen=True)
class TaskPredictor(Predictor):
    """A fine-tuned encoder and its head.

    Attributes:
        head: what the head predicts.
        model: how the folder's encoder reads inputs.
    """

    row_noun = "predictions"

    head: TaskHead
    model: EmbeddingModel

    @cached_property
    def _probability_columns(self) -> list[str]:
        return [f"p({name})" for name in self.head.class_names]

    @property
    def _rows_at_once(self) -> int:
        return rows_at_once(len(self.columns))

    @property
    def reads(self) -> str:
        """Kind of its inputs: "proteins" or "texts"."""
        return self.model.reads

    @property
    def columns(self) -> pa.Schema:
        """Columns by the head's labels.

        - number: ``number``, in the unit of the task.
        - class: ``class``, its ``probability``, and ``p(NAME)`` of each class.
        - class_set: ``classes``, divided by ``;`` as in a table of labels, and ``p(NAME)``.
        - residues: ``num_residues`` of the protein, and ``tags`` of those that the encoder reads.
        """
        if self.head.labels == "number":
            return pa.schema([("number", pa.float64())])
        if self.head.labels == "residues":
            return pa.schema([("num_residues", pa.int64()), ("tags", pa.list_(pa.string()))])
        probabilities = [(name, pa.float64()) for name in self._probability_columns]
        if self.head.labels == "class_set":
            return pa.schema([("classes", pa.string()), *probabilities])
        return pa.schema([("class", pa.string()), ("probability", pa.float64()), *probabilities])

    @contextmanager
    def open_files(
        self, files: Sequence[Path], *, max_bad_share: float, strip_stop: bool
    ) -> Iterator[Inputs]:
        """Read FASTA, text lines or tables; every file is read once before the first prediction."""
        check_readable_files(files)
        kind = "text" if self.head.on_texts else "protein"
        num_rows = self._rows_at_once

        def batches(quarantine: Quarantine) -> Iterator[pa.RecordBatch]:
            for file in files:
                yield from self.model.read_file(file, quarantine, strip_stop=strip_stop)

        def blocks() -> Iterator[TaskBlock]:
            """Yield blocks of ``num_rows`` inputs."""
            # Equal blocks whatever the format, so that predictions are equal to the last digit.
            waiting = TaskBlock([], [])
            for batch in batches(Quarantine(max_bad_share)):
                waiting.keys.extend(batch.column("key").to_pylist())
                waiting.contents.extend(batch.column("content").to_pylist())
                while len(waiting.keys) >= num_rows:
                    yield TaskBlock(waiting.keys[:num_rows], waiting.contents[:num_rows])
                    waiting = TaskBlock(waiting.keys[num_rows:], waiting.contents[num_rows:])
            if waiting.keys:
                yield waiting

        quarantine = Quarantine(max_bad_share)
        sizes = [len(batch) for batch in batches(quarantine) if len(batch)]
        quarantine.check(kind)
        if not sizes:
            raise DataError(
                f"{files[0]}: has no good {kind}, want at least one; {quarantine.summary()}"
            )
        contents = (
            pa.chunked_array([batch.column("content")])
            for batch in batches(Quarantine(max_bad_share))
            if len(batch)
        )
        remarks = skipped_remarks(quarantine.summary())
        if cut := self.model.input_lengths(contents, len(sizes)).remark:
            remarks.append(cut)
        for file in files:
            if is_table(file) and column_names(file).isdisjoint(ID_COLUMNS):
                remarks.append(
                    f"{file.name}: no column {ID_COLUMNS[0]}: rows are numbered; rename yours"
                )
        yield Inputs(blocks, remarks)

    @contextmanager
    def open_values(self, values: Iterable[str]) -> Iterator[Inputs]:
        """Take sequences or texts; their ids are their numbers, from 1."""
        contents = self.model.contents_of(values)

        def blocks() -> Iterator[TaskBlock]:
            for start in range(0, len(contents), self._rows_at_once):
                part = contents[start : start + self._rows_at_once]
                yield TaskBlock([str(start + number) for number in range(1, len(part) + 1)], part)

        yield Inputs(blocks, [])

    def missing(self, value: dict[str, Any] | list[dict[str, Any]]) -> str:
        """Return why a predicted set of classes is empty; "" for other predictions."""
        is_empty = isinstance(value, dict) and value.get("classes") == ""
        return f"class: no probability reaches {self.head.threshold:g}" if is_empty else ""

    def load(self) -> PredictBlock:
        """Load encoder and head."""
        encoder = self.model.load()
        on_tokens = self.head.labels == "residues"
        head = build_head(
            self.head.kind,
            encoder.width,
            max(1, len(self.head.class_names)),
            on_tokens=on_tokens,
            seed=0,
        )
        try:
            head.load_state_dict(load_file(self.folder / HEAD_WEIGHTS))
        except (OSError, RuntimeError) as error:
            raise ConfigError(
                f"{self.folder / HEAD_WEIGHTS}: does not fit the encoder ({error}); export the "
                "run again"
            ) from None
        device = default_device()
        model = TaskModel(encoder, head, on_tokens=on_tokens, dropout=0.0).eval().to(device)

        def predict(block: TaskBlock) -> list[InputPrediction]:
            read = self.model.reader(encoder, block.contents)
            with torch.no_grad():
                if on_tokens:
                    values = self._tags(model, read, block)
                else:
                    values = self._of_inputs(model, read, len(block.contents))
            return [*map(InputPrediction, block.keys, values)]

        return predict

    def _of_inputs(
        self, model: TaskModel, read: Callable[[np.ndarray], TokenBatch], num_inputs: int
    ) -> list[dict[str, Any]]:
        """Return the class, the set of classes or the number of each input."""
        embedding_RD = embed_rows(
            model, read, np.arange(num_inputs), SingleProcess(), max_tokens=MAX_TOKENS_AT_ONCE
        )
        score_RC = model.head(embedding_RD).double().cpu()
        if self.head.labels == "number":
            number_R = score_RC[:, 0] * self.head.scale + self.head.center
            return [{"number": number} for number in number_R.tolist()]
        if self.head.labels == "class_set":
            return [self._class_set(each_C) for each_C in score_RC.sigmoid().tolist()]
        # Take the largest score: probabilities of several classes may round to 1.
        label_R = score_RC.argmax(1).tolist()
        values = []
        for label, probability_C in zip(label_R, score_RC.softmax(1).tolist(), strict=True):
            values.append(
                {
                    "class": self.head.class_names[label],
                    "probability": probability_C[label],
                    **self._by_column(probability_C),
                }
            )
        return values

    def _class_set(self, probability_C: list[float]) -> dict[str, Any]:
        names = [
            name
            for name, probability in zip(self.head.class_names, probability_C, strict=True)
            if probability >= self.head.threshold
        ]
        return {"classes": LABEL_SEPARATOR.join(names), **self._by_column(probability_C)}

    def _by_column(self, probability_C: list[float]) -> dict[str, float]:
        """Return the probability of each class by the name of its column."""
        return dict(zip(self._probability_columns, probability_C, strict=True))

    def _tags(
        self, model: TaskModel, read: Callable[[np.ndarray], TokenBatch], block: TaskBlock
    ) -> list[dict[str, Any]]:
        """Return the class of each residue that the encoder reads, in order."""
        assert isinstance(model.encoder, ProteinEncoder)
        device = next(model.parameters()).device
        batch = read(np.arange(len(block.contents))).to(device)
        tags_R: list[list[str]] = [[] for _ in block.contents]
        for row_M in token_budget_micro_batches(
            batch.length_R,
            max_tokens=MAX_TOKENS_AT_ONCE,
            overhead_tokens=overhead_tokens_on(device),
        ):
            tokens = batch.pad(row_M, model.pad_id)
            label_ML = model(tokens).hidden_RLD.argmax(2)
            is_residue_ML = tokens.mask_RL & model.encoder.is_residue(tokens.token_RL)
            for row, label_L, is_residue_L in zip(
                row_M.tolist(), label_ML, is_residue_ML, strict=True
            ):
                labels = label_L[is_residue_L].tolist()
                tags_R[row] = [self.head.class_names[label] for label in labels]
        return [
            {"num_residues": len(content), "tags": tags}
            for content, tags in zip(block.contents, tags_R, strict=True)
        ]


def read_predictor(folder: Path) -> TaskPredictor:
    """Read an export of ``finetune``, without its weights.

    Raises:
        ConfigError: if its records are damaged.
    """
    head = TaskHead.read(folder)
    model: EmbeddingModel | None
    if head.on_texts:
        model = read_text_embedding_model(folder, None)
    else:
        model = read_embedding_model(folder, None)
    if model is None:
        raise ConfigError(f"{folder}: holds no protein encoder; export the run again")
    return TaskPredictor(folder, head, model)
