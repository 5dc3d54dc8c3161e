"""Folders (or hub repositories) in the layout of sentence-transformers 2 to 6: reading and writing.

``modules.json`` lists a Transformer, a Pooling and perhaps a Normalize. Any other module would be
skipped silently, and is therefore refused by name.
"""

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from raybio.core.errors import ConfigError
from raybio.encoders.config import Pooling
from raybio.encoders.sources import fetch_file

WORD_WEIGHTS = "WordWeights"
"""Module that weights tokens; exports of protein encoders use it to exclude special tokens."""

_POOLING_BY_FLAG = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}

_TRANSFORMER_FILES = ["sentence_bert_config.json"] + [
    f"sentence_{name}_config.json"
    for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]

# Settings of a Transformer that do not change what is computed from the same weights; a value of
# None allows any.
_SUPPORTED = {
    "max_seq_length": None,
    "do_lower_case": None,
    "unpad_inputs": None,
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
}

_READ_TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}


@dataclass(frozen=True)
class SentenceFolder:
    """Settings by which a sentence-transformers folder turns texts into embeddings.

    Attributes:
        subfolder: the folder in it with transformer and tokenizer, "" for the folder itself.
        pooling: "mean" over all real tokens or "cls"; None where only the transformer was read.
        is_normalized: whether embeddings are scaled to length 1.
        max_tokens: maximum tokens of a text, special ones included; None: the tokenizer's own
            limit.
        lowercase: whether texts are lowercased before the tokenizer sees them.
    """

    subfolder: str
    pooling: Pooling | None
    is_normalized: bool
    max_tokens: int | None
    lowercase: bool


def read_sentence_folder(
    source: str, revision: str, *, with_head: bool = True
) -> SentenceFolder | None:
    """Read a sentence-transformers folder or hub id; None if it is of another kind.

    Args:
        source: a folder or hub id.
        revision: of a hub id.
        with_head: read pooling and normalization too, and refuse other modules.

    Raises:
        ConfigError: if the source cannot be reached, its files are malformed, or a module is not
            supported.
    """
    reader = _Reader(source, revision)
    modules = reader.json("modules.json")
    if modules is None:
        return None
    kinds = [""]
    if isinstance(modules, list) and modules:
        kinds = [reader.kind(module) for module in modules]
    if kinds[0] != "Transformer":
        raise reader.refusal(
            f"modules.json begins with {kinds[0] or 'nothing':.80}; want a Transformer"
        )
    subfolder = reader.path(modules[0])
    settings = reader.transformer(subfolder)
    pooling: Pooling | None = None
    if with_head:
        if WORD_WEIGHTS in kinds:
            raise ConfigError(
                f"encoder.source {source!r}: modules.json weights tokens ({WORD_WEIGHTS}), as in "
                "exports of protein encoders; want an encoder of texts"
            )
        foreign = [kind for kind in kinds[1:] if kind not in ("Pooling", "Normalize")]
        if foreign or kinds[1:] not in (["Pooling"], ["Pooling", "Normalize"]):
            raise reader.refusal(
                f"modules.json lists {', '.join(kinds):.200}; "
                f"{foreign[0] if foreign else 'this order':.80} "
                "is not supported, want Transformer, Pooling and perhaps Normalize"
            )
        reader.check_prompt_and_kind()
        pooling = reader.pooling(reader.path(modules[1]))
        if len(kinds) == 3:
            reader.check_normalize(reader.path(modules[2]))
    return SentenceFolder(
        subfolder,
        pooling,
        is_normalized=with_head and len(kinds) == 3,
        max_tokens=settings.get("max_seq_length"),
        lowercase=bool(settings.get("do_lower_case", False)),
    )


