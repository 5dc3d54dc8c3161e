"""Extract relations from documents with known entities, by an exported model."""

import csv
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from raybio.core.errors import ConfigError
from raybio.methods.mtb_mccl.batches import Pairs
from raybio.methods.mtb_mccl.documents.prepare import prepare_unlabeled
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.embed_pairs import embed_pairs
from raybio.methods.mtb_mccl.mccl.config import KnnSettings
from raybio.methods.mtb_mccl.mccl.frozen_encoder import MAX_TOKENS_AT_ONCE, truncation_remarks
from raybio.methods.mtb_mccl.mccl.trained_model import RelationModel, load_relation_model
from raybio.training.collective import SingleProcess

DOCUMENTS_AT_ONCE = 256


class ExtractedRelation(NamedTuple):
    """A predicted relation between two entities of a document.

    Attributes:
        document: id of the document.
        head_id: id of the head as the input writes it at its first mention; in DocRED the number of
            its vertex. Empty if the input has none.
        head_type: type of the head, as the model names it.
        head: first mention of the head in the document.
        tail_id: as ``head_id``, of the tail.
        tail_type: type of the tail.
        tail: first mention of the tail.
        pair: "ordered" if the relation runs from head to tail (DocRED). "unordered" if it has no
            direction (PubTator, BioC); the head is then the entity mentioned first.
        relation: name of the relation.
        score: the deciding score: mean cosine to the nearest labeled pairs plus the weighted bias,
            or a linear classifier's logit. Scores of different models are not comparable.
    """

    document: str
    head_id: str
    head_type: str
    head: str
    tail_id: str
    tail_type: str
    tail: str
    pair: Literal["ordered", "unordered"]
    relation: str
    score: float


def extract_relations(
    folder: str | Path,
    inputs: Sequence[Path],
    out: Path,
    *,
    max_bad_share: float = 0.1,
    say: Callable[[str], None] = lambda text: None,
) -> int:
    """Write a tab-separated table of ``ExtractedRelation``, atomically.

    Args:
        folder: export of a run of ``relation_finetune``.
        inputs: documents with entities, in any format of ``prepare_documents``; their relations are
            ignored.
        out: the table.
        max_bad_share: maximum fraction of invalid documents or mentions.
        say: called with progress messages.

    Returns:
        The number of relations.

    Raises:
        ConfigError: if the folder is no such export, chose no kNN settings, or was trained on
            directed relations while the documents are of a format with undirected ones, or the
            other way round.
        DataError: if a file is missing, damaged or of another format, or too much of it is
            invalid.
    """
    model = load_relation_model(folder)
    if model.knn_settings is None:
        raise ConfigError(
            f"--model {folder}: its run had no validation documents, which choose the number of "
            "neighbors; want a model of a run with some"
        )
    num_relations = 0
    with tempfile.TemporaryDirectory() as temporary:
        store = prepare_unlabeled(Path(temporary) / "store", inputs, max_bad_share=max_bad_share)
        _check_direction(folder, model, store)
        for remark in truncation_remarks(str(Path(folder).expanduser()), store):
            say(f"{remark}; relations beyond are not extracted")
        written = Path(temporary) / "relations.tsv"
        with written.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, dialect="excel-tab", lineterminator="\n")
            writer.writerow(ExtractedRelation._fields)
            for relation in iterate_relations(model, model.knn_settings, store, say):
                writer.writerow([*relation[:-1], f"{relation.score:.6f}"])
                num_relations += 1
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(f".{out.name}")
        partial.write_bytes(written.read_bytes())
        partial.replace(out)
    return num_relations


def iterate_relations(
    model: RelationModel,
    knn: KnnSettings,
    store: DocumentStore,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[ExtractedRelation]:
    """Yield the predicted relations of a store of ``prepare_unlabeled``, document by document."""
    reader = model.frozen.reader(store)
    rows = store.split_rows("train").tolist()
    for start in range(0, len(rows), DOCUMENTS_AT_ONCE):
        block = rows[start : start + DOCUMENTS_AT_ONCE]
        say(f"documents {start + 1:,} to {start + len(block):,} of {len(rows):,}")
        pairs_by_row = {row: _candidates(model, store, row) for row in block}
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
        for number, label in np.argwhere(is_predicted_PC).tolist():
            row = int(pairs.row_P[number])
            head = int(pairs.head_P[number])
            tail = int(pairs.tail_P[number])
            if not store.is_directed:
                # Entities are numbered in the order of their first mentions.
                head, tail = sorted((head, tail))
            yield ExtractedRelation(
                store.document_id(row),
                *_describe(store, row, head),
                *_describe(store, row, tail),
                "ordered" if store.is_directed else "unordered",
                model.relations[label],
                float(score_PC[number, label]),
            )


def _check_direction(folder: str | Path, model: RelationModel, store: DocumentStore) -> None:
    if store.is_directed == model.is_directed:
        return
    formats = {
        True: "DocRED documents, whose relations have a direction",
        False: "PubTator or BioC documents",
    }
    raise ConfigError(
        f"--model {folder}: was trained on {formats[model.is_directed]}, and --input holds "
        f"{formats[store.is_directed]}; want the same kind"
    )


def _candidates(model: RelationModel, store: DocumentStore, row: int) -> Pairs:
    """Return the pairs of the types that the model was trained on."""
    head_P, tail_P = store.candidates(row)
    if model.candidate_types is None:
        return head_P, tail_P
    type_E = [store.entity_types[number] for number in store.types(row).tolist()]
    is_candidate_P = np.array(
        [
            (type_E[head], type_E[tail]) in model.candidate_types
            for head, tail in zip(head_P.tolist(), tail_P.tolist(), strict=True)
        ],
        dtype=bool,
    )
    return head_P[is_candidate_P], tail_P[is_candidate_P]


def _describe(store: DocumentStore, row: int, entity: int) -> tuple[str, str, str]:
    """Return an entity's id as the input writes it, its type, and its first mention."""
    mention_C, entity_C = store.links(row)
    start_M, end_M = store.mentions(row)
    first = int(mention_C[entity_C == entity].min())
    name = " ".join(store.text(row)[int(start_M[first]) : int(end_M[first])].split())
    written_id = store.entity_keys[int(store.keys(row)[entity])].as_py()
    return written_id, store.entity_types[int(store.types(row)[entity])], name
