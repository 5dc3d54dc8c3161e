"""Bulk embedding of entity pairs of new documents, by an exported model.

Shape letters: K candidate pairs of a document, P pairs, D embedding width.
"""

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from raybio.core.interfaces import Encoder
from raybio.core.records import export_record
from raybio.methods.mtb_mccl.documents.entities import DOCUMENT, MENTION, Mention, RawDocument
from raybio.methods.mtb_mccl.documents.formats import read_documents
from raybio.methods.mtb_mccl.documents.prepare import prepare_unlabeled, store_unlabeled
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.embed_pairs import embed_pairs
from raybio.methods.mtb_mccl.encoder import RelationEncoder
from raybio.methods.mtb_mccl.export import SETTINGS
from raybio.methods.mtb_mccl.frozen_encoder import (
    FrozenEncoder,
    frozen_config,
    load_frozen,
    truncation_remarks,
)
from raybio.methods.mtb_mccl.new_documents import (
    candidate_pairs,
    check_direction,
    describe_entity,
    document_matcher,
)
from raybio.store.quarantine import Quarantine
from raybio.training.collective import SingleProcess
from raybio.training.embed import check_embeddings
from raybio.training.embedding_model import MAX_TOKENS_AT_ONCE, InputEmbedder, embedding_column

DOCUMENTS_AT_ONCE = 256

_ENDS = pa.schema(
    [
        (f"{end}{suffix}", pa.int64() if suffix in ("_start", "_end") else pa.string())
        for end in ("head", "tail")
        for suffix in ("_id", "_type", "", "_start", "_end")
    ]
)
"""Columns of ``describe_entity`` for both ends."""


@dataclass(frozen=True)
class PairEmbedder(InputEmbedder):
    """An export of ``mtb_pretrain`` or ``relation_finetune``.

    Attributes:
        is_directed: whether relations of its training documents have a direction; None: it reads
            documents of both kinds.
        candidate_types: (head type, tail type) of the pairs that it was trained on; None: all.
    """

    reads: ClassVar[str] = "documents"
    row_noun: ClassVar[str] = "pairs of entities"
    record_kinds: ClassVar[tuple[str, ...]] = (DOCUMENT, MENTION)

    is_directed: bool | None
    candidate_types: tuple[tuple[str, str], ...] | None

    def read_file(
        self, source: Path, quarantine: Quarantine, *, strip_stop: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns ``key`` and ``content`` (a document as JSON) of the good documents.

        Args:
            source: documents in any format of ``prepare_documents``; relations are ignored.
            quarantine: collects what is skipped; invalid records have been refused.
            strip_stop: ignored.

        Raises:
            ConfigError: if the model was trained on documents of the other direction.
        """
        with tempfile.TemporaryDirectory(prefix="raybio-") as folder:
            store = prepare_unlabeled(
                Path(folder) / "store", [source], max_bad_share=quarantine.max_bad_share
            )
            check_direction(self.folder, self.is_directed, store)
            for reason, facts in store.manifest["quarantine"].items():
                examples = [(each["line"], each["detail"]) for each in facts["examples"]]
                quarantine.add_many(
                    DOCUMENT, reason, source.name, facts["count"], examples, is_bad=False
                )
            raws = _stored_raws(source, store)
            while block := [*islice(raws, DOCUMENTS_AT_ONCE)]:
                contents = [json.dumps(asdict(raw)).encode() for raw in block]
                keys = pa.array([raw.document_id for raw in block], pa.string())
                yield pa.record_batch(
                    {"key": keys, "content": pa.array(contents, pa.large_binary())}
                )

    def load(self) -> RelationEncoder:
        """Load the encoder, in evaluation mode."""
        return load_frozen(self.folder).model

    def truncation_remark(self, contents: Iterable[pa.ChunkedArray], num_contents: int) -> str:
        """Return a line that says which documents are truncated; empty if none is."""
        with _stored(value.as_py() for content in contents for value in content) as store:
            remarks = truncation_remarks(self.folder, store)
        return "".join(f"{remark}; entities beyond have no state" for remark in remarks)

    def embed_table(
        self, encoder: Encoder, keys: pa.ChunkedArray, contents: list[bytes], dtype: np.dtype
    ) -> pa.Table:
        """Return columns ``key`` (document), the columns of both entities, and ``embedding``.

        Entities are described as by ``raybio predict``. The head comes first in the input of the
        embedding; for undirected pairs, it is the entity whose type comes first.
        """
        assert isinstance(encoder, RelationEncoder)
        frozen = FrozenEncoder(encoder, frozen_config(self.folder).max_document_tokens)
        types = None if self.candidate_types is None else frozenset(self.candidate_types)
        with _stored(contents) as store:
            pairs_by_row = {
                row: candidate_pairs(types, store, row) for row in range(store.num_rows)
            }
            pairs = embed_pairs(
                encoder,
                frozen.reader(store),
                {row: pair for row, pair in pairs_by_row.items() if len(pair[0])},
                SingleProcess(),
                max_tokens=MAX_TOKENS_AT_ONCE,
            )
            numbers = (pairs.row_P.tolist(), pairs.head_P.tolist(), pairs.tail_P.tolist())
            ends = [
                {
                    **describe_entity(store, row, head, "head"),
                    **describe_entity(store, row, tail, "tail"),
                }
                for row, head, tail in zip(*numbers, strict=True)
            ]
        table = pa.Table.from_pylist(ends, schema=_ENDS)
        # Documents of a store stay in the order in which they were added.
        table = table.add_column(0, "key", keys.take(pa.array(pairs.row_P)))
        check_embeddings(pairs.embedding_PD, self.folder)
        embedding = embedding_column(pairs.embedding_PD.cpu().numpy(), dtype)
        return table.append_column("embedding", embedding)

    def __str__(self) -> str:
        """Describe in a line what is done with an input."""
        return f"{self.folder} (documents): pairs of annotated entities, each in its document"


@contextmanager
def _stored(contents: Iterable[bytes]) -> Iterator[DocumentStore]:
    """Yield a temporary store of the documents, for a ``DocumentReader``."""

    def documents(quarantine: Quarantine) -> Iterator[tuple[RawDocument, str]]:
        for content in contents:
            fields = json.loads(content)
            mentions = tuple(Mention(**mention) for mention in fields.pop("mentions"))
            relations = tuple(fields.pop("relations"))
            yield RawDocument(**fields, mentions=mentions, relations=relations), ""

    with tempfile.TemporaryDirectory(prefix="raybio-") as folder:
        yield store_unlabeled(Path(folder) / "store", documents)


def _stored_raws(source: Path, store: DocumentStore) -> Iterator[RawDocument]:
    """Read a file again; yield the documents that its store contains."""
    raws = read_documents(source, Quarantine())
    for row in store.split_rows("train").tolist():
        is_row: Callable[[RawDocument], bool] = document_matcher(store, row)
        yield next(raw for raw in raws if is_row(raw))


def read_embedder(folder: Path) -> PairEmbedder:
    """Read an export of ``mtb_pretrain`` or ``relation_finetune``, without its weights.

    Raises:
        ConfigError: if its records are damaged.
    """
    with export_record(folder / SETTINGS, "export settings", "relation_finetune") as settings:
        types = settings.get("candidate_types")
        return PairEmbedder(
            str(folder),
            settings.get("is_directed"),
            None if types is None else tuple(sorted((head, tail) for head, tail in types)),
        )
