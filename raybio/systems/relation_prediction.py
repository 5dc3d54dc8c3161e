"""The relations that an exported model finds in documents whose entities are known and whose relations are not."""

import csv
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from raybio.data.document_store import DocumentStore
from raybio.data.prepare_documents import prepare_unlabelled
from raybio.data.relation_pairs import Pairs
from raybio.errors import ConfigError
from raybio.systems.embedded_pairs import embed_pairs
from raybio.systems.frozen_pairs import MAX_TOKENS_AT_ONCE
from raybio.systems.relation_classifier import Rule
from raybio.systems.relation_evaluation import RelationModel, load_relation_model
from raybio.training.gather import SingleProcess

DOCUMENTS_AT_ONCE = 256


class FoundRelation(NamedTuple):
    """A relation between two entities of a document.

    Attributes:
        document: its id.
        head_id: entity of the first side: its type, and its id or "~" and its name.
        head: how the document first calls it.
        tail_id: the other side; without direction, sides are in the order of their types and then of their mention.
        tail: how the document first calls that.
        relation: name of the class.
        score: what decided: mean cosine to the class's nearest labelled pairs plus its weighed bias, or a linear
            classifier's logit. Comparable within one model alone.
    """

    document: str
    head_id: str
    head: str
    tail_id: str
    tail: str
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
    """Write a table, tab-separated, of ``FoundRelation``; the file appears whole or not at all.

    Args:
        folder: export of a run of ``relation_extraction``.
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
    if model.rule is None:
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
        written = Path(temporary) / "relations.tsv"
        with written.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, dialect="excel-tab", lineterminator="\n")
            writer.writerow(FoundRelation._fields)
            for relation in relations_of(model, model.rule, store, say):
                writer.writerow([*relation[:-1], f"{relation.score:.6f}"])
                found += 1
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(f".{out.name}")
        partial.write_bytes(written.read_bytes())
        partial.replace(out)
    return found


def relations_of(
    model: RelationModel, rule: Rule, store: DocumentStore, say: Callable[[str], None] = lambda text: None
) -> Iterator[FoundRelation]:
    """What is found in all documents of a store, document by document."""
    reader, rows = model.frozen.reader(store), store.split_rows("train").tolist()
    for start in range(0, len(rows), DOCUMENTS_AT_ONCE):
        block = {row: _candidates(model, store, row) for row in rows[start : start + DOCUMENTS_AT_ONCE]}
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
            ends = [_called(store, row, int(end_P[place])) for end_P in (pairs.head_P, pairs.tail_P)]
            yield FoundRelation(
                store.document_id(row), *ends[0], *ends[1], model.relations[label], float(score_PC[place, label])
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


def _called(store: DocumentStore, row: int, entity: int) -> tuple[str, str]:
    """An entity's id, and its first name in the document."""
    mention_C, entity_C = store.links(row)
    start_M, end_M = store.mentions(row)
    first = int(mention_C[entity_C == entity].min())
    name = " ".join(store.text(row)[int(start_M[first]) : int(end_M[first])].split())
    return store.entity_keys[int(store.keys(row)[entity])].as_py(), name
