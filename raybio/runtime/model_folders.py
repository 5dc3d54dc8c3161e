"""Models of finished runs and other folders, read by the method that wrote them.

No weights are loaded.
"""

from collections.abc import Collection
from pathlib import Path

from raybio.core.errors import ConfigError
from raybio.encoders.config import Pooling
from raybio.methods import METHODS
from raybio.runtime.model_paths import near_runs
from raybio.runtime.run.folder import RunFolder
from raybio.training.embedding_model import EmbeddingModel, InputEmbedder
from raybio.training.method import PartEncoder
from raybio.training.text_embedding_model import read_text_embedding_model


def model_of_run(runs: Path, name: str) -> InputEmbedder:
    """Return the exported model of a finished run, of any kind.

    Raises:
        ConfigError: if there is no such run, or it has not finished.
    """
    folder = RunFolder(runs, name, "--run")
    export = folder.export
    if not folder.path.exists():
        raise ConfigError(
            f"--run {name}: no run of that name in {runs}; {near_runs(runs, name)} (--runs names "
            "another folder of runs)"
        )
    if not (export / "config.json").exists():
        raise ConfigError(
            f"--run {name}: that run has no model yet ({export}); run its command to the end"
        )
    return embedder_of_folder(export)


def embedder_of_folder(folder: str | Path, pooling: Pooling | None = None) -> InputEmbedder:
    """Read how the encoder in a folder embeds inputs, or the words or pairs of entities in them.

    Raises:
        ConfigError: as ``model_of_folder``, or if ``pooling`` is given for parts of inputs.
    """
    encoder = part_encoder_of(Path(folder))
    if encoder is None:
        return model_of_folder(folder, pooling)
    if pooling is not None:
        raise ConfigError(f"pooling {pooling}: {folder} embeds {encoder.parts}; leave it out")
    return encoder.read(Path(folder))


def states_pooling(folder: str) -> bool:
    """Return whether a model can be read without a given pooling."""
    try:
        embedder_of_folder(folder)
    except ConfigError:
        return False
    return True


def refuse_ignored_pooling(folders: Collection[str], pooling: Pooling | None) -> None:
    """Refuse a pooling for models that all state theirs, if one of them states another.

    Raises:
        ConfigError: naming the model, or if there is none.
    """
    if pooling is None:
        return
    if not folders:
        raise ConfigError(f"pooling {pooling}: there is no model that takes it; leave it out")
    if not all(map(states_pooling, folders)):
        return  # the pooling applies to one of them
    for folder in folders:
        embedder_of_folder(folder, pooling)


def part_encoder_of(folder: Path) -> PartEncoder | None:
    """Return how the encoder in a folder embeds parts of inputs; None if it embeds whole inputs."""
    for method in METHODS.values():
        encoder = method.part_encoder
        if encoder is not None and (folder / encoder.settings).is_file():
            return encoder
    return None


def model_of_folder(folder: str | Path, pooling: Pooling | None = None) -> EmbeddingModel:
    """Read how the encoder in a folder embeds.

    Args:
        folder: an ``export/``, or any folder that ``save_pretrained`` or sentence_transformers
            wrote.
        pooling: pooling for a folder that does not state it; None: the folder must state it.

    Raises:
        ConfigError: if the folder holds no encoder of whole inputs, does not state its pooling and
            ``pooling`` is None, or states another one.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ConfigError(
            f"{folder}: no such folder; want the export/ of a run, or a folder of save_pretrained"
        )
    encoder = part_encoder_of(path)
    if encoder is not None:
        raise ConfigError(
            f"{folder}: embeds {encoder.parts} in their context ({encoder.settings}); want an "
            "encoder of whole proteins or texts, such as a run of sppt_protein, sppt_mag, "
            "biostransformers, contrastive_probe or finetune. Only raybio embed and raybio "
            "benchmark take this one"
        )
    if not any(path.rglob("*.safetensors")) and not any(path.rglob("pytorch_model*.bin")):
        raise ConfigError(
            f"{folder}: no safetensors file in it, and no pytorch_model.bin; want a folder that "
            "save_pretrained wrote"
        )
    for method in METHODS.values():
        model = method.read_embedding_model(path, pooling)
        if model is not None:
            return model
    return read_text_embedding_model(path, pooling)
