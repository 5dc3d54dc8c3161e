"""The relations that an exported model finds in documents whose entities are known and whose relations are not."""

import csv
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch

from raybio.core.errors import ConfigError
from raybio.methods.mtb_mccl.batches import Pairs
from raybio.methods.mtb_mccl.documents.prepare import prepare_unlabelled
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.embed_pairs import embed_pairs
from raybio.methods.mtb_mccl.mccl.config import KnnSettings
from raybio.methods.mtb_mccl.mccl.frozen_pairs import MAX_TOKENS_AT_ONCE, truncation_remarks
from raybio.methods.mtb_mccl.mccl.trained_model import RelationModel, load_relation_model
from raybio.training.collective import SingleProcess

DOCUMENTS_AT_ONCE = 256


class ExtractedRelation(NamedTuple):
    """A relation between two entities of a document.

    Attributes:
        document: its id.
        head_id: id of the head as the input writes it at its first mention; in DocRED the number of its vertex. Empty
            if the input has none.
        head_type: its type, as the model calls it.
        head: how the document first calls it.
        tail_id: as ``head_id``, of the tail.
        tail_type: its type.
        tail: how the document first calls it.
        pair: "ordered" if the relation runs from head to tail, as in DocRED. Otherwise "unordered": the relation has
            no direction, and the head is the entity that the document mentions first.
        relation: name of the class.
        score: what decided: mean cosine to the class's nearest labelled pairs plus its weighed bias, or a linear
            classifier's logit. Comparable within one model alone.
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
    """Write a table, tab-separated, of ``ExtractedRelation``; the file appears whole or not at all.

    Args:
        folder: export of a run of ``relation_finetune``.
        inputs: documents with their entities, in any format of ``prepare_documents``; relations in them are not read.
        out: the table.
        max_bad_share: share of bad documents or mentions that is put up with.
        say: told what is being done.

    Returns:
        How many were found.

    Raises:
        ConfigError: if the folder is no such export or does not know how to decide, or relations have a direction in
            its training and none in the documents, or the other way round.
        DataError: if a file is missing, damaged or of another format, or too much in it is bad.
    """
    model = load_relation_model(folder)
    if model.knn_settings is None:
        raise ConfigError(
            f"--model {folder}: its run had no validation documents, by which the number of neighbours is chosen; want "
            "a model of a run with some"
        )
    found = 0
    with tempfile.TemporaryDirectory() as temporary:
        store = prepare_unlabelled(Path(temporary) / "store", inputs, max_bad_share=max_bad_share)
        if store.is_directed != model.is_directed:
            kinds = {
                True: "DocRED's documents, whose relations have a direction",
                False: "documents of PubTator or BioC",
            }
            raise ConfigError(
                f"--model {folder}: was trained on {kinds[model.is_directed]}, and --input holds "
                f"{kinds[store.is_directed]}; want the same kind"
            )
        for cut in truncation_remarks(str(Path(folder).expanduser()), store):
            say(f"{cut}; relations beyond are not found")
        written = Path(temporary) / "relations.tsv"
        with written.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, dialect="excel-tab", lineterminator="\n")
            writer.writerow(ExtractedRelation._fields)
            for relation in iterate_relations(model, model.knn_settings, store, say):
                writer.writerow([*relation[:-1], f"{relation.score:.6f}"])
                found += 1
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(f".{out.name}")
        partial.write_bytes(written.read_bytes())
        partial.replace(out)
    return found


def iterate_relations(
    model: RelationModel,
    rule: KnnSettings,
    store: DocumentStore,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[ExtractedRelation]:
    """Yield the relations in all documents of a store of ``prepare_unlabelled``, document by document."""
    reader, rows = model.frozen.reader(store), store.split_rows("train").tolist()
    for start in range(0, len(rows), DOCUMENTS_AT_ONCE):
        block = {
            row: _candidates(model, store, row) for row in rows[start : start + DOCUMENTS_AT_ONCE]
        }
        say(f"documents {start + 1:,} to {start + len(block):,} of {len(rows):,}")
        pairs = embed_pairs(
            model.frozen.model,
            reader,
            {row: pair for row, pair in block.items() if len(pair[0])},
            SingleProcess(),
            max_tokens=MAX_TOKENS_AT_ONCE,
        )
        with torch.no_grad():
            score_PC = model.classifier.scores(pairs.embedding_PD, (rule,))[rule]
            is_found_PC = model.classifier.predicted(score_PC)
        for place, label in zip(*(part.tolist() for part in np.nonzero(is_found_PC)), strict=True):
            row = int(pairs.row_P[place])
            entities = [int(pairs.head_P[place]), int(pairs.tail_P[place])]
            if not store.is_directed:
                # Entities are numbered in the order of their first mentions.
                entities.sort()
            head, tail = (_described(store, row, entity) for entity in entities)
            yield ExtractedRelation(
                store.document_id(row),
                *head,
                *tail,
                "ordered" if store.is_directed else "unordered",
                model.relations[label],
                float(score_PC[place, label]),
            )


def _candidates(model: RelationModel, store: DocumentStore, row: int) -> Pairs:
    """The pairs that the model was trained to ask about."""
    head_P, tail_P = store.candidates(row)
    if model.candidate_types is None:
        return head_P, tail_P
    names, type_E = store.entity_types, store.types(row).tolist()
    is_asked_P = np.array(
        [
            (names[type_E[head]], names[type_E[tail]]) in model.candidate_types
            for head, tail in zip(head_P.tolist(), tail_P.tolist(), strict=True)
        ],
        dtype=bool,
    )
    return head_P[is_asked_P], tail_P[is_asked_P]


def _described(store: DocumentStore, row: int, entity: int) -> tuple[str, str, str]:
    """Return an entity's id as the input writes it, its type, and its first name in the document."""
    mention_C, entity_C = store.links(row)
    start_M, end_M = store.mentions(row)
    first = int(mention_C[entity_C == entity].min())
    name = " ".join(store.text(row)[int(start_M[first]) : int(end_M[first])].split())
    written_id = store.entity_keys[int(store.keys(row)[entity])].as_py()
    return written_id, store.entity_types[int(store.types(row)[entity])], name
