"""Where encoders come from: a folder or a hub id, and one error that says why neither loads."""

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
    """``auto.from_pretrained`` (such as ``AutoModel``'s) of a folder or a hub id, never with code that comes along.

    Raises:
        ConfigError: if the source cannot be found, reached or read; it says what to do.
    """
    place = _place(source)
    try:
        return auto.from_pretrained(place, revision=revision, trust_remote_code=False, **options)
    except (OSError, ValueError, ImportError) as error:
        reason = str(error)
    raise _unloadable(source, reason)


def load_weights(
    auto: Any, source: str, revision: str, **options: Any
) -> tuple[PreTrainedModel, list[str]]:
    """A model in float32 with the weights of a folder or hub id, and the names of those that are not in the file.

    What is in the file and not in the model, such as another task's head, is passed over without a
    word.

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
            ignore_mismatched_sizes=True,  # refused below, in our words
            **options,
        )
    if mismatched := sorted(report["mismatched_keys"]):
        name, found, wanted = mismatched[0]
        raise _unloadable(
            source,
            f"{name} has shape {tuple(found)} in the file, and config.json wants {tuple(wanted)}",
        )
    return model, sorted(report["missing_keys"])


@contextmanager
def _without_load_report() -> Iterator[None]:
    """Keep back transformers' bar, and its table of weights left out or missing, which its caller judges."""
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
    """Refuse a source that is not there, before anything is loaded or started; the hub is asked once and not again.

    Raises:
        ConfigError: if a folder lacks config.json or safetensors, or a hub id is unknown or cannot
            be reached.
    """
    if source == SCRATCH:
        return
    place = Path(_place(source))
    if place.is_dir():
        for pattern in ("config.json", "*.safetensors"):
            # A sentence-transformers folder may have its transformer one level down.
            if not [*place.glob(pattern), *place.glob(f"*/{pattern}")]:
                raise _unloadable(source, f"there is no {pattern} in it")
        return
    names = ("config.json", "modules.json")
    if any(
        isinstance(try_to_load_from_cache(source, name, revision=revision), str) for name in names
    ):
        return
    reason = f"the hub has no {names[0]} of it at revision {revision!r}"
    try:
        # Loading would try again for half a minute where there is no network; this does not.
        if any(file_exists(source, name, revision=revision) for name in names):
            return
    except Exception as error:  # of whatever library the hub's client stands on
        reason = f"the hub could not be asked ({error})"
    raise _unloadable(source, reason)


def fetch_file(source: str, name: str, revision: str) -> Path | None:
    """The local path of file ``name`` of a folder or a hub id, or None if it has no such file.

    A file that a machine without network has not cached counts as absent, with a warning.

    Raises:
        ConfigError: if the source cannot be found or reached.
    """
    place = _place(source)
    absent_is_none = {
        "_raise_exceptions_for_missing_entries": False,
        "_raise_exceptions_for_connection_errors": False,
    }
    try:
        found = cached_file(place, name, revision=revision, **absent_is_none)
    except (OSError, ValueError) as error:
        reason = str(error)
    else:
        if (
            found is None
            and not Path(place).is_dir()
            and try_to_load_from_cache(place, name, revision=revision) is None
        ):
            logger.warning(
                "the hub cannot be asked whether %s has %s; taken as not there", source, name
            )
        return None if found is None else Path(found)
    raise _unloadable(source, reason)


def require_file(source: str, name: str, revision: str) -> Path:
    """The local path of file ``name`` of a folder or a hub id.

    Raises:
        ConfigError: if there is none, or the source cannot be found or reached; it says what to do.
    """
    path = fetch_file(source, name, revision)
    if path is None:
        raise _unloadable(source, f"there is no {name} in it")
    return path


def _place(source: str) -> str:
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
    if Path(source).expanduser().is_dir():
        advice = "The folder must be one that save_pretrained writes: config.json, model.safetensors and the tokenizer."
        if (Path(source).expanduser() / "pytorch_model.bin").exists():
            advice = (
                "Its weights are a pickle, which is not loaded; convert it once: python -m "
                f"raybio.encoders.bin_checkpoint {source} OUTPUT_FOLDER"
            )
    else:
        advice = (
            "If it is meant to be a folder, there is none of that name here. If this machine has "
            f"no network, fetch it elsewhere with `hf download {source} --local-dir FOLDER` and "
            "set encoder.source=FOLDER, or copy a filled hub cache here and set HF_HUB_OFFLINE=1. "
            "If it is there as pytorch_model.bin alone, convert that folder with `python -m "
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
    """Models by a short name: a run's or the last part of the path, or the whole where that is not unique."""
    places = [Path(model).absolute() for model in models]
    short = [place.parent.name if place.name == "export" else place.name for place in places]
    return {
        name if short.count(name) == 1 else model: model
        for name, model in zip(short, models, strict=True)
    }