def write_sentence_files(
    folder: Path,
    *,
    width: int,
    pooling: Pooling,
    max_tokens: int,
    is_normalized: bool = False,
    weight_by_token: Mapping[str, float] | None = None,
) -> None:
    """Write the files by which ``SentenceTransformer(folder)`` pools as this package does.

    The folder holds a model and its tokenizer already.

    Args:
        folder: the folder.
        width: of an embedding.
        pooling: of the encoder.
        max_tokens: of an input, special ones included.
        is_normalized: whether embeddings are scaled to length 1.
        weight_by_token: weight of each token id in the mean over tokens; None: all real tokens
            weigh the same.
    """
    kinds = ["Transformer"]
    if weight_by_token is not None:
        kinds.append(WORD_WEIGHTS)
    kinds.append("Pooling")
    if is_normalized:
        kinds.append("Normalize")
    paths = ["", *(f"{number}_{kind}" for number, kind in enumerate(kinds[1:], start=1))]
    pooling_path = paths[kinds.index("Pooling")]
    # Names that all versions of sentence_transformers from 2 to 6 know.
    files: dict[str, Any] = {
        "modules.json": [
            {
                "idx": number,
                "name": str(number),
                "path": path,
                "type": f"sentence_transformers.models.{kind}",
            }
            for number, (kind, path) in enumerate(zip(kinds, paths, strict=False))
        ],
        f"{pooling_path}/config.json": {
            "word_embedding_dimension": width,
            "pooling_mode_cls_token": pooling == "cls",
            "pooling_mode_mean_tokens": pooling == "mean",
        },
        "sentence_bert_config.json": {"max_seq_length": max_tokens, "do_lower_case": False},
    }
    if weight_by_token is not None:
        files[f"{paths[1]}/config.json"] = {
            "vocab": list(weight_by_token),
            "word_weights": dict(weight_by_token),
            "unknown_word_weight": 1.0,
        }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class _Reader:
    """Reads and checks the files of one source."""

    source: str
    revision: str

    def refusal(self, reason: str) -> ConfigError:
        """Return the error for something that is not supported."""
        return ConfigError(
            f"encoder.source {self.source!r}: {reason}. Choose another source. A training takes "
            "its transformer only, with encoder.pooling and encoder.normalize set."
        )

    def json(self, name: str) -> Any:
        """Return the content of a JSON file; None if it does not exist."""
        path = fetch_file(self.source, name, self.revision)
        if path is None:
            return None
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"encoder.source {self.source!r}: {name} is not valid JSON ({error})"
            ) from None

    def mapping(self, name: str) -> dict[str, Any]:
        """Return the content of a JSON file with a mapping; empty if it does not exist."""
        content = self.json(name)
        if content is not None and not isinstance(content, dict):
            raise ConfigError(
                f"encoder.source {self.source!r}: {name} holds a {type(content).__name__}, want a "
                "mapping"
            )
        return content or {}

    def kind(self, module: Any) -> str:
        """Return the class name of a stock module, or the whole dotted name of foreign code."""
        kind = module.get("type") if isinstance(module, dict) else None
        if not isinstance(kind, str):
            raise ConfigError(
                f"encoder.source {self.source!r}: modules.json has {module!r:.80} without a type"
            )
        if module.get("kwargs"):
            raise self.refusal(
                f"modules.json gives {kind:.80} the arguments {module['kwargs']!r:.80}, which are "
                "not supported"
            )
        return kind.rpartition(".")[2] if kind.startswith("sentence_transformers.") else kind

    def path(self, module: dict[str, Any]) -> str:
        """Return a module's folder inside the source."""
        path = module.get("path", "")
        if (
            not isinstance(path, str)
            or PurePosixPath(path).is_absolute()
            or ".." in PurePosixPath(path).parts
        ):
            raise ConfigError(
                f"encoder.source {self.source!r}: modules.json names the path {path!r:.80}, want "
                "one inside"
            )
        return path

    def transformer(self, subfolder: str) -> dict[str, Any]:
        """Return the settings of the Transformer, such as max_seq_length and do_lower_case."""
        for name in _TRANSFORMER_FILES:
            settings = self.mapping(posixpath.join(subfolder, name))
            if settings:
                break
        for key, value in settings.items():
            if not value or (key in _SUPPORTED and _SUPPORTED[key] in (None, value)):
                continue
            # Messages and images may be read in other ways; only texts are read here.
            if (
                key == "modality_config"
                and isinstance(value, dict)
                and value.get("text") == _READ_TEXT
            ):
                continue
            raise self.refusal(
                f"its Transformer has {key:.80} {value!r:.80}, which is not supported"
            )
        max_tokens = settings.get("max_seq_length")
        if max_tokens is not None and (not isinstance(max_tokens, int) or max_tokens < 1):
            raise ConfigError(
                f"encoder.source {self.source!r}: max_seq_length is {max_tokens!r:.80}, want a "
                "number above 0"
            )
        return settings

    def pooling(self, path: str) -> Pooling:
        """Return the pooling of the Pooling module in ``path``."""
        settings = self.mapping(posixpath.join(path, "config.json"))
        modes = settings.get("pooling_mode")
        if modes is None:
            modes = [
                mode for flag, mode in _POOLING_BY_FLAG.items() if settings.get(flag)
            ] or "mean"
        modes = modes if isinstance(modes, list) else [modes]
        if modes == ["mean"]:
            return "mean"
        if modes == ["cls"]:
            return "cls"
        raise self.refusal(f"its Pooling is {' + '.join(map(str, modes)):.80}; want mean or cls")

    def check_normalize(self, path: str) -> None:
        """Refuse a Normalize module that scales anything but embeddings."""
        for key, value in self.mapping(posixpath.join(path, "config.json")).items():
            if value != "sentence_embedding":
                raise self.refusal(
                    f"its Normalize has {key:.80} {value!r:.80}; want sentence_embedding"
                )

    def check_prompt_and_kind(self) -> None:
        """Refuse a source of another kind, or one that puts a prompt before every text."""
        settings = self.mapping("config_sentence_transformers.json")
        kind = settings.get("model_type", "SentenceTransformer")
        if kind != "SentenceTransformer":
            raise self.refusal(f"it is a {str(kind):.80}; want a SentenceTransformer")
        name = settings.get("default_prompt_name")
        prompts = settings.get("prompts")
        prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else None
        if prompt:
            raise self.refusal(
                f"it puts the prompt {prompt!r:.80} before every text, which is not supported"
            )
