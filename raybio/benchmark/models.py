"""Models of a benchmark: encoders in folders, and rivals by their names.

Shape letters: N inputs, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raybio.benchmark.log import BenchmarkLog
from raybio.benchmark.saved_embeddings import EmbeddingCost, Vectors, embedding_costs
from raybio.benchmark.saved_embeddings import saved_embeddings as saved
from raybio.benchmark.task import RANDOM, Reads
from raybio.core.errors import ConfigError
from raybio.core.interfaces import Encoder
from raybio.core.randomness import derive_seed
from raybio.core.records import read_record
from raybio.encoders.checkpoints import model_names
from raybio.encoders.config import SCRATCH, Pooling
from raybio.encoders.hub import fetch_model
from raybio.encoders.sources import sha256_of_weights
from raybio.evaluation.lexical import CHARACTERS
from raybio.runtime.embed import model_of_folder
from raybio.runtime.run.folder import RUN, local_model
from raybio.training.embedding_model import EmbeddingModel

RIVALS = {
    "random": (RANDOM,),
    "tfidf": ("TF-IDF", "ridge on TF-IDF"),
    "bm25": ("BM25",),
    "characters": (CHARACTERS,),
    "kmers": ("3-mers", "ridge on 1-3-mers"),
    "degree": ("degree",),
    "common-neighbors": ("common neighbors",),
}
"""Name on the command line -> the rows that it may mean; a task has one of them or none."""

_RANDOM_WIDTH = 256


@dataclass(frozen=True)
class RandomVectors:
    """Embeds every input as a random vector, which depends on the input alone."""

    name: str = RANDOM
    folder: str = ""

    def embed(self, inputs: Sequence[str]) -> Vectors:
        """Return vectors (N, 256) of normal numbers."""
        vector_by_input: dict[str, Any] = {}
        for text in inputs:
            if text not in vector_by_input:
                rng = np.random.default_rng(derive_seed(0, "random vectors", text))
                vector_by_input[text] = rng.standard_normal(_RANDOM_WIDTH, np.float32)
        return np.stack([vector_by_input[text] for text in inputs])


@dataclass(frozen=True)
class BenchmarkModel:
    """An encoder in a folder.

    Attributes:
        name: name of its row.
        embedding: how it embeds.
        digest: changes with anything that changes an embedding.
        out: folder of the report, which has the saved embeddings.
    """

    name: str
    embedding: EmbeddingModel
    digest: str
    out: Path

    @property
    def folder(self) -> str:
        """Folder of its files."""
        return self.embedding.folder

    @property
    def reads(self) -> Reads:
        """Kind of its inputs."""
        return self.embedding.reads

    @property
    def num_weight_bytes(self) -> int:
        """Bytes of its weights."""
        return sum(path.stat().st_size for path in Path(self.folder).rglob("*.safetensors"))

    def embed(self, inputs: Sequence[str]) -> Vectors:
        """Return the embeddings (N, D) as the folder says; equal inputs are embedded once.

        Raises:
            ConfigError: if they are not finite.
        """
        distinct = list(dict.fromkeys(inputs))
        row_by_input = {text: row for row, text in enumerate(distinct)}
        array = self.saved(str(self.reads), distinct, lambda: self._computed(distinct))
        return array[[row_by_input[text] for text in inputs]]

    def saved(self, what: str, inputs: Sequence[str], make: Any) -> Vectors:
        """Return embeddings that are computed once; see ``saved_embeddings``.

        Raises:
            ConfigError: if they are not finite.
        """
        say = BenchmarkLog(self.out).say

        def checked() -> Vectors:
            array = make()
            if not np.isfinite(array).all():
                raise ConfigError(
                    f"MODEL {self.name}: its embeddings are not finite, want numbers. Are its "
                    "weights of a training that diverged?"
                )
            return array

        return saved(self._home, what, self.name, inputs, checked, say)

    def costs(self) -> list[EmbeddingCost]:
        """Return the costs of its saved embeddings."""
        return embedding_costs(self._home)

    @property
    def _home(self) -> Path:
        return self.out / "embeddings" / self.digest[:16]

    def _computed(self, inputs: Sequence[str]) -> Vectors:
        return self.embedding.embed(_loaded(self.embedding), self.embedding.contents_of(inputs))


def read_models(
    given: Sequence[str], out: Path, pooling: Pooling | None = None, after: str | None = None
) -> list[BenchmarkModel | str]:
    """Return the models in order; rivals by their names in ``RIVALS``. No weights are loaded.

    Args:
        given: runs, exports, model folders, hub ids, or names of rivals.
        out: folder of the report.
        pooling: of models whose folder does not state it.
        after: a run that comes first; the encoder that it began from comes next, with the run's
            pooling if it states none.

    Raises:
        ConfigError: if a model cannot be found, or is given twice.
    """
    base = None
    if after is not None:
        base = base_of_run(after)
        given = [after, base, *given]
    for name in given:
        if list(given).count(name) > 1:
            raise ConfigError(f"MODEL {name}: is given twice; want each model once")
    folder_by_name = {}
    for name in given:
        if name not in RIVALS:
            # Workers may have another working directory.
            path = Path(local_model(name, "MODEL")).expanduser()
            folder_by_name[name] = str(path.absolute())
    label_by_folder = {
        folder: label for label, folder in model_names(list(folder_by_name.values())).items()
    }
    models: list[BenchmarkModel | str] = []
    for name in given:
        if name in RIVALS:
            models.append(name)
            continue
        folder = folder_by_name[name]
        own_pooling = pooling
        if name == base and isinstance(models[0], BenchmarkModel):
            own_pooling = models[0].embedding.pooling
        embedding = _embedding_model(folder, own_pooling)
        label = label_by_folder[folder]
        parent = Path(folder).absolute().parent
        if label == "model":  # says nothing, and its parent does
            label = parent.name
        elif parent.name == "snapshots":  # of the hub's cache: models--OWNER--NAME
            label = parent.parent.name.rpartition("--")[2]
        models.append(BenchmarkModel(label, embedding, embedding.digest(), out))
    return models


def base_of_run(run: str) -> str:
    """Return the folder of the encoder that a run began from.

    Raises:
        ConfigError: if there is no such run, it began from random weights, or from weights that
            were replaced since.
        RecordError: if its ``run.json`` is damaged.
    """
    record = read_record(Path(run).expanduser() / RUN, "run")
    if record is None:
        raise ConfigError(f"--after {run}: is no folder of a run (no {RUN}); want a finished run")
    source = str(record["config"].get("encoder", {}).get("source", SCRATCH))
    if source == SCRATCH:
        raise ConfigError(
            f"--after {run}: began from random weights, so there is no encoder before it; want a "
            "run with encoder.source or --init"
        )
    began = record.get("encoder", {})
    if "commit" in began:
        return str(fetch_model(source, began["commit"]))
    folder = local_model(source, f"--after {run}, encoder.source")
    if "sha256" in began and sha256_of_weights(folder, "main") != began["sha256"]:
        raise ConfigError(
            f"--after {run}: began from other weights than {source} has now; restore those of "
            f"sha256 {began['sha256']}"
        )
    return folder


def _embedding_model(folder: str, pooling: Pooling | None) -> EmbeddingModel:
    try:
        return model_of_folder(folder)
    except ConfigError:
        if pooling is None:
            raise
        # Of several models, the pooling is for those that do not state theirs.
        return model_of_folder(folder, pooling)


def on_device(vectors: Vectors) -> torch.Tensor:
    """Return vectors on the GPU if there is one."""
    return torch.from_numpy(vectors).to("cuda" if torch.cuda.is_available() else "cpu")


@lru_cache(maxsize=1)
def _loaded(embedding: EmbeddingModel) -> Encoder:
    """Return the encoder; a worker keeps the last one."""
    return embedding.load().to("cuda" if torch.cuda.is_available() else "cpu")
