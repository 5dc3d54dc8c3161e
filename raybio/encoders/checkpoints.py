"""Models and tokenizers of a source: a folder or a hub id, without foreign code."""

import inspect
import json
import logging
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers.normalizers import BertNormalizer
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils.logging import (
    disable_progress_bar,
    enable_progress_bar,
    is_progress_bar_enabled,
)

from raybio.core.errors import ConfigError
from raybio.encoders.bin_checkpoint import converted_weights
from raybio.encoders.config import SCRATCH
from raybio.encoders.sources import (
    CONFIG,
    fetch_file,
    find_source,
    find_weights,
    require_file,
    unloadable,
)
from raybio.encoders.weight_shapes import weight_shapes

_log = logging.getLogger(__name__)

WeightsReader = Callable[..., tuple[PreTrainedModel, list[str]]]
"""``load_weights`` or ``check_weights``."""

_MAX_CASED_SHARE = 0.01
"""Share of pieces with upper-case letters that an uncased vocabulary may have.

BERT's cased vocabulary has about a third, its uncased one has none.
"""


def load_pretrained(auto: Any, source: str, revision: str, **options: Any) -> Any:
    """Call ``auto.from_pretrained`` (such as ``AutoModel``'s) on a source, without foreign code.

    Raises:
        ConfigError: if the source cannot be found, reached or read; it says what to do.
    """
    at = find_source(source, revision)
    if auto in (AutoConfig, AutoTokenizer):
        config = _untyped_config(source, revision, options.get("subfolder", ""))
        if config is not None and auto is AutoConfig:
            return config
        if config is not None:
            options["config"] = config
    loaded = _from_pretrained(auto, source, at.location, revision=at.revision, **options)
    if auto is AutoTokenizer and _is_lowercased_by_default(
        loaded, source, revision, options.get("subfolder", "")
    ):
        _log.warning(
            "%s: its files do not say do_lower_case, and its vocabulary is cased, so the case of "
            "texts is kept",
            source,
        )
        options["do_lower_case"] = False
        loaded = _from_pretrained(auto, source, at.location, revision=at.revision, **options)
    return loaded


