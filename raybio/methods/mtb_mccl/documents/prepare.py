"""Prepare a store of documents with entities and relations: files in, a committed store out."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from raybio.core.errors import ConfigError, DataError
from raybio.methods.mtb_mccl.documents.entities import (
    DOCUMENT,
    MENTION,
    RELATION,
    RawDocument,
    resolve_entities,
)
from raybio.methods.mtb_mccl.documents.formats import read_documents
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.documents.writer import DocumentCollector
from raybio.store.json import Record, read_json_object
from raybio.store.preparation import preparing
from raybio.store.quarantine import Quarantine
from raybio.store.relation_labels import NO_RELATION


def prepare_documents(
    out: str | Path,
    train: Sequence[Path],
    dev: Sequence[Path] = (),
    test: Sequence[Path] = (),
    exclude: Sequence[Path] = (),
    relation_names: Path | None = None,
    *,
    dev_share: float | None = None,
    seed: int = 0,
    force: bool = False,
    min_type_pair_relations: int = 2,
    max_bad_share: float = 0.1,
) -> DocumentStore:
    """Prepare a store from files in PubTator's format, BioC or DocRED's JSON.

    Documents are identified by their ids. A document of dev, test or an excluded file is skipped in
    training, and one of test in dev. Of duplicates within a split, the one with the most mentions
    is kept. All are counted in the manifest's ``quarantine``.

    Args:
        out: folder of the store.
        train: training files.
        dev: files to choose settings on.
        test: files to report scores on.
        exclude: files whose documents are excluded from training, such as the test set of another
            corpus.
        relation_names: JSON object id -> name (DocRED's ``rel_info.json``), in the order of the
            labels. None: relations are named as in the files, in alphabetical order.
        dev_share: instead of ``dev``, the fraction of the training documents with relations that
            becomes the dev split. The draw depends on ids and seed only, and never takes documents
            of test or excluded files. Documents without relations stay in training, since they may
            be unlabeled.
        seed: seed of that draw.
        force: replace an existing store.
        min_type_pair_relations: pairs of types with fewer training relations are not candidates:
            BioRED has a single, accidental relation of a gene and a variant. All pairs are
            candidates if relations are directed, or if there are none.
        max_bad_share: maximum fraction of invalid documents, mentions or relations.

    Raises:
        ConfigError: for a share outside (0, 1), or one given with ``dev``.
        DataError: if a file is missing, damaged or of another format, too much is invalid, or
            nothing is left or drawn.
        StoreError: if the store cannot be written.
    """
    _check_share(dev_share, dev)
    files = {"train": [*train], "dev": [*dev], "test": [*test]}
    others = {
        "exclude": [*exclude],
        "relation_names": [relation_names] if relation_names else [],
    }
    parameters: dict[str, Any] = {
        "min_type_pair_relations": min_type_pair_relations,
        "max_bad_share": max_bad_share,
    }
    if dev_share is not None:
        parameters |= {"dev_share": dev_share, "seed": seed}
    prepared = preparing(out, files | others, parameters, max_bad_share=max_bad_share, force=force)
    with (
        prepared as new,
        DocumentCollector(new.draft.folder, dev_share=dev_share, seed=seed) as collector,
    ):
        name_by_relation = _relation_names(relation_names) if relation_names else None
        _collect(files, collector, new.quarantine)
        held_out = [
            raw.document_id for path in exclude for raw in read_documents(path, Quarantine())
        ]
        return collector.commit(
            new,
            held_out=pa.array(held_out, pa.string()),
            name_by_relation=name_by_relation,
            min_type_pair_relations=min_type_pair_relations,
        )


def prepare_unlabeled(
    out: str | Path, files: Sequence[Path], *, max_bad_share: float = 0.1
) -> DocumentStore:
    """Prepare a store of documents to extract relations from: all in "train", without relations.

    Every pair of types is a candidate, and an entity's key is its id as the file writes it.
    Formats, duplicates and invalid documents are handled as by ``prepare_documents``.

    Raises:
        DataError: if a file is missing, damaged or of another format, too much is invalid, or
            nothing is left.
        StoreError: if the store cannot be written.
    """

    def documents(quarantine: Quarantine) -> Iterator[tuple[RawDocument, str]]:
        for path in files:
            for raw in read_documents(path, quarantine):
                yield raw, path.name

    return store_unlabeled(out, documents, files, max_bad_share=max_bad_share)


def store_unlabeled(
    out: str | Path,
    documents: Callable[[Quarantine], Iterator[tuple[RawDocument, str]]],
    files: Sequence[Path] = (),
    *,
    max_bad_share: float = 0.1,
) -> DocumentStore:
    """Prepare a store as ``prepare_unlabeled`` does, from documents that have been read.

    Args:
        out: folder of the store.
        documents: yields each document with the name of its file.
        files: the files that they come from, if any, for the manifest.
        max_bad_share: maximum fraction of invalid records.
    """
    parameters = {"max_bad_share": max_bad_share}
    prepared = preparing(out, {"unlabeled": files}, parameters, max_bad_share=max_bad_share)
    with (
        prepared as new,
        DocumentCollector(new.draft.folder, dev_share=None, seed=0) as collector,
    ):
        for raw, name in documents(new.quarantine):
            unlabeled = replace(raw, relations=())
            entities = resolve_entities(unlabeled, new.quarantine, name)
            as_written = replace(entities, keys_E=entities.written_ids_E)
            collector.add(unlabeled, as_written, "train", name)
        for kind in (DOCUMENT, MENTION):
            new.quarantine.check(kind)
        return collector.commit(
            new,
            held_out=pa.array([], pa.string()),
            name_by_relation=None,
            min_type_pair_relations=1,
        )


def _check_share(share: float | None, dev: Sequence[Path]) -> None:
    if share is None:
        return
    if not 0 < share < 1:
        raise ConfigError(f"--dev-share {share:g}: want a number above 0 and below 1")
    if dev:
        raise ConfigError(
            f"--dev-share {share:g} and --dev {dev[0]}: got both, want validation documents by one"
        )


def _collect(
    files: Mapping[str, Sequence[Path]], collector: DocumentCollector, quarantine: Quarantine
) -> None:
    for split, paths in files.items():
        for path in paths:
            for raw in read_documents(path, quarantine):
                collector.add(raw, resolve_entities(raw, quarantine, path.name), split, path.name)
    for kind in (DOCUMENT, MENTION, RELATION):
        quarantine.check(kind)


def _relation_names(path: Path) -> dict[str, str]:
    """Return id -> name.

    Raises:
        DataError: if the file holds no such object, or two relations have the same name.
    """
    record = Record.of(path, "relation names", read_json_object(path))
    names = {relation: record.text(relation) for relation in record.fields}
    count_by_name = Counter([NO_RELATION, *names.values()])
    for name, count in count_by_name.items():
        if count > 1:
            raise DataError(
                f"{path}: two relations are named {name!r} ({NO_RELATION} means no relation). "
                "Rename one."
            )
    return names
