"""Find entities and relations of new sentences, by an exported model.

Shape letters: S sentences, W words of all of them, C chunks, P related pairs.
"""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from transformers import PreTrainedTokenizerFast

from raybio.core.errors import DataError
from raybio.encoders.text import text_reader
from raybio.encoders.tokenization import special_ids_around, word_pieces
from raybio.methods.relation_graphs.annotations.gold import EmbeddedSentences, Gold, Related
from raybio.methods.relation_graphs.annotations.tags import chunks
from raybio.methods.relation_graphs.classifiers.knn import predict_by_knn
from raybio.methods.relation_graphs.classifiers.reference_words import (
    WordLabels,
    no_annotations,
    read_reference,
)
from raybio.methods.relation_graphs.config import Config
from raybio.methods.relation_graphs.encoders.character_bert.checkpoint import (
    is_character_bert,
    read_config,
)
from raybio.methods.relation_graphs.encoders.embed_words import embed_words
from raybio.methods.relation_graphs.encoders.word_model import (
    exported_encoder_config,
    head_of,
    read_export_settings,
    trained_encoder,
)
from raybio.methods.relation_graphs.encoders.word_reader import WordReader
from raybio.methods.relation_graphs.formats import SENTENCE, WordSentence
from raybio.methods.relation_graphs.inference.new_sentences import NewSentence, read_sentences
from raybio.methods.relation_graphs.store import WordStore, commit_words
from raybio.store.quarantine import Quarantine
from raybio.store.sources import check_readable_files
from raybio.store.writer import Draft
from raybio.training.collective import SingleProcess
from raybio.training.embedding_model import check_values
from raybio.training.precision import default_device
from raybio.training.predictor import (
    InputPrediction,
    Inputs,
    PredictBlock,
    Predictor,
    skipped_remarks,
)

SENTENCES_AT_ONCE = 256

NO_TYPE = ""
"""Type of a related word that ends no entity."""


class Span(NamedTuple):
    """Words of a sentence: the first, the end (exclusive), and the type of the entity."""

    start: int
    end: int
    type: str