def _is_lowercased_by_default(tokenizer: Any, source: str, revision: str, subfolder: str) -> bool:
    """Return whether a tokenizer with a cased vocabulary lowercases although no file says so.

    ClinicalBERT and other cased checkpoints of 2019 have a vocab.txt only, and transformers
    lowercases by default.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    normalizer = None if backend is None else backend.normalizer
    if not (isinstance(normalizer, BertNormalizer) and normalizer.lowercase):
        return False
    pieces = tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens)
    num_cased = sum(piece != piece.lower() for piece in pieces)
    if num_cased <= _MAX_CASED_SHARE * len(pieces):
        return False
    if fetch_file(source, posixpath.join(subfolder, "tokenizer.json"), revision):
        return False
    path = fetch_file(source, posixpath.join(subfolder, "tokenizer_config.json"), revision)
    return path is None or "do_lower_case" not in json.loads(path.read_text(encoding="utf-8"))


def _untyped_config(source: str, revision: str, subfolder: str) -> PreTrainedConfig | None:
    """Return the settings of a source whose config.json does not name its type; None if it does.

    BlueBERT and other checkpoints of 2019 have the settings of BERT's first release, which
    transformers 5 refuses.
    """
    path = fetch_file(source, posixpath.join(subfolder, CONFIG), revision)
    try:
        description = json.loads(path.read_text(encoding="utf-8")) if path else None
    except (OSError, ValueError, RecursionError):
        return None  # ``from_pretrained`` says what is wrong with it
    if not isinstance(description, dict) or "model_type" in description:
        return None
    if not {"hidden_size", "num_attention_heads", "type_vocab_size"} <= description.keys():
        return None
    with _named_errors(source):
        config: PreTrainedConfig = CONFIG_MAPPING[_guessed_type(description)].from_dict(description)
    return config


def _guessed_type(description: Mapping[str, Any]) -> str:
    """Return the type of a model of BERT's family, by its class or else by its settings.

    A wrong guess is refused when the weights are loaded: their names begin with the type.
    """
    for architecture in description.get("architectures") or []:
        for model_type in ("bert", "roberta", "electra"):
            if str(architecture).lower().startswith(model_type):
                return model_type
    if "embedding_size" in description:
        return "electra"
    return "roberta" if description["type_vocab_size"] == 1 else "bert"


def _from_pretrained(auto: Any, source: str, location: str | Path | None, **options: Any) -> Any:
    with _named_errors(source):
        return auto.from_pretrained(location, trust_remote_code=False, **options)


@contextmanager
def _named_errors(source: str) -> Iterator[None]:
    """Turn errors of transformers into one that names the source; damaged files raise any kind.

    Raises:
        ConfigError: for any error in the block except a lack of memory.
    """
    try:
        yield
    except (OSError, ValueError, ImportError) as error:
        raise unloadable(source, str(error)) from None
    except (MemoryError, torch.OutOfMemoryError):
        raise  # says nothing about the source
    except Exception as error:
        raise unloadable(source, f"{type(error).__name__}: {error}") from error


def load_weights(
    auto: Any, source: str, revision: str, **options: Any
) -> tuple[PreTrainedModel, list[str]]:
    """Return a model in float32 with the weights of a source, and the names of missing weights.

    Pickled weights are converted first, see ``bin_checkpoint``. Weights of the file that the model
    does not have, such as another task's head, are skipped silently.

    Raises:
        ConfigError: as ``load_pretrained``, or if a weight has another shape than config.json says.
    """
    at = find_source(source, revision)
    location: str | Path = at.location
    if "config" not in options:
        inside = {"subfolder": options.get("subfolder", "")}
        options["config"] = load_pretrained(AutoConfig, source, revision, **inside)
    options["revision"] = at.revision
    if find_weights(source, revision).is_pickle:
        location = converted_weights(source, revision)
        options |= {"subfolder": "", "revision": "main"}
    with _without_load_report():
        model, report = _from_pretrained(
            auto,
            source,
            location,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, with our message
            **options,
        )
    _refuse_other_shapes(source, report)
    return model, sorted(report["missing_keys"])


def check_weights(
    auto: Any, source: str, revision: str, **options: Any
) -> tuple[PreTrainedModel, list[str]]:
    """Return the same as ``load_weights``, but with zeros for weights; read only their headers.

    All zeros of a weight share one element of memory, so a model of any size needs almost none.

    Raises:
        ConfigError: as ``load_weights``.
    """
    subfolder = options.pop("subfolder", "")
    config = options.pop("config", None)
    if config is None:
        config = load_pretrained(AutoConfig, source, revision, subfolder=subfolder)
    zeros = {
        name: torch.zeros(()).expand(shape)
        for name, shape in weight_shapes(source, revision).items()
    }
    # Missing weights are drawn at random; this must not change later draws.
    with _without_load_report(), torch.random.fork_rng(devices=[]):
        model, report = _from_pretrained(
            _model_class(auto, source, config),
            source,
            None,
            config=config,
            state_dict=zeros,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **options,
        )
    _refuse_other_shapes(source, report)
    return model, sorted(report["missing_keys"])


def _model_class(auto: Any, source: str, config: PreTrainedConfig) -> Any:
    """Return the class that ``auto`` (such as ``AutoModel``) has for these settings."""
    if inspect.isclass(auto) and issubclass(auto, PreTrainedModel):
        return auto
    with _named_errors(source), torch.device("meta"):
        return type(auto.from_config(config, trust_remote_code=False))


def _refuse_other_shapes(source: str, report: Mapping[str, Any]) -> None:
    if mismatched := sorted(report["mismatched_keys"]):
        name, file_shape, config_shape = mismatched[0]
        raise unloadable(
            source,
            f"{name} has shape {tuple(file_shape)} in the file, and config.json wants "
            f"{tuple(config_shape)}",
        )


@contextmanager
def _without_load_report() -> Iterator[None]:
    """Hide transformers' progress bar and report of missing weights, which the caller checks."""
    log = logging.getLogger("transformers.modeling_utils")

    def is_no_report(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return "LOAD REPORT" not in message and "tied weights mapping" not in message

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
    """Check that a source has readable weights, before anything is loaded.

    Pickled weights are fetched and converted; of safetensors on the hub, only the headers are
    fetched. ``check_weights`` compares their shapes with the settings.

    Raises:
        ConfigError: if a folder or hub id lacks config.json or weights, its weights are damaged or
            more than tensors, or the hub id is unknown or cannot be reached.
    """
    if source == SCRATCH:
        return
    weights = find_weights(source, revision)
    require_file(source, posixpath.join(weights.subfolder, CONFIG), revision)
    weight_shapes(source, revision)


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
