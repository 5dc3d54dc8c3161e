"""Find relations in documents with known entities, by an exported model.

Shape letters: K candidate pairs of a document, P pairs of a block, C classes.
"""

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from raybio.core.errors import DataError, NoHeadError
from raybio.methods.mtb_mccl.documents.entities import RawDocument
from raybio.methods.mtb_mccl.documents.formats import read_documents
from raybio.methods.mtb_mccl.documents.prepare import prepare_unlabeled
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.documents.write import (
    Annotated,
    FoundRelation,
    RelationEnd,
    write_bioc_json,
    write_pubtator,
)
from raybio.methods.mtb_mccl.embed_pairs import embed_pairs
from raybio.methods.mtb_mccl.frozen_encoder import truncation_remarks
from raybio.methods.mtb_mccl.mccl.config import KnnSettings
from raybio.methods.mtb_mccl.mccl.trained_model import (
    RelationModel,
    load_relation_model,
    read_relation_settings,
)
from raybio.methods.mtb_mccl.new_documents import (
    candidate_pairs,
    check_direction,
    describe_entity,
    document_matcher,
)
from raybio.store.quarantine import Quarantine
from raybio.store.sources import check_readable_files
from raybio.training.collective import SingleProcess
from raybio.training.embedding_model import MAX_TOKENS_AT_ONCE
from raybio.training.predictor import (
    InputPrediction,
    Inputs,
    PredictBlock,
    Predictor,
    WriteDocuments,
    skipped_remarks,
)

DOCUMENTS_AT_ONCE = 256

ORDERED = "ordered"
UNORDERED = "unordered"

_VALUES = "documents.json"
"""Name of the temporary file for inputs in memory."""


class DocumentBlock(NamedTuple):
    """Some documents of a store of ``prepare_unlabeled``."""

    store: DocumentStore
    rows: list[int]


class DocumentSource(NamedTuple):
    """Files of documents, and the store that was made of them."""

    files: Sequence[Path]
    store: DocumentStore


@dataclass(frozen=True)
class RelationPredictor(Predictor):
    """An export of ``relation_finetune``.

    Attributes:
        is_directed: whether its relations run from head to tail.
    """

    row_noun = "relations"
    reads = "documents"

    is_directed: bool

    @property
    def columns(self) -> pa.Schema:
        """One row per relation.

        ``*_id`` is the id as the input writes it (in DocRED the number of the vertex), ``*_type``
        the type as the model names it; name and offsets are those of the first mention. ``pair`` is
        "ordered" if the relation runs from head to tail (DocRED), "unordered" if it has no
        direction; the head is then the entity mentioned first. ``score`` decided the prediction: it
        is the mean cosine to the nearest labeled pairs plus the weighted bias, or a linear
        classifier's logit. Scores of different models are not comparable.
        """
        ends = []
        for end in ("head", "tail"):
            ends += [(f"{end}_id", pa.string()), (f"{end}_type", pa.string()), (end, pa.string())]
            ends += [(f"{end}_start", pa.int64()), (f"{end}_end", pa.int64())]
        last = [("pair", pa.string()), ("relation", pa.string()), ("score", pa.float64())]
        return pa.schema([*ends, *last])

    @property
    def document_writers(self) -> dict[str, WriteDocuments]:
        """PubTator's format and BioC JSON."""
        return {
            ".pubtator": lambda path, *predicted: write_pubtator(path, _annotated(*predicted)),
            ".json": lambda path, *predicted: write_bioc_json(path, _annotated(*predicted)),
        }

    @contextmanager
    def open_files(
        self, files: Sequence[Path], *, max_bad_share: float, strip_stop: bool
    ) -> Iterator[Inputs]:
        """Read documents in any format of ``prepare_documents``; their relations are ignored."""
        check_readable_files(files)
        with tempfile.TemporaryDirectory(prefix="raybio-") as folder:
            store = prepare_unlabeled(Path(folder) / "store", files, max_bad_share=max_bad_share)
            check_direction(self.folder, self.is_directed, store)
            remarks = skipped_remarks(store.manifest["quarantine"])
            remarks += [
                f"{remark}; relations beyond are not found"
                for remark in truncation_remarks(str(self.folder), store)
            ]

            def blocks() -> Iterator[DocumentBlock]:
                rows = store.split_rows("train").tolist()
                for start in range(0, len(rows), DOCUMENTS_AT_ONCE):
                    yield DocumentBlock(store, rows[start : start + DOCUMENTS_AT_ONCE])

            yield Inputs(blocks, remarks, DocumentSource(files, store))

    @contextmanager
    def open_values(self, values: Iterable[Any]) -> Iterator[Inputs]:
        """Take documents of BioC JSON, or of DocRED's if the model's relations have a direction.

        The id of a document without "id" (in DocRED "title") is its number, from 1.
        """
        id_field = "title" if self.is_directed else "id"
        wanted = "DocRED's JSON" if self.is_directed else "BioC JSON"
        if isinstance(values, str | bytes | dict):
            raise DataError(f"got one {type(values).__name__}, want a list of {wanted} documents")
        documents = []
        for number, value in enumerate(values):
            if not isinstance(value, dict):
                raise DataError(
                    f"input {number}: got {type(value).__name__} {value!r:.60}, want a document of "
                    f"{wanted}: a mapping with its text and entities"
                )
            documents.append({id_field: str(number + 1), **value})
        known = set()
        for number, document in enumerate(documents):
            # Strip ids as readers do, which skip a document with the id of another.
            document_id = str(document[id_field]).strip()
            if document_id in known:
                raise DataError(
                    f"input {number}: its id {document_id!r} is there twice, want each once"
                )
            known.add(document_id)
        if not documents:
            yield Inputs(lambda: iter(()), [])
            return
        with tempfile.TemporaryDirectory(prefix="raybio-") as folder, ExitStack() as stack:
            path = Path(folder) / _VALUES
            try:
                # One line per document, since messages name documents by line.
                content = "[\n" + ",\n".join(map(json.dumps, documents)) + "\n]"
            except (TypeError, ValueError) as error:
                raise DataError(f"the documents are no JSON ({error}); want {wanted}") from None
            path.write_text(
                content if self.is_directed else f'{{"documents": {content}}}', encoding="utf-8"
            )
            try:
                inputs = self.open_files([path], max_bad_share=0.0, strip_stop=False)
                opened = stack.enter_context(inputs)
            except DataError as error:
                raise DataError(_by_inputs(str(error), path)) from None
            yield opened

    def load(self) -> PredictBlock:
        """Load the encoder and its labeled pairs, or its classifier."""
        model = load_relation_model(self.folder)
        assert model.knn_settings is not None  # read_predictor has refused such an export
        knn = model.knn_settings

        def predict(block: DocumentBlock) -> list[InputPrediction]:
            return predict_documents(model, knn, block)

        return predict


