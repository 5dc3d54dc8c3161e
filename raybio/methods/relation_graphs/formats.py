"""Read SpERT's JSON (Eberts and Ulges, 2020) and files of folds.

In ADE the head of a relation is always the adverse effect and its tail the drug.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from raybio.core.errors import DataError
from raybio.store.json import is_text, read_json_object, stream_records
from raybio.store.quarantine import Quarantine
from raybio.store.relation_labels import NAMED_NA, NO_RELATION, SELF_RELATION
from raybio.store.table_rows import shown_names

SENTENCE = "sentence"


NOT_OF_THE_FORM = "sentence that is not of SpERT's form"


NO_WORDS = "sentence without tokens"


OUTSIDE = "entity outside the tokens"


NO_ENTITY = "relation of an entity that is not there"


REPEATED_ID = "sentence with an orig_id that an earlier one has"


TRAIN_SET = "train set"
TEST_SET = "test set"


class WordSentence(NamedTuple):
    """A sentence as it is in the file.

    Attributes:
        words: its tokens, W of them.
        entities: (type, first word, end word (exclusive)).
        relations: (type, number of the head's entity, number of the tail's entity).
        orig_id: its name in files of folds; "" if it has none.
    """

    words: tuple[str, ...]
    entities: tuple[tuple[str, int, int], ...]
    relations: tuple[tuple[str, int, int], ...]
    orig_id: str


class FoldIds(NamedTuple):
    """The ids of the sentences that a fold of a cross-validation trains on and is tested on."""

    train: tuple[str, ...]
    test: tuple[str, ...]


class _SentenceError(Exception):
    """A sentence is skipped. Arguments: reason and detail."""


def read_spert(
    path: Path, quarantine: Quarantine, taken: set[str] | None = None
) -> list[WordSentence]:
    """Return the sentences of a file, in order.

    Args:
        path: the file, plain or gzip: a list of objects with ``tokens``, ``entities``,
            ``relations`` and, as the sentence's name, ``orig_id`` (a number or a text, or none).
            Other keys are ignored. ``end`` of an entity is the number behind its last word.
        quarantine: takes sentences that are not sound, whole; their "line" is the sentence's number
            in the file, since such files are often a single line.
        taken: ids of sentences in other files, to which the ids of this file are added. None:
            nothing refers to sentences by ids, which may repeat and have any form.

    Raises:
        DataError: with file and line, if the file cannot be read, is damaged, or is no JSON list.
    """
    sentences = list[WordSentence]()
    number = 0
    for number, (_, value) in enumerate(stream_records(path), start=1):
        try:
            sentence = _sentence(value, is_id_needed=taken is not None)
            if taken is not None and sentence.orig_id in taken:
                raise _SentenceError(REPEATED_ID, sentence.orig_id)
        except _SentenceError as error:
            quarantine.add(SENTENCE, error.args[0], path.name, number, error.args[1])
            continue
        if taken is not None and sentence.orig_id:
            taken.add(sentence.orig_id)
        sentences.append(sentence)
    quarantine.saw(SENTENCE, number)
    if not number:
        raise DataError(f"{path}: is an empty list, want a list of sentences")
    return sentences


def read_folds(path: Path) -> tuple[FoldIds, ...]:
    """Return the folds of a file, in order of their numbers.

    Args:
        path: JSON, plain or gzip: ``{"split_1": {"train set": [ids], "test set": [ids]}, ...}``
            with ids as texts.

    Raises:
        DataError: naming the fold, if the file is missing or of another form, a fold number is
            missing, an id is repeated or on both sides, or a side has no sentences.
    """
    value = read_json_object(path)
    names = [f"split_{number}" for number in range(1, len(value) + 1)]
    strange = [name for name in value if name not in names]
    if strange or not names:
        got = repr(shown_names(strange[:1])) if strange else "no fold at all"
        raise DataError(f"{path}: got {got}, want folds split_1 to split_N without a gap")
    return tuple(_fold(path, name, value[name]) for name in names)


def _sentence(value: Any, *, is_id_needed: bool) -> WordSentence:
    """Check and return a sentence.

    Args:
        value: the sentence as JSON.
        is_id_needed: whether an id of another form is an error; else the sentence has no id.
    """
    fields = _fields(value, "the sentence", ("tokens", "entities", "relations"))
    words = _list(fields, "tokens")
    if not words:
        raise _SentenceError(NO_WORDS, _name(fields))
    for word in words:
        if not is_text(word) or not word.strip():
            raise _SentenceError(NOT_OF_THE_FORM, f"{_name(fields)}token {word!r}, want a text")
    entities = tuple(_triple(item, ("type", "start", "end")) for item in _list(fields, "entities"))
    relations = tuple(
        _triple(item, ("type", "head", "tail")) for item in _list(fields, "relations")
    )
    for kind, start, end in entities:
        if not 0 <= start < end <= len(words):
            raise _SentenceError(OUTSIDE, f"{_name(fields)}{kind} {start} to {end} of {len(words)}")
    for kind, head, tail in relations:
        if not (0 <= head < len(entities) and 0 <= tail < len(entities)):
            raise _SentenceError(
                NO_ENTITY,
                f"{_name(fields)}{kind} of {head} and {tail}, of {len(entities)} entities",
            )
        if head == tail:
            raise _SentenceError(SELF_RELATION, f"{_name(fields)}{kind} of {head} and {tail}")
        if kind == NO_RELATION:
            raise _SentenceError(NAMED_NA, f"{_name(fields)}{kind} of {head} and {tail}")
    orig_id = _orig_id(fields, is_id_needed=is_id_needed)
    return WordSentence(tuple(words), entities, relations, orig_id)


def _fields(value: Any, what: str, wanted: Collection[str]) -> Mapping[str, Any]:
    """Return an object that has the wanted keys; other keys are ignored, as by SpERT."""
    if not isinstance(value, dict):
        raise _SentenceError(NOT_OF_THE_FORM, f"{what} is a {type(value).__name__}, want an object")
    missing = [name for name in wanted if name not in value]
    if missing:
        raise _SentenceError(NOT_OF_THE_FORM, f"{_name(value)}{what} is without {missing[0]!r}")
    return value


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    if not isinstance(fields[name], list):
        raise _SentenceError(NOT_OF_THE_FORM, f"{_name(fields)}{name!r} is no list")
    return fields[name]


def _triple(value: Any, names: tuple[str, str, str]) -> tuple[str, int, int]:
    """Check and return a type and two whole numbers."""
    kind, first, second = (
        _fields(value, f"one with {names[1]!r} and {names[2]!r}", names)[name] for name in names
    )
    if not is_text(kind) or not kind.strip() or type(first) is not int or type(second) is not int:
        raise _SentenceError(NOT_OF_THE_FORM, f"{value!r}, want a text and two whole numbers")
    return kind, first, second


def _orig_id(fields: Mapping[str, Any], *, is_id_needed: bool) -> str:
    value = fields.get("orig_id")
    if value is None:
        return ""
    if type(value) is int or (is_text(value) and value.strip()):
        return str(value)
    if not is_id_needed:
        return ""
    raise _SentenceError(NOT_OF_THE_FORM, f"orig_id {value!r}, want a whole number or a text")


def _name(fields: Mapping[str, Any]) -> str:
    """Return the beginning of messages about a sentence."""
    return f"{fields['orig_id']}: " if isinstance(fields.get("orig_id"), (int, str)) else ""


def _fold(path: Path, name: str, value: Any) -> FoldIds:
    """Check and return a single fold.

    Raises:
        DataError: as ``read_folds``.
    """
    if not isinstance(value, dict) or set(value) != {TRAIN_SET, TEST_SET}:
        got = (
            f"an object of {[shown_names([key]) for key in sorted(value)[:12]]}"
            if isinstance(value, dict)
            else f"a {type(value).__name__}"
        )
        raise DataError(
            f"{path}, {name}: is {got}, want an object with {TRAIN_SET!r} and {TEST_SET!r}"
        )
    seen: dict[str, str] = {}
    for side in (TRAIN_SET, TEST_SET):
        ids = value[side]
        if not isinstance(ids, list) or not all(is_text(orig_id) for orig_id in ids):
            raise DataError(f"{path}, {name}: {side!r} is no list of texts, want orig_ids as texts")
        if not ids:
            raise DataError(f"{path}, {name}: {side!r} is empty, want at least one orig_id")
        for orig_id in ids:
            if orig_id in seen:
                there = (
                    f"twice in {side!r}"
                    if seen[orig_id] == side
                    else f"in {TRAIN_SET!r} and in {TEST_SET!r}"
                )
                raise DataError(
                    f"{path}, {name}: orig_id {orig_id!r} is {there}, want each sentence at most "
                    "once in a fold"
                )
            seen[orig_id] = side
    return FoldIds(tuple(value[TRAIN_SET]), tuple(value[TEST_SET]))
