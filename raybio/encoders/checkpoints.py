"""Sources of encoders: a folder or a hub id, with one error that says why neither loads."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import file_exists, try_to_load_from_cache
from transformers import PreTrainedModel
from transformers.utils.hub import cached_file
from transformers.utils.logging import (
    disable_progress_bar,
    enable_progress_bar,
    is_progress_bar_enabled,
)

from raybio.core.errors import ConfigError
from raybio.core.files import check_local
from raybio.encoders.config import SCRATCH

logger = logging.getLogger(__name__)


def load_pretrained(auto: Any, source: str, revision: str, **options: Any) -> Any:
    """Call ``auto.from_pretrained`` (such as ``AutoModel``'s) on a source, without foreign code.

    Raises:
        ConfigError: if the source cannot be found, reached or read; it says what to do.
    """
    location = _folder_or_hub_id(source)
    try:
        return auto.from_pretrained(location, revision=revision, trust_remote_code=False, **options)
    except (OSError, ValueError, ImportError) as error:
        reason = str(error)
    raise _unloadable(source, reason)


def load_weights(
    auto: Any, source: str, revision: str, **options: Any
) -> tuple[PreTrainedModel, list[str]]:
    """Return a model in float32 with the weights of a source, and the names of missing weights.

    Weights of the file that the model does not have, such as another task's head, are skipped
    silently.

    Raises:
        ConfigError: as ``load_pretrained``, or if a weight has another shape than config.json says.
    """
    with _without_load_report():
        model, report = load_pretrained(
            auto,
            source,
            revision,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, with our message
            **options,
        )
    if mismatched := sorted(report["mismatched_keys"]):
        name, file_shape, config_shape = mismatched[0]
        raise _unloadable(
            source,
            f"{name} has shape {tuple(file_shape)} in the file, and config.json wants "
            f"{tuple(config_shape)}",
        )
    return model, sorted(report["missing_keys"])


@contextmanager
def _without_load_report() -> Iterator[None]:
    """Hide transformers' progress bar and its table of missing weights, which the caller checks."""
    log = logging.getLogger("transformers.modeling_utils")

    def is_no_report(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    log.addFilter(is_no_report)
    shows_bars = is_progress_bar_enabled()
    disable_progress_bar()
    try:
        yield
    finally:
        log.removeFilter(is_no_report)
        if shows_bars:
            enable_progress_bar()


def check_source(source: str, revision: str) -> None:
    """Refuse a source that does not exist, before anything is loaded; query the hub only once.

    Raises:
        ConfigError: if a folder lacks config.json or safetensors, or a hub id is unknown or cannot
            be reached.
    """
    if source == SCRATCH:
        return
    folder = Path(_folder_or_hub_id(source))
    if folder.is_dir():
        for pattern in ("config.json", "*.safetensors"):
            # A sentence-transformers folder may have its transformer one level down.
            if not [*folder.glob(pattern), *folder.glob(f"*/{pattern}")]:
                raise _unloadable(source, f"there is no {pattern} in it")
        return
    names = ("config.json", "modules.json")
    for name in names:
        if isinstance(try_to_load_from_cache(source, name, revision=revision), str):
            return
    reason = f"the hub has no {names[0]} of it at revision {revision!r}"
    try:
        # Without a network, loading would retry for half a minute; this does not.
        if any(file_exists(source, name, revision=revision) for name in names):
            return
    except Exception as error:  # of any library that the hub's client uses
        reason = f"the hub could not be reached ({error})"
    raise _unloadable(source, reason)


def fetch_file(source: str, name: str, revision: str) -> Path | None:
    """Return the local path of a file of a folder or a hub id; None if it has no such file.

    Without a network, a file that is not cached counts as absent, with a warning.

    Raises:
        ConfigError: if the source cannot be found or reached.
    """
    location = _folder_or_hub_id(source)
    absent_is_none = {
        "_raise_exceptions_for_missing_entries": False,
        "_raise_exceptions_for_connection_errors": False,
    }
    try:
        path = cached_file(location, name, revision=revision, **absent_is_none)
    except (OSError, ValueError) as error:
        raise _unloadable(source, str(error)) from None
    if path is not None:
        return Path(path)
    is_hub_id = not Path(location).is_dir()
    if is_hub_id and try_to_load_from_cache(location, name, revision=revision) is None:
        logger.warning(
            "the hub cannot be reached to look for %s of %s; taken as absent", name, source
        )
    return None


def require_file(source: str, name: str, revision: str) -> Path:
    """Return the local path of a file of a folder or a hub id.

    Raises:
        ConfigError: if there is none, or the source cannot be found or reached; it says what to do.
    """
    path = fetch_file(source, name, revision)
    if path is None:
        raise _unloadable(source, f"there is no {name} in it")
    return path


def _folder_or_hub_id(source: str) -> str:
    check_local(source, "encoder.source")
    folder = Path(source).expanduser()
    if folder.is_dir():
        return str(folder)
    if source.startswith((".", "/", "~")) or source.count("/") > 1 or "\\" in source:
        raise ConfigError(
            f"encoder.source {source!r}: no such folder. Give an existing one, 'scratch' or a hub "
            "id."
        )
    return source


def _unloadable(source: str, reason: str) -> ConfigError:
    folder = Path(source).expanduser()
    if folder.is_dir():
        advice = (
            "The folder must be one that save_pretrained writes: config.json, model.safetensors "
            "and the tokenizer."
        )
        if (folder / "pytorch_model.bin").exists():
            advice = (
                "Its weights are a pickle, which is not loaded; convert it once: python -m "
                f"raybio.encoders.bin_checkpoint {source} OUTPUT_FOLDER"
            )
    else:
        advice = (
            "If it is meant to be a folder, there is none of that name here. If this machine has "
            f"no network, fetch it elsewhere with `hf download {source} --local-dir FOLDER` and "
            "set encoder.source=FOLDER, or copy a filled hub cache here and set HF_HUB_OFFLINE=1. "
            "If it has pytorch_model.bin only, convert that folder with `python -m "
            "raybio.encoders.bin_checkpoint FOLDER OUTPUT_FOLDER`."
        )
    return ConfigError(
        f"encoder.source {source!r} cannot be loaded: {' '.join(reason.split())[:300]}. {advice}"
    )


def check_complete(source: str, missing: list[str]) -> None:
    """Refuse a checkpoint that lacks weights of the encoder itself.

    Raises:
        ConfigError: if ``missing`` names any.
    """
    if missing:
        raise ConfigError(
            f"encoder.source {source!r}: {len(missing)} encoder weights are not in the file, such "
            f"as {missing[0]}. The checkpoint is incomplete or of another architecture."
        )


def model_names(models: Sequence[str]) -> dict[str, str]:
    """Return models by a short name: the run's, or the last part of the path.

    A short name that is not unique is replaced by the whole path.
    """
    short_names = []
    for model in models:
        path = Path(model).absolute()
        short_names.append(path.parent.name if path.name == "export" else path.name)
    model_by_name = {}
    for name, model in zip(short_names, models, strict=True):
        is_unique = short_names.count(name) == 1
        model_by_name[name if is_unique else model] = model
    return model_by_name