@dataclass(frozen=True)
class WordPredictor(Predictor):
    """An export of ``relation_graphs`` with the words that vote.

    Attributes:
        labels: names of its classes, and its numbers of neighbors.
        config: settings of its run.
    """

    row_noun = "entities and relations"
    reads = "sentences"

    labels: WordLabels
    config: Config

    @property
    def columns(self) -> pa.Schema:
        """One row per entity or relation; offsets count the characters of the sentence."""
        ends = []
        for end in ("head", "tail"):
            ends += [(end, pa.string()), (f"{end}_type", pa.string())]
            ends += [(f"{end}_start", pa.int64()), (f"{end}_end", pa.int64())]
        return pa.schema([("kind", pa.string()), ("type", pa.string()), *ends])

    @contextmanager
    def open_files(
        self, files: Sequence[Path], *, max_bad_share: float, strip_stop: bool
    ) -> Iterator[Inputs]:
        """Read texts or SpERT's JSON; every file is read once before the first prediction."""
        check_readable_files(files)
        length = sentence_length(self.config, self.folder)

        def blocks() -> Iterator[list[NewSentence]]:
            return sentence_blocks(good_sentences(files, length, Quarantine(max_bad_share)))

        quarantine = Quarantine(max_bad_share)
        num_good = sum(1 for _ in good_sentences(files, length, quarantine))
        for kind in ("text", SENTENCE):
            quarantine.check(kind)
        if not num_good:
            raise DataError(
                f"{files[0]}: has no good sentence, want at least one; {quarantine.summary()}"
            )
        yield Inputs(blocks, skipped_remarks(quarantine.summary()))

    @contextmanager
    def open_values(self, values: Iterable[str]) -> Iterator[Inputs]:
        """Take sentences; their ids are their numbers, from 1."""
        texts = check_values(values, "sentences")
        length = sentence_length(self.config, self.folder)
        sentences = [
            NewSentence.of_text(str(number), text, number)
            for number, text in enumerate(texts, start=1)
        ]
        for number, num_tokens in enumerate(length.of(sentences)):
            has_words = bool(sentences[number].words)
            if not has_words or num_tokens > length.limit:
                got = f"{num_tokens:,} tokens" if has_words else "no word"
                raise DataError(
                    f"input {number}: got {got} in {texts[number]!r:.60}, want a sentence of at "
                    f"most {length.limit:,} tokens; divide it"
                )
        yield Inputs(lambda: sentence_blocks(iter(sentences)), [])

    def load(self) -> PredictBlock:
        """Load the encoder and the words that vote."""
        encoder = trained_encoder(self.config, self.folder).eval()
        device = torch.device(default_device())
        encoder.to(device)
        reference = read_reference(self.folder, head_of(encoder), device)
        knn = self.config.evaluation.model_copy(
            update={
                "num_pair_neighbors": (self.labels.num_pair_neighbors,),
                "num_tag_neighbors": (self.labels.num_tag_neighbors,),
            }
        )

        def predict(block: list[NewSentence]) -> list[InputPrediction]:
            """Return entities and relations of some sentences."""
            with stored_sentences(block) as store:
                tokens = encoder.word_tokens(store.words, self.config.encoder)
                reader = WordReader(store, tokens, encoder.max_tokens)
                word_WD = embed_words(
                    encoder,
                    reader,
                    np.arange(store.num_rows),
                    SingleProcess(),
                    max_tokens=self.config.memory.max_tokens_per_micro_batch,
                )
                indptr_S1 = np.asarray(store.indptr_N1).astype(np.int64)
            with torch.no_grad():
                tag_WD = head_of(encoder).tag_space(word_WD)
            nothing = np.zeros(0, dtype=np.int64)
            gold = Gold(
                indptr_S1,
                np.zeros(len(word_WD), dtype=np.int64),
                Related(nothing, nothing, nothing),
                no_annotations(),
            )
            queries = EmbeddedSentences(word_WD, tag_WD, gold)
            predictions = predict_by_knn(reference, queries, self.labels, knn)
            pairs, tag_W = predictions.predicted(knn.first_settings)
            rows_S = _entities_and_relations(self.labels, indptr_S1, pairs, tag_W, block)
            return [
                InputPrediction(sentence.key, rows)
                for sentence, rows in zip(block, rows_S, strict=True)
            ]

        return predict


class SentenceLength(NamedTuple):
    """Counts tokens of sentences, without an encoder.

    Attributes:
        limit: maximum tokens of a sentence.
        tokenizer: divides words into pieces; None: a word is one token.
        is_lower_case: whether words are read in lower case.
    """

    limit: int
    tokenizer: PreTrainedTokenizerFast | None
    is_lower_case: bool

    def of(self, sentences: Sequence[NewSentence]) -> list[int]:
        """Return the tokens of each sentence, special ones included."""
        if self.tokenizer is None:
            return [len(sentence.words) + 2 for sentence in sentences]
        words = [*dict.fromkeys(word for sentence in sentences for word in sentence.words)]
        read = [word.lower() for word in words] if self.is_lower_case else words
        _, indptr_V1 = word_pieces(self.tokenizer, read)
        num_by_word = dict(zip(words, np.diff(indptr_V1).tolist(), strict=True))
        num_special = sum(map(len, special_ids_around(self.tokenizer)))
        return [
            sum(num_by_word[word] for word in sentence.words) + num_special
            for sentence in sentences
        ]


def sentence_length(config: Config, folder: Path) -> SentenceLength:
    """Return the token counter of an export; no weights are loaded."""
    config_of_encoder = exported_encoder_config(config, folder)
    if is_character_bert(str(folder)):
        limit = read_config(str(folder), "main").max_position_embeddings
        if config_of_encoder.max_length != "auto":
            limit = min(limit, config_of_encoder.max_length)
        return SentenceLength(limit, None, config_of_encoder.lower_case)
    reader = text_reader(config_of_encoder, count_by_word={})
    return SentenceLength(reader.max_tokens, reader.tokenizer, config_of_encoder.lower_case)


