"""A trained model in Python: ``raybio.load(model)``."""

import logging
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raybio.core.errors import ConfigError, NoHeadError
from raybio.core.interfaces import Encoder
from raybio.encoders.config import Pooling
from raybio.runtime.model_folders import embedder_of_folder, model_of_folder, part_encoder_of
from raybio.runtime.model_paths import local_model, near_run_folders
from raybio.runtime.predict import find_predictor, read_predictor
from raybio.training.embedding_model import EmbeddingModel
from raybio.training.precision import default_device
from raybio.training.predictor import PredictBlock, Predictor
from raybio.training.text_embedding_model import read_text_embedding_model

_LOGGER = logging.getLogger(__name__)


class TrainedModel:
    """The encoder in a folder, and its head if it has one.

    Weights are loaded by the first call that needs them, on a GPU if there is one.

    Attributes:
        folder: an export, or any folder that ``save_pretrained`` or sentence_transformers wrote.
        pooling: pooling for a folder that does not state it.
    """

    def __init__(self, folder: str | Path, pooling: Pooling | None = None) -> None:
        """Check the folder; no weights are loaded."""
        self.folder = Path(folder).expanduser()
        self.pooling = pooling
        self._has_warned = False
        if (
            not (self.folder / "config.json").is_file()
            and not (self.folder / "modules.json").is_file()
        ):
            raise ConfigError(
                f"raybio.load: {folder} holds no model (no config.json); want a finished run, its "
                f"export/, or a folder of save_pretrained{near_run_folders(str(folder))}"
            )

    def encode(self, inputs: Iterable[str]) -> np.ndarray:
        """Return the embeddings (N, D) of inputs, float32.

        They equal the embeddings that plain transformers or sentence_transformers compute with the
        folder. Models that were trained on pairs of entities or on words embed whole texts too,
        although they were not trained for that. A ``relation_graphs`` model of words over
        CharacterBERT has no tokenizer of texts and embeds none; see ``encodes``.

        Args:
            inputs: proteins as strings of residues for a protein encoder, else texts. Longer ones
                are cut, as in training. The first call that cuts inputs logs a warning with their
                number.

        Raises:
            DataError: if the inputs are not a list of such strings.
            ConfigError: if the folder states no pooling, or has no tokenizer of texts.
        """
        model = self._embedding_model
        contents = model.contents_of(inputs)
        if not self._has_warned and (
            remark := model.truncation_remark([pa.chunked_array([contents], pa.large_binary())], 1)
        ):
            self._has_warned = True
            _LOGGER.warning("%s: %s; the ends are not read", self.folder, remark)
        return model.embed(self._encoder, contents)

    def predict(self, inputs: Iterable[Any]) -> list[Any]:
        """Return what the head predicts for each input, in order.

        Args:
            inputs: proteins as strings of residues, texts or sentences as strings; of a model of
                ``relation_finetune`` documents with their entities, as mappings of BioC JSON, or of
                DocRED's JSON if the model was trained on DocRED.

        Returns:
            For each input, a mapping by the columns of ``raybio predict``, without the id; for a
            model that finds relations, a list of such mappings.

        Raises:
            DataError: if an input is invalid.
            ConfigError: if the folder has no head.
        """
        with self._predictor.open_values(inputs) as opened:
            predict = self._predict_block
            return [prediction.value for block in opened.blocks() for prediction in predict(block)]

    def check_inputs(self, inputs: Sequence[str]) -> None:
        """Refuse inputs that ``encode`` refuses, without embedding anything.

        Raises:
            DataError: if the inputs are not a list of proteins or texts.
        """
        self._embedding_model.contents_of(inputs)

    @cached_property
    def has_head(self) -> bool:
        """Whether ``predict`` works."""
        try:
            return find_predictor(self.folder) is not None
        except NoHeadError:
            return False

    @property
    def encodes(self) -> bool:
        """Whether ``encode`` works: not for words over CharacterBERT, or with unknown pooling."""
        return not self.why_not_encode

    @cached_property
    def why_not_encode(self) -> str:
        """Why ``encode`` does not work; empty if it does."""
        try:
            self._embedding_model  # noqa: B018
        except ConfigError as error:
            return str(error)
        return ""

    def load_weights(self) -> None:
        """Load the weights of encoder and head now, and not in the first call.

        Raises:
            ConfigError: if the folder has neither, or they cannot be loaded.
        """
        if self.has_head:
            self._predict_block  # noqa: B018
        if self.encodes or not self.has_head:
            self._encoder  # noqa: B018

    def digest(self) -> str:
        """Return 64 hex digits that change with anything that changes an embedding."""
        model = self._embedding_model if self.encodes else embedder_of_folder(self.folder)
        return model.digest()

    def __repr__(self) -> str:
        """Return the call that loads it."""
        pooling = f", pooling={self.pooling!r}" if self.pooling else ""
        return f"raybio.load({str(self.folder)!r}{pooling})"

    @cached_property
    def _embedding_model(self) -> EmbeddingModel:
        part = part_encoder_of(self.folder)
        if part is None:
            return model_of_folder(self.folder, self.pooling)
        if not (self.folder / "modules.json").is_file():
            raise ConfigError(
                f"{self.folder}: embeds {part.parts} in their context and has no tokenizer of "
                "texts; want predict, or a model with word pieces"
            )
        return read_text_embedding_model(self.folder, self.pooling)

    @cached_property
    def _encoder(self) -> Encoder:
        encoder = self._embedding_model.load()
        return encoder.to(default_device())

    @cached_property
    def _predictor(self) -> Predictor:
        return read_predictor(self.folder)

    @cached_property
    def _predict_block(self) -> PredictBlock:
        return self._predictor.load()


def load(model: str | os.PathLike[str], pooling: Pooling | None = None) -> TrainedModel:
    """Return a trained model.

        model = raybio.load("runs/first")
        model.encode(["MKTAYIAKQR"])  # float32 (1, D)
        model.predict(["MKTAYIAKQR"])  # of a fine-tuned model

    Every export but one encodes: that of ``relation_graphs`` over CharacterBERT embeds words in
    their context (``raybio embed``) and predicts; its ``encodes`` is False.

    Args:
        model: a run of ``raybio.train``, the folder of a finished run, its ``export/``, any folder
            that ``save_pretrained`` or sentence_transformers wrote, the URI of such a folder in a
            bucket, or a hub id.
        pooling: ``cls`` or ``mean``, of a model that does not state it, such as
            ``facebook/esm2_t6_8M_UR50D``.

    Raises:
        ConfigError: if there is no model, or it cannot be fetched.
        StorageError: if it lies in a bucket that is missing, refuses or does not answer.
    """
    return TrainedModel(local_model(os.fspath(model), "raybio.load"), pooling)
