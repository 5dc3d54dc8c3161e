"""Word encoders with their heads: before training, untrained, or loaded from an export."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from raybio.core.errors import ConfigError
from raybio.core.interfaces import Collective
from raybio.core.randomness import derive_seed
from raybio.core.records import export_record
from raybio.encoders.config import LoraConfig
from raybio.encoders.transformer import seeded_weights
from raybio.methods.relation_graphs.config import Config, WordEncoderConfig
from raybio.methods.relation_graphs.encoder import WordEncoder, build_word_encoder, read_heads
from raybio.methods.relation_graphs.encoders.embed_words import embed_words
from raybio.methods.relation_graphs.encoders.graph_encoder import GraphEncoder
from raybio.methods.relation_graphs.encoders.word_reader import WordReader
from raybio.methods.relation_graphs.export import SETTINGS
from raybio.methods.relation_graphs.objective import RelationGraphHead
from raybio.methods.relation_graphs.store import WordStore
from raybio.training.bucket_source import fetch_encoder
from raybio.training.collective import SingleProcess
from raybio.training.precision import default_device


def initial_encoder(config: Config, store: WordStore | None) -> WordEncoder:
    """Build encoder and head with their initial weights.

    Args:
        config: settings of the run.
        store: the sentences, for a tokenizer from scratch; None: the source has one.

    Raises:
        ConfigError: if the encoder cannot be loaded.
    """
    # Evaluations of an export build the encoder that its run began with.
    fetch_encoder(config)
    encoder = build_word_encoder(
        config.encoder,
        seed=derive_seed(config.seed, "weights"),
        count_by_word=None if store is None else store.count_by_word,
    )
    is_whole = config.model == "clgs"
    with seeded_weights(derive_seed(config.seed, "head")):
        graph = None
        if config.model != "clner":
            graph = GraphEncoder(
                encoder.width,
                self_loop=None if is_whole else config.objective.self_loop,
                activation="tanh" if is_whole else "relu",
            )
        encoder.head = RelationGraphHead(
            graph,
            encoder.width,
            has_tags=config.model in ("clner", "joint"),
            projection_width=config.objective.projection_width if is_whole else None,
        )
    return encoder


def untrained_encoder(config: Config, store: WordStore) -> WordEncoder:
    """Build the encoder before training, without the untrained tag head.

    Raises:
        ConfigError: if the encoder cannot be loaded.
    """
    encoder = initial_encoder(config, store)
    head_of(encoder).entity = None
    return encoder


def exported_encoder_config(config: Config, folder: Path) -> WordEncoderConfig:
    """Return the settings by which the encoder that a run exported to ``folder`` is loaded."""
    # Adapters are merged into the exported weights.
    changes = {
        "source": str(folder),
        "num_layers_kept": None,
        "num_frozen_layers": 0,
        "lora": LoraConfig(),
    }
    return config.encoder.model_copy(update=changes)


def trained_encoder(config: Config, folder: Path) -> WordEncoder:
    """Load encoder and head that a run with this configuration exported to ``folder``.

    Raises:
        ConfigError: if they cannot be loaded.
    """
    changes = {"encoder": exported_encoder_config(config, folder)}
    encoder = initial_encoder(config.model_copy(update=changes), None)
    saved = {name.removeprefix("head."): part for name, part in read_heads(str(folder)).items()}
    try:
        head_of(encoder).load_state_dict(saved)
    except RuntimeError as error:
        raise ConfigError(
            f"{folder}: its heads do not fit its settings ({error}); export it again"
        ) from None
    return encoder


def head_of(encoder: WordEncoder) -> RelationGraphHead:
    """Return the encoder's head."""
    assert isinstance(encoder.head, RelationGraphHead)
    return encoder.head


@dataclass(frozen=True)
class WordModel:
    """A model that embeds the words of a store's sentences.

    Attributes:
        config: settings of its run.
        encoder: the encoder with its heads.
        reader: reads the sentences for this encoder.
        collective: the other workers, which embed a share.
    """

    config: Config
    encoder: WordEncoder
    reader: WordReader
    collective: Collective = field(default_factory=SingleProcess)

    @classmethod
    def load(cls, folder: str | Path, store: WordStore, device: str | None = None) -> Self:
        """Load an export of ``relation_graphs``.

        Args:
            folder: the export.
            store: the store of its run.
            device: where the model runs; None: on a GPU if there is one.

        Raises:
            ConfigError: if the folder is no such export, or its run had another store.
        """
        read_export_config(folder, store)
        return cls.of_any_store(folder, store, device)

    @classmethod
    def of_any_store(cls, folder: str | Path, store: WordStore, device: str | None = None) -> Self:
        """Load an export as ``load`` does, over any store.

        Raises:
            ConfigError: if the folder is no such export.
        """
        config, _ = read_export_settings(folder)
        encoder = trained_encoder(config, Path(folder).expanduser())
        return cls._on_device(config, encoder, store, device)

    @classmethod
    def _on_device(
        cls, config: Config, encoder: WordEncoder, store: WordStore, device: str | None
    ) -> Self:
        if device is None:
            device = default_device()
        # This gives CharacterBERT the characters of the store's words.
        tokens = encoder.word_tokens(store.words, config.encoder)
        reader = WordReader(store, tokens, encoder.max_tokens)
        return cls(config, encoder.eval().to(device), reader)

    def untrained(self) -> Self:
        """Return the model before its run.

        Raises:
            ConfigError: if the source of its encoder no longer exists.
        """
        device = next(self.encoder.parameters()).device.type
        return self.before_training(self.config, self.reader.store, device)

    @classmethod
    def before_training(cls, config: Config, store: WordStore, device: str | None = None) -> Self:
        """Return the model that a run with this configuration begins with, without a tag head.

        Raises:
            ConfigError: if its encoder cannot be loaded.
        """
        return cls._on_device(config, untrained_encoder(config, store), store, device)

    @property
    def store(self) -> WordStore:
        """The sentences."""
        return self.reader.store

    def embed(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return the words (W, D) of sentences, before and after the tag head."""
        max_tokens = self.config.memory.max_tokens_per_micro_batch
        word_WD = embed_words(
            self.encoder, self.reader, rows, self.collective, max_tokens=max_tokens
        )
        with torch.no_grad():
            return word_WD, head_of(self.encoder).tag_space(word_WD)


def read_export_config(folder: str | Path, store: WordStore) -> Config:
    """Return the settings of the run that exported ``folder``.

    Raises:
        ConfigError: if the folder is no such export, or its run had another store.
    """
    config, trained_on = read_export_settings(folder)
    if trained_on != store.digest:
        raise ConfigError(
            f"{folder}: was trained on another store than {store.location}, whose test sentences "
            "it may know; want the store of its run"
        )
    return config


def read_export_settings(folder: str | Path) -> tuple[Config, str]:
    """Return the settings of the run that exported ``folder``, and the digest of its store.

    Raises:
        ConfigError: if the folder is no such export.
    """
    path = Path(folder).expanduser() / SETTINGS
    with export_record(path, "export settings", "relation_graphs") as content:
        return Config.from_mapping(content["config"]), str(content["store"])