def good_sentences(
    files: Sequence[Path], length: SentenceLength, quarantine: Quarantine
) -> Iterator[NewSentence]:
    """Yield the good sentences of files that are read as a whole; see ``read_sentences``."""
    for file in files:
        for block in sentence_blocks(read_sentences(file, quarantine)):
            quarantine.saw(SENTENCE, len(block))
            for number, num_tokens in enumerate(length.of(block)):
                if num_tokens <= length.limit:
                    yield block[number]
                    continue
                quarantine.add(
                    SENTENCE,
                    f"sentence of more than the {length.limit:,} tokens that are read",
                    file.name,
                    block[number].line,
                    f"{block[number].key}: {num_tokens:,}",
                )


def sentence_blocks(sentences: Iterator[NewSentence]) -> Iterator[list[NewSentence]]:
    """Yield sentences in blocks that fit in memory."""
    while block := [*islice(sentences, SENTENCES_AT_ONCE)]:
        yield block


@contextmanager
def stored_sentences(block: Sequence[NewSentence]) -> Iterator[WordStore]:
    """Yield a temporary store of the sentences, for a ``WordReader``."""
    with tempfile.TemporaryDirectory(prefix="raybio-") as folder:
        with Draft(Path(folder) / "store") as draft:
            rows = np.arange(len(block))
            nothing = rows[:0]
            store = commit_words(
                draft,
                sentences=[
                    WordSentence(sentence.words, (), (), sentence.key) for sentence in block
                ],
                folds=[{"train": rows, "dev": nothing, "test": nothing}],
                provenance={},
            )
        yield store


def _entities_and_relations(
    labels: WordLabels,
    indptr_S1: np.ndarray,
    pairs: Related,
    tag_W: np.ndarray,
    block: Sequence[NewSentence],
) -> list[list[dict[str, Any]]]:
    """Return the entities of each sentence in the order of the text, then its relations.

    A relation joins the entities that its two words end. A word that ends no entity stands for
    itself, without a type.
    """
    sentence_W = np.repeat(np.arange(len(block)), np.diff(indptr_S1))
    rows_S: list[list[dict[str, Any]]] = [[] for _ in block]
    span_by_end: dict[int, Span] = {}
    for start, end, kind in zip(*(part.tolist() for part in chunks(tag_W, indptr_S1)), strict=True):
        number = int(sentence_W[start])
        first = int(indptr_S1[number])
        span = Span(start - first, end - first, labels.entity_types[kind])
        span_by_end[end - 1] = span
        row = {"kind": "entity", "type": span.type, **_end(block[number], "head", span)}
        rows_S[number].append(row)
    for first_word, second_word, label in zip(*(part.tolist() for part in pairs), strict=True):
        number = int(sentence_W[first_word])
        first = int(indptr_S1[number])
        head, tail = (
            span_by_end.get(word, Span(word - first, word - first + 1, NO_TYPE))
            for word in sorted((first_word, second_word))
        )
        rows_S[number].append(
            {
                "kind": "relation",
                "type": labels.relation_names[label],
                **_end(block[number], "head", head),
                **_end(block[number], "tail", tail),
            }
        )
    return rows_S


def _end(sentence: NewSentence, name: str, span: Span) -> dict[str, Any]:
    start = sentence.start_W[span.start]
    end = sentence.end_W[span.end - 1]
    return {
        name: sentence.text[start:end],
        f"{name}_type": span.type,
        f"{name}_start": start,
        f"{name}_end": end,
    }


def read_predictor(folder: Path) -> WordPredictor:
    """Read an export of ``relation_graphs``, without its weights.

    Raises:
        ConfigError: if its records are damaged.
    """
    config, _ = read_export_settings(folder)
    return WordPredictor(folder, WordLabels.read(folder), config)
