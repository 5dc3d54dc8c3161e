"""Models of a benchmark: encoders in folders, and rivals by their names.

Shape letters: N inputs, D width.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from raybio.benchmark.log import BenchmarkLog
from raybio.benchmark.rivals import RESERVED, RIVALS, check_models
from raybio.benchmark.saved_embeddings import KIND, Embedded, EmbeddingCost, Vectors
from raybio.benchmark.saved_embeddings import embedding_costs as costs_of
from raybio.benchmark.saved_embeddings import saved_embeddings as saved
from raybio.benchmark.task import RANDOM
from raybio.core.digest import digest_of
from raybio.core.errors import ConfigError
from raybio.core.files import RUN
from raybio.core.interfaces import Encoder
from raybio.core.randomness import derive_seed
from raybio.core.records import FORMATS, read_record
from raybio.encoders.config import SCRATCH, Pooling
from raybio.encoders.hub import fetch_model
from raybio.encoders.sources import sha256_of_weights
from raybio.evaluation.unit_scores import MIN_SEEDS
from raybio.runtime.compare.setting_names import REPETITIONS, present_settings, without_draws
from raybio.runtime.model_folders import embedder_of_folder, refuse_ignored_pooling, states_pooling
from raybio.runtime.model_paths import local_model
from raybio.runtime.run.folder import with_present_names
from raybio.training.embedding_model import EmbeddingModel, InputEmbedder
from raybio.training.precision import default_device, embedding_precision, resolve_precision
from raybio.training.settings import EmbeddingPrecision

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

    def truncation_remarks(self, inputs_by_name: Mapping[str, Sequence[str]]) -> list[str]:
        """Return no remark: no input is cut."""
        return []


@dataclass(frozen=True)
class BenchmarkModel:
    """An encoder in a folder.

    Attributes:
        name: name of its row.
        embedding: how it embeds whole inputs, or parts of them such as words.
        digest: changes with anything that changes an embedding.
        out: folder of the report, which has the saved embeddings.
        precision: of the encoder, on the machine that embeds.
    """

    name: str
    embedding: InputEmbedder
    digest: str
    out: Path
    precision: EmbeddingPrecision = "fp32"

    def in_its_precision(self) -> AbstractContextManager[None]:
        """Return the context in which the encoder computes in its precision on this machine.

        Raises:
            ConfigError: if the machine lacks the precision.
        """
        return embedding_precision(resolve_precision(self.precision, default_device()))

    @property
    def folder(self) -> str:
        """Folder of its files."""
        return self.embedding.folder

    @property
    def reads(self) -> str:
        """Kind of its inputs."""
        return self.embedding.reads

    @property
    def whole_inputs(self) -> EmbeddingModel:
        """How it embeds whole inputs; tasks that need this are given no other models."""
        assert isinstance(self.embedding, EmbeddingModel)
        return self.embedding

    def __str__(self) -> str:
        """Return what it embeds, as the reason why a task skips it."""
        if isinstance(self.embedding, EmbeddingModel):
            return f"reads {self.reads}"
        return f"embeds {self.embedding.row_noun} of {self.reads}"

    @property
    def num_weight_bytes(self) -> int:
        """Bytes of its weights."""
        folder = Path(self.folder)
        files = [*folder.rglob("*.safetensors")] or [*folder.rglob("pytorch_model*.bin")]
        return sum(path.stat().st_size for path in files)

    def embed(self, inputs: Sequence[str]) -> Vectors:
        """Return the embeddings (N, D) as the folder says; equal inputs are embedded once.

        Raises:
            ConfigError: if they are not finite.
        """
        distinct = list(dict.fromkeys(inputs))
        row_by_input = {text: row for row, text in enumerate(distinct)}
        array = self.saved(
            str(self.reads),
            distinct,
            lambda: self._computed(distinct),
            load=lambda: _loaded(self.embedding),
        )
        return array[[row_by_input[text] for text in inputs]]

    def truncation_remarks(self, inputs_by_name: Mapping[str, Sequence[str]]) -> list[str]:
        """Return a remark on each kind of inputs of which some are cut; many texts are sampled."""
        remarks = []
        for name, inputs in inputs_by_name.items():
            contents = pa.array(self.whole_inputs.contents_of(inputs), pa.large_binary())
            lengths = self.whole_inputs.input_lengths([pa.chunked_array([contents])], 1)
            remarks.append(replace(lengths, name=name).remark)
        return [remark for remark in remarks if remark]

    def saved(
        self,
        what: str,
        inputs: Sequence[str],
        make: Callable[[], Embedded],
        *,
        load: Callable[[], object] = lambda: None,
    ) -> Vectors:
        """Return embeddings that are computed once; see ``saved_embeddings``.

        Raises:
            ConfigError: if they are not finite.
        """
        say = BenchmarkLog(self.out).say

        def checked() -> Embedded:
            made = make()
            if not np.isfinite(made.vector_ND).all():
                raise ConfigError(
                    f"MODEL {self.name}: its embeddings are not finite, want numbers. Are its "
                    "weights of a training that diverged?"
                )
            return made

        return saved(self._home, what, self.name, inputs, load, checked, say)

    def costs(self) -> list[EmbeddingCost]:
        """Return the costs of its saved embeddings."""
        return costs_of(self._home)

    @property
    def _home(self) -> Path:
        # Embeddings of other versions of the program are not read.
        return self.out / "embeddings" / f"{FORMATS[KIND].version}-{self.digest[:16]}"

    def _computed(self, inputs: Sequence[str]) -> Embedded:
        contents = self.whole_inputs.contents_of(inputs)
        return Embedded(self.whole_inputs.embed(_loaded(self.embedding), contents), len(inputs))


def read_models(
    given: Sequence[str],
    out: Path,
    pooling: Pooling | None = None,
    after: str | None = None,
    precision: EmbeddingPrecision = "fp32",
) -> list[BenchmarkModel | str]:
    """Return the models in order; rivals by their names in ``RIVALS``. No weights are loaded.

    Args:
        given: runs, exports, model folders, hub ids, or names of rivals.
        out: folder of the report.
        pooling: of models whose folder does not state it.
        after: a run that comes first; the encoder from which it began comes next, with the run's
            settings.
        precision: of the encoders.

    Raises:
        ConfigError: if a model cannot be found, is given twice, or has the name of another row, or
            if all models state their pooling and one states another than ``pooling``.
    """
    base = None
    if after is not None:
        base = base_of_run(after)
        given = [after, base, *given]
    check_models(given)
    folder_by_name = {}
    for name in given:
        if name not in RIVALS:
            # Workers may have another working directory.
            folder_by_name[name] = str(Path(local_model(name, "MODEL")).absolute())
    label_by_folder = _labels(list(folder_by_name.values()))
    embedding_by_name: dict[str, InputEmbedder] = {}
    of_run: InputEmbedder | None = None  # comes first
    for name, folder in folder_by_name.items():
        if name == base and of_run is not None:
            embedding_by_name[name] = _before_run(folder, of_run, pooling)
        else:
            embedding_by_name[name] = _embedder(folder, pooling)
            of_run = of_run or embedding_by_name[name]
    # The base that a run began from takes the run's pooling, where both embed inputs.
    taking = [
        folder
        for name, folder in folder_by_name.items()
        if name != base or not isinstance(of_run, EmbeddingModel)
    ]
    refuse_ignored_pooling(taking, pooling)
    models: list[BenchmarkModel | str] = []
    for name in given:
        if name in RIVALS:
            models.append(name)
            continue
        embedding = embedding_by_name[name]
        label = label_by_folder[folder_by_name[name]]
        digest = embedding.digest()
        if precision != "fp32":
            digest = digest_of({"model": digest, "precision": precision})
        models.append(BenchmarkModel(label, embedding, digest, out, precision))
    return models


def seed_groups(models: Sequence[BenchmarkModel | str]) -> dict[str, list[str]]:
    """Return the runs that differ in their seed only, by the name of their common row.

    Groups have at least ``MIN_SEEDS`` runs, since two seeds say next to nothing about a third.

    Raises:
        RecordError: if the ``run.json`` of a run is damaged.
    """
    name_by_seed: dict[str, dict[int, str]] = {}
    for model in models:
        if isinstance(model, str):
            continue
        record = read_record(Path(model.folder).parent / RUN, "run")
        if record is not None:
            record = with_present_names(record)
            config = present_settings(record["method"], record["config"])
            seed = config.pop("seed", 0)
            draws = {path: config.get(path) for path in REPETITIONS}
            settings = without_draws(config) | draws
            run = {"method": record["method"], "data": record.get("data_digest")}
            training = digest_of({**run, "settings": settings})
            name_by_seed.setdefault(training, {}).setdefault(seed, model.name)
    groups = [list(names.values()) for names in name_by_seed.values() if len(names) >= MIN_SEEDS]
    return {f"{len(names)} seeds of {names[0]}": names for names in groups}


def _labels(folders: Sequence[str]) -> dict[str, str]:
    """Return folder -> name of its row: the shortest of its names that no other model has.

    Raises:
        ConfigError: if two models are the same folder, or a name belongs to another row.
    """
    names_by_folder = {folder: _names(Path(folder)) for folder in folders}
    resolved = [Path(folder).resolve() for folder in folders]
    label_by_folder = {}
    for folder, path in zip(folders, resolved, strict=True):
        if resolved.count(path) > 1:
            raise ConfigError(f"MODEL {folder}: is given twice; want each model once")
        others = {
            name for other, names in names_by_folder.items() if other != folder for name in names
        }
        label = next(name for name in names_by_folder[folder] if name not in others)
        if label in RESERVED:
            raise ConfigError(
                f"MODEL {folder}: {label} is the name of another row; give its folder another name"
            )
        label_by_folder[folder] = label
    return label_by_folder


def _names(folder: Path) -> list[str]:
    """Return the names of a model from short to long; the last one is its own."""
    names = [folder.name]
    if folder.name in ("export", "model"):  # says nothing, and its parent does
        names = [folder.parent.name]
    elif folder.parent.parent.name.startswith("models--"):  # hub's cache: models--OWNER--NAME
        hub_id = folder.parent.parent.name.split("--")[1:]
        names = [hub_id[-1], "/".join(hub_id)]
    return [*names, str(folder)]


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
    record = with_present_names(record)
    if "encoder" not in record["config"]:
        raise ConfigError(
            f"--after {run}: is a sweep; want one of its trials: {Path(run) / 'trials' / 'TRIAL'}"
        )
    encoder = record["config"]["encoder"]
    source = str(encoder.get("source", SCRATCH))
    if encoder.get("num_layers_kept"):
        raise ConfigError(
            f"--after {run}: kept {encoder['num_layers_kept']} layers of its encoder "
            "(encoder.num_layers_kept), so the whole encoder is not what it began from; give both "
            "models by name instead"
        )
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


def _before_run(folder: str, of_run: InputEmbedder, pooling: Pooling | None) -> InputEmbedder:
    """Return the embedder of a run's initial encoder: as the run embeds, if both embed inputs."""
    if not isinstance(of_run, EmbeddingModel):
        return _embedder(folder, pooling)
    embedding = _embedder(folder, of_run.pooling)
    if not isinstance(embedding, EmbeddingModel):
        return embedding
    return replace(
        embedding,
        pooling=of_run.pooling,
        max_tokens=of_run.max_tokens,
        is_normalized=of_run.is_normalized,
    )


def _embedder(folder: str, pooling: Pooling | None) -> InputEmbedder:
    # With several models, the pooling is for models that do not state theirs.
    return embedder_of_folder(folder, None if states_pooling(folder) else pooling)


def on_device(vectors: Vectors) -> torch.Tensor:
    """Return vectors on the GPU if there is one."""
    return torch.from_numpy(vectors).to(default_device())


_LOADED: dict[InputEmbedder, Encoder] = {}
"""The last encoder of this worker."""


def _loaded(embedding: InputEmbedder) -> Encoder:
    """Return the encoder; free the last one first. Probes hold an encoder of their own."""
    if embedding not in _LOADED:
        _LOADED.clear()
        _LOADED[embedding] = embedding.load().to(default_device())
    return _LOADED[embedding]