def _by_inputs(message: str, path: Path) -> str:
    """Turn a message about the file of inputs in memory into one about the inputs, from 0.

    Args:
        message: of a reader of documents.
        path: the file.
    """
    whole = re.escape(str(path))
    place = re.compile(rf"({whole}, record at line |{whole}:|{re.escape(_VALUES)}:)(\d+)")
    named = place.sub(lambda found: f"input {int(found[2]) - 2}", message)
    return named.replace(str(path), "the inputs").replace(
        "Repair the input, or allow more with --max-bad-share.", "Repair the input."
    )


def read_predictor(folder: Path) -> RelationPredictor:
    """Read an export of ``relation_finetune``, without its weights.

    Raises:
        NoHeadError: if the folder is an export of another method, or its run chose no kNN settings.
        ConfigError: if the folder is no export, or a damaged one.
    """
    settings = read_relation_settings(folder)
    if settings.get("knn_settings") is None:
        raise NoHeadError(
            f"{folder}: its run had no validation documents, which choose the number of "
            "neighbors; want a model of a run with some, or with one value each of "
            "evaluation.num_neighbors and evaluation.bias_weights"
        )
    return RelationPredictor(folder, bool(settings.get("is_directed")))


def predict_documents(
    model: RelationModel, knn: KnnSettings, block: DocumentBlock
) -> list[InputPrediction]:
    """Return the relations of each document, between entities of which a mention is read."""
    store = block.store
    reader = model.frozen.reader(store)
    pairs_by_row = {}
    for row in block.rows:
        head_K, tail_K = candidate_pairs(model.candidate_types, store, row)
        is_read_E = reader.is_read(row)
        is_read_K = is_read_E[head_K] & is_read_E[tail_K]
        pairs_by_row[row] = (head_K[is_read_K], tail_K[is_read_K])
    pairs = embed_pairs(
        model.frozen.model,
        reader,
        {row: pair for row, pair in pairs_by_row.items() if len(pair[0])},
        SingleProcess(),
        max_tokens=MAX_TOKENS_AT_ONCE,
    )
    with torch.no_grad():
        score_PC = model.classifier.scores(pairs.embedding_PD, (knn,))[knn]
        is_predicted_PC = model.classifier.predicted(score_PC)
    relations_by_row: dict[int, list[dict[str, Any]]] = {row: [] for row in block.rows}
    for number, label in np.argwhere(is_predicted_PC).tolist():
        row = int(pairs.row_P[number])
        head = int(pairs.head_P[number])
        tail = int(pairs.tail_P[number])
        if not store.is_directed:
            # Entities are numbered in the order of their first mentions.
            head, tail = sorted((head, tail))
        relations_by_row[row].append(
            {
                **describe_entity(store, row, head, "head"),
                **describe_entity(store, row, tail, "tail"),
                "pair": ORDERED if store.is_directed else UNORDERED,
                "relation": model.relations[label],
                "score": float(score_PC[number, label]),
            }
        )
    return [
        InputPrediction(store.document_id(row), relations)
        for row, relations in relations_by_row.items()
    ]


def _annotated(inputs: Inputs, predictions: Iterable[InputPrediction]) -> Iterator[Annotated]:
    """Yield the documents of the input with the relations that were found.

    The files are read again, one document at a time. The store has only one of several documents
    with the same id; the others are skipped.
    """
    source: DocumentSource = inputs.source
    raws = _documents(source.files)
    for prediction, row in zip(predictions, source.store.split_rows("train").tolist(), strict=True):
        is_row = document_matcher(source.store, row)
        raw = next(raw for raw in raws if is_row(raw))
        yield raw, [_relation(value) for value in prediction.value]


def _documents(files: Sequence[Path]) -> Iterator[RawDocument]:
    for file in files:
        yield from read_documents(file, Quarantine())


def _relation(value: Any) -> FoundRelation:
    head, tail = (
        RelationEnd(value[f"{end}_id"], value[f"{end}_start"], value[f"{end}_end"])
        for end in ("head", "tail")
    )
    return FoundRelation(
        value["relation"], head, tail, value["pair"] == ORDERED, float(value["score"])
    )
