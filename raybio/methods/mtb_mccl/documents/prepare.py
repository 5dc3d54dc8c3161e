"""Prepare a store of documents with entities and relations: files in, a committed store out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from raybio.core.errors import ConfigError, DataError
from raybio.methods.mtb_mccl.documents.entities import DOCUMENT, MENTION, RELATION, resolve_entities
from raybio.methods.mtb_mccl.documents.formats import read_documents
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.documents.writer import DocumentCollector
from raybio.store.json import Record, read_json_object
from raybio.store.quarantine import Quarantine
from raybio.store.relation_labels import NO_RELATION
from raybio.store.sources import check_readable_files, describe_files
from raybio.store.writer import Draft


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
    training; of duplicates within a split, the one with the most mentions is kept. Both are counted
    in the manifest's ``quarantine``.

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
            becomes the dev split. Drawn by id and seed alone; documents of test or excluded files
            are never drawn. Documents without relations stay in training, since they may be
            unlabeled.
        seed: seed of that draw.
        force: replace an existing store.
        min_type_pair_relations: pairs of types with fewer training relations are no candidates:
            BioRED has one relation of a gene and a variant by accident. All pairs are candidates if
            relations are directed, or if there are none.
        max_bad_share: maximum fraction of invalid documents, mentions or relations.

    Raises:
        ConfigError: for a share outside (0, 1), or one given with ``dev``.
        DataError: if a file is missing, damaged or of another format, too much is invalid, or
            nothing is left or drawn.
        StoreError: if the store cannot be written.
    """
    _check_share(dev_share, dev)
    files = {"train": [*train], "dev": [*dev], "test": [*test]}
    sources = _describe(
        {
            **files,
            "exclude": [*exclude],
            "relation_names": [relation_names] if relation_names else [],
        }
    )
    name_by_relation = _relation_names(relation_names) if relation_names else None
    quarantine = Quarantine(max_bad_share)
    parameters = {
        "min_type_pair_relations": min_type_pair_relations,
        "max_bad_share": max_bad_share,
    }
    if dev_share is not None:
        parameters |= {"dev_share": dev_share, "seed": seed}
    with (
        Draft(out, force=force) as draft,
        DocumentCollector(draft.folder, dev_share=dev_share, seed=seed) as collector,
    ):
        _collect(files, collector, quarantine)
        held_out = [
            raw.document_id for path in exclude for raw in read_documents(path, Quarantine())
        ]
        return collector.commit(
            draft,
            quarantine,
            held_out=pa.array(held_out, pa.string()),
            name_by_relation=name_by_relation,
            min_type_pair_relations=min_type_pair_relations,
            provenance={"sources": sources, "parameters": parameters},
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
    check_readable_files(files)
    quarantine = Quarantine(max_bad_share)
    with (
        Draft(out, force=False) as draft,
        DocumentCollector(draft.folder, dev_share=None, seed=0) as collector,
    ):
        for path in files:
            for raw in read_documents(path, quarantine):
                unlabeled = replace(raw, relations=())
                entities = resolve_entities(unlabeled, quarantine, path.name)
                as_written = replace(entities, keys_E=entities.written_ids_E)
                collector.add(unlabeled, as_written, "train", path.name)
        for kind in (DOCUMENT, MENTION):
            quarantine.check(kind)
        return collector.commit(
            draft,
            quarantine,
            held_out=pa.array([], pa.string()),
            name_by_relation=None,
            min_type_pair_relations=1,
            provenance={
                "sources": _describe({"unlabeled": [*files]}),
                "parameters": {"max_bad_share": max_bad_share},
            },
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


def _describe(paths_by_role: Mapping[str, list[Path]]) -> dict[str, Any]:
    """Return the manifest's description of all files, after checking that they are readable."""
    for paths in paths_by_role.values():
        check_readable_files(paths)
    return {role: describe_files(paths) for role, paths in paths_by_role.items() if paths}


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
