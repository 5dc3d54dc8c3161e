"""Stores as inputs of a bulk embedding: every row with the field, once, in order."""

from pathlib import Path

import numpy as np
import pytest

from raybio.core.errors import ConfigError, DataError
from raybio.encoders.config import TextEncoderConfig
from raybio.encoders.export import export_text_encoder
from raybio.encoders.text import build_text_encoder
from raybio.methods.biostransformers.store import ArticleStore
from raybio.runtime import embed_inputs
from raybio.runtime.embed_inputs import StoreInputs, inputs_of
from raybio.runtime.model_folders import model_of_folder
from raybio.store.quarantine import Quarantine
from raybio.store.store import Store
from raybio.training.embedding_model import EmbeddingModel
from tests.encoders.tiny_text import COUNT_BY_WORD
from tests.runtime.search.test_queries import export


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, EmbeddingModel]:
    folder = tmp_path_factory.mktemp("models")
    sizes = {"num_layers": 1, "width": 16, "num_heads": 2, "ffn_width": 32, "max_length": 12}
    config = TextEncoderConfig(**sizes, pooling="mean")
    encoder = build_text_encoder(config, seed=0, count_by_word=COUNT_BY_WORD)
    texts = export_text_encoder(encoder, folder / "texts", card={})
    proteins = export(folder / "proteins", 0)
    return {"texts": model_of_folder(texts), "proteins": model_of_folder(proteins)}


def texts_of(store: Store, field: str) -> list[str]:
    """Return the field of all rows by the store's own functions."""
    rows = np.arange(store.num_rows)
    if store.kind == "proteins":
        bounds = store.indptr_N1
        return [bytes(store.residue_T[bounds[n] : bounds[n + 1]]).decode() for n in rows]
    if store.kind == "articles":
        return store.texts(field, rows)
    return store.sentences(rows) if store.kind == "sentences" else store.texts(rows)


@pytest.mark.parametrize(
    ("fixture", "field"),
    [
        ("tiny_store", None),
        ("tiny_citations", None),
        ("tiny_topics", None),
        ("tiny_sentences", None),
        ("tiny_articles", None),
        ("tiny_articles", "abstract"),
    ],
)
def test_every_row_that_has_the_field_is_an_input(
    fixture: str,
    field: str | None,
    models: dict[str, EmbeddingModel],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embed_inputs, "ROWS_AT_ONCE", 97)
    store: Store = request.getfixturevalue(fixture)
    model = models[store.inputs_are]
    inputs = inputs_of(store.path, model, field=field)
    assert isinstance(inputs, StoreInputs)
    quarantine = Quarantine(0.0)
    blocks = list(inputs.blocks(model, quarantine))
    quarantine.check("text")
    keys = [key for block in blocks for key in block.column("key").to_pylist()]
    contents = [one.decode() for block in blocks for one in block.column("content").to_pylist()]
    texts = texts_of(store, inputs.field)
    if isinstance(store, ArticleStore):
        all_keys = [str(pmid) for pmid in store.pmid_N]
    elif hasattr(store, "keys"):
        all_keys = store.keys.to_pylist()
    else:
        all_keys = [str(number) for number in range(1, len(texts) + 1)]
    wanted = [(key, text) for key, text in zip(all_keys, texts, strict=True) if text]
    assert list(zip(keys, contents, strict=True)) == wanted
    num_skipped = sum(facts["count"] for facts in quarantine.summary().values())
    assert num_skipped == len(texts) - len(wanted)


def test_other_stores_and_fields_are_refused(
    models: dict[str, EmbeddingModel],
    tiny_store: Store,
    tiny_articles: Store,
    tiny_documents: Store,
    tmp_path: Path,
) -> None:
    texts = models["texts"]
    with pytest.raises(DataError, match="is a store of proteins, and .*texts reads texts"):
        inputs_of(tiny_store.path, texts)
    with pytest.raises(ConfigError, match="--field title: .* has sequence; want one of these"):
        inputs_of(tiny_store.path, models["proteins"], field="title")
    with pytest.raises(DataError, match="a store of documents has no whole proteins or texts"):
        inputs_of(tiny_documents.path, texts)
    with pytest.raises(DataError, match="is a folder and neither a prepared store"):
        inputs_of(tmp_path, texts)
    with pytest.raises(ConfigError, match="--field title: is for a store"):
        inputs_of(tmp_path / "texts.txt", texts, field="title")
    with pytest.raises(ConfigError, match="--strip-stop is for files"):
        inputs_of(tiny_store.path, models["proteins"], strip_stop=True)
    title, abstract = (inputs_of(tiny_articles.path, texts, field=f) for f in ("title", "abstract"))
    assert title.digest() != abstract.digest()
