"""Prepare a store of sentences with entities and relations: files in, a committed store out.

``statistics_of_words`` counts the sentences of a store as in the CLDR paper's Tables 1, 5 and 6.

Shape letter: G tags.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raybio.core.errors import ConfigError, DataError
from raybio.core.markdown import markdown_table
from raybio.core.randomness import derive_seed
from raybio.methods.relation_graphs.annotations.tags import tag_names, tags_of
from raybio.methods.relation_graphs.formats import SENTENCE, WordSentence, read_folds, read_spert
from raybio.methods.relation_graphs.store import WordStore, commit_words
from raybio.store.preparation import preparing
from raybio.store.quarantine import Quarantine
from raybio.store.store import SPLITS

Folds = list[dict[str, np.ndarray]]


def prepare_words(
    out: str | Path,
    files: Sequence[Path],
    *,
    splits: Path | None = None,
    dev: Sequence[Path] = (),
    test: Sequence[Path] = (),
    test_share: float | None = None,
    seed: int = 0,
    force: bool = False,
    max_bad_share: float = 0.1,
) -> WordStore:
    """Make a store of sentences in SpERT's layout.

    Args:
        out: folder of the store.
        files: training sentences; with ``splits``, all sentences, each with a distinct id.
        splits: the folds of a cross-validation, in the layout of ``formats.read_folds``.
        dev: instead of ``splits``, files on which settings are chosen.
        test: instead of ``splits``, files on which scores are reported; they make a single fold.
        test_share: instead of ``splits`` and ``test``, the fraction of the training sentences that
            becomes the test set. The draw depends on words and seed only, so equal sentences stay
            together.
        seed: seed of that draw.
        force: replace an existing store.
        max_bad_share: maximum fraction of invalid sentences.

    Returns:
        The store, open. The same files give the same bytes.

    Raises:
        ConfigError: for ``splits`` together with ``dev``, unless exactly one of ``splits``,
            ``test`` and ``test_share`` is given, for a share outside (0, 1), or for a file that is
            given twice.
        DataError: if a file is missing, damaged or of another format, too much is bad, no test
            sentence is drawn, or folds and sentences do not belong together.
        StoreError: if the store cannot be written.
    """
    _check(files, splits, dev, test, test_share)
    files_by_split = dict(zip(SPLITS, ([*files], [*dev], [*test]), strict=True))
    given = {"sentences": [*files], "splits": [splits]} if splits is not None else files_by_split
    parameters: dict[str, Any] = {"max_bad_share": max_bad_share}
    if test_share is not None:
        parameters |= {"test_share": test_share, "seed": seed}
    with preparing(out, given, parameters, max_bad_share=max_bad_share, force=force) as new:
        taken = set[str]() if splits is not None else None
        read = {}
        for split, paths in files_by_split.items():
            read[split] = _read(paths, new.quarantine, taken)
        new.quarantine.check(SENTENCE)
        if test_share is not None:
            read["train"], read["test"] = _draw_test(read["train"], test_share, seed)
        sentences = [sentence for split in SPLITS for sentence in read[split]]
        folds = _one_fold(read) if splits is None else _folds(splits, sentences, new.quarantine)
        return commit_words(
            new.draft, sentences=sentences, folds=folds, provenance=new.provenance()
        )


def _check(
    files: Sequence[Path],
    splits: Path | None,
    dev: Sequence[Path],
    test: Sequence[Path],
    test_share: float | None,
) -> None:
    others = [f"--{name} {paths[0]}" for name, paths in (("dev", dev), ("test", test)) if paths]
    if test_share is not None:
        _check_share(test_share, splits, test)
    if splits is not None and others:
        raise ConfigError(
            f"--splits {splits} and {others[0]}: got both, want the parts of the corpus by one"
        )
    if splits is None and not test and test_share is None:
        raise ConfigError(
            "got nothing to test on, want --splits (folds of the --input sentences), --test or "
            "--test-share"
        )
    seen = set[Path]()
    for path in (Path(file).resolve() for file in (*files, *dev, *test)):
        if path in seen:
            raise ConfigError(
                f"{path}: is given twice among --input, --dev and --test, want each file once"
            )
        seen.add(path)


def _check_share(share: float, splits: Path | None, test: Sequence[Path]) -> None:
    if not 0 < share < 1:
        raise ConfigError(f"--test-share {share:g}: want a number above 0 and below 1")
    others = [f"--splits {splits}"] if splits is not None else []
    others += [f"--test {path}" for path in test]
    if others:
        raise ConfigError(
            f"--test-share {share:g} and {others[0]}: got both, want test sentences by one"
        )


def _draw_test(
    sentences: Sequence[WordSentence], share: float, seed: int
) -> tuple[list[WordSentence], list[WordSentence]]:
    """Return training and test sentences; the draw depends on words and seed only.

    Raises:
        DataError: if none is drawn for one of them.
    """
    limit = int(share * 2**63)  # derive_seed is below 2**63
    train = list[WordSentence]()
    test = list[WordSentence]()
    for sentence in sentences:
        is_test = derive_seed(seed, "test", " ".join(sentence.words)) < limit
        (test if is_test else train).append(sentence)
    if not train or not test:
        raise DataError(
            f"--test-share {share:g} of {len(sentences):,} sentences drew {len(test):,} of them; "
            "want another share, another --seed, or test sentences by --test"
        )
    return train, test


def _read(
    paths: Sequence[Path], quarantine: Quarantine, taken: set[str] | None
) -> list[WordSentence]:
    return [sentence for path in paths for sentence in read_spert(Path(path), quarantine, taken)]


def _one_fold(read: Mapping[str, Sequence[WordSentence]]) -> Folds:
    """Return the rows of each split, for splits stored one after the other.

    Raises:
        DataError: if no sentence is left to train or to test on.
    """
    for split, option in (("train", "--input"), ("test", "--test")):
        if not read[split]:
            raise DataError(f"the files of {option} have no sound sentence, want at least one")
    bounds = np.cumsum([0, *(len(read[split]) for split in SPLITS)])
    return [{split: np.arange(*bounds[index : index + 2]) for index, split in enumerate(SPLITS)}]


def _folds(path: Path, sentences: Sequence[WordSentence], quarantine: Quarantine) -> Folds:
    """Return the rows of each fold's sentences.

    Raises:
        DataError: as ``read_folds``; for an id that no sentence has, without which the fold would
            not be the published one; and if most sentences are in no fold.
    """
    row_by_id = {
        sentence.orig_id: row for row, sentence in enumerate(sentences) if sentence.orig_id
    }
    folds: Folds = []
    for number, fold in enumerate(read_folds(path), start=1):
        unknown = [orig_id for orig_id in (*fold.train, *fold.test) if orig_id not in row_by_id]
        if unknown:
            message = (
                f"{path}, split_{number}: {len(unknown):,} of its ids have no sentence, the first "
                f"{unknown[0]!r}"
            )
            if not quarantine.count_by_reason:
                raise DataError(f"{message}; give the --input that belongs to these folds")
            # Without these sentences the folds would not be the published ones, so they cannot just
            # be skipped.
            skipped = "; ".join(
                f"{reason}: {count:,}, first {quarantine.examples_by_reason[reason][0]}"
                for reason, count in quarantine.count_by_reason.items()
            )
            raise DataError(
                f"{message}. Skipped: {skipped}. Repair these sentences or take them out of "
                "the folds; or give the --input that belongs to these folds"
            )
        rows = {
            split: [row_by_id[orig_id] for orig_id in getattr(fold, split)]
            for split in ("train", "test")
        }
        folds.append(
            {"dev": np.zeros(0, np.int64)}
            | {split: np.array(rows_N) for split, rows_N in rows.items()}
        )
    covered = len(np.unique(np.concatenate([part for fold in folds for part in fold.values()])))
    if 10 * covered < len(sentences):
        raise DataError(
            f"{path}: only {covered:,} of {len(sentences):,} sentences are in a fold, want a tenth "
            "at least. Give the --splits that belongs to this --input, or the --input without the "
            "others"
        )
    return folds


COUNTED = ("sentences", "relations", "entities")


def statistics_of_words(store: WordStore, batch_sentences: int = 16) -> dict[str, Any]:
    """Count folds and tags.

    Args:
        store: the sentences.
        batch_sentences: size of the batch of Table 5, in sentences.

    Returns:
        ``folds``: for each fold and split the number of each of ``COUNTED`` (Table 1);
        ``num_by_tag``: number of words of each tag in the whole store (Table 6); ``mean_by_tag``:
        expected number of words of each tag in a batch of ``batch_sentences`` sentences from the
        whole store (Table 5).
    """
    num_relations_N = np.array([len(store.relations(row)[0]) for row in range(store.num_rows)])
    num_entities_N = np.array([len(store.entities(row)[0]) for row in range(store.num_rows)])
    folds = []
    for fold in range(1, store.num_folds + 1):
        rows_by_split = {split: store.fold_rows(fold, split) for split in SPLITS}
        folds.append(
            {
                split: {
                    "sentences": len(rows),
                    "relations": int(num_relations_N[rows].sum()),
                    "entities": int(num_entities_N[rows].sum()),
                }
                for split, rows in rows_by_split.items()
            }
        )
    names = tag_names(store.entity_types)
    tag_T = np.concatenate([tags_of(store, row) for row in range(store.num_rows)])
    num_G = np.bincount(tag_T, minlength=len(names)).tolist()
    return {
        "folds": folds,
        "num_by_tag": dict(zip(names, num_G, strict=True)),
        "batch_sentences": batch_sentences,
        "mean_by_tag": {
            name: batch_sentences * num / store.num_rows
            for name, num in zip(names, num_G, strict=True)
        },
    }


def word_statistics_markdown(data: Mapping[str, Any]) -> str:
    """Return ``statistics_of_words`` as tables, without splits that are empty in every fold."""
    splits = [split for split in SPLITS if any(fold[split]["sentences"] for fold in data["folds"])]
    folds = [
        [f"{number}", *(f"{fold[split][what]:,}" for split in splits for what in COUNTED)]
        for number, fold in enumerate(data["folds"], start=1)
    ]
    means = [[tag, f"{mean:.1f}"] for tag, mean in data["mean_by_tag"].items()]
    totals = [[tag, f"{num:,}"] for tag, num in data["num_by_tag"].items()]
    return "\n\n".join(
        [
            "## Folds (Table 1)",
            markdown_table(
                ["fold", *(f"{split} {what}" for split in splits for what in COUNTED)], folds
            ),
            f"## Words of each tag in a batch of {data['batch_sentences']:,} sentences, mean "
            "(Table 5)",
            markdown_table(["tag", "words"], means),
            "## Words of each tag (Table 6)",
            markdown_table(["tag", "words"], totals),
        ]
    )
