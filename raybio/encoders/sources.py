"""Files of an encoder's source: a folder, or a repository of the hub at one commit.

A branch or tag of the hub is resolved to its commit once a process, or by ``pin_commit``. So
configuration, tokenizer and weights are of one commit, on every worker and at every start of a run.
A folder in a bucket is fetched by the layers above, which name the copy by ``pin_folder``.
"""

import hashlib
import json
import logging
import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import (
    file_exists,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from raybio.core.cache import cache_folder
from raybio.core.digest import cached_file_digest
from raybio.core.errors import ConfigError
from raybio.core.files import check_local
from raybio.encoders.export_files import check_export_files

logger = logging.getLogger(__name__)

CONFIG = "config.json"

MODULES = "modules.json"
"""List of the modules of a sentence-transformers folder; the first one is the transformer."""

SAFETENSORS = "model.safetensors"
PICKLE = "pytorch_model.bin"
INDEX = ".index.json"
"""Suffix of the file that lists the parts of weights in several files."""

CONVERTED = "weights-1"
"""Folder of the cache for converted pickles; its number changes whenever a pickle would give other
files.
"""


GATED = (
    "its repository is gated. Accept its terms on its page of the hub, then set the environment "
    "variable HF_TOKEN to an access token of that account, or log in with `hf auth login`"
)
"""Reason why a gated hub id cannot be read: its files need an account that accepted its terms."""


class LocatedSource(NamedTuple):
    """A source that exists.

    Attributes:
        location: the folder, or the hub id.
        commit: commit of a hub id, 40 hex digits; None for a folder.
        is_online: whether the hub has answered; files that are not cached can be fetched.
    """

    location: str
    commit: str | None
    is_online: bool

    @property
    def revision(self) -> str:
        """The revision to load."""
        return self.commit or "main"


class WeightsFile(NamedTuple):
    """The weights of a source.

    Attributes:
        name: relative path of the file, or of the list of its parts.
        is_pickle: whether they have to be converted.
    """

    name: str
    is_pickle: bool

    @property
    def subfolder(self) -> str:
        """Folder of the transformer inside the source; "" for the source itself."""
        return self.name.rpartition("/")[0]


class _UnreachableError(Exception):
    """The hub cannot say whether a repository has a file; ``find_weights`` catches it."""


_source_by_name: dict[tuple[str, str], LocatedSource] = {}

_copy_by_address: dict[str, Path] = {}
"""Address of a source in a bucket -> this machine's copy of it."""


def pin_commit(source: str, revision: str, commit: str) -> None:
    """Make this process read a hub id at ``commit``, whatever ``revision`` is by now."""
    known = _source_by_name.get((source, revision))
    if known is None or known.commit != commit:
        _source_by_name[source, revision] = LocatedSource(source, commit, is_online=True)


def pin_folder(address: str, copy: Path) -> None:
    """Make this process read a source in a bucket from this machine's copy of it."""
    _copy_by_address[address] = copy


def is_pinned(address: str) -> bool:
    """Return whether this process reads a source in a bucket from a copy."""
    return address in _copy_by_address


def source_folder(source: str) -> Path:
    """Return the folder that a source is, or the copy of one in a bucket.

    For a hub id, it is the path of a folder that does not exist.
    """
    return _copy_by_address.get(source, Path(source)).expanduser()


def is_converted(source: str) -> bool:
    """Return whether a source is a folder of the cache, made from a pickle."""
    return source_folder(source).is_relative_to(cache_folder() / CONVERTED)


def find_source(source: str, revision: str) -> LocatedSource:
    """Return a source that exists; the hub is queried once a process.

    Raises:
        ConfigError: if there is no such folder, or the hub id is unknown or cannot be reached.
    """
    location = _folder_or_hub_id(source)
    if Path(location).is_dir():
        return LocatedSource(location, None, is_online=False)
    if (source, revision) not in _source_by_name:
        _source_by_name[source, revision] = _find_on_hub(source, revision)
    return _source_by_name[source, revision]


def _find_on_hub(source: str, revision: str) -> LocatedSource:
    reason = f"the hub has no {CONFIG} of it at revision {revision!r}"
    for name in (CONFIG, MODULES):
        is_online = True
        try:
            # Without a network, a download would retry for half a minute; this does not.
            get_hf_file_metadata(hf_hub_url(source, name, revision=revision))
        except GatedRepoError:  # a kind of RepositoryNotFoundError
            raise unloadable(source, GATED) from None
        except (EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError):
            continue
        except Exception as error:  # of any library that the hub's client uses
            is_online = False
            reason = f"the hub could not be reached ({error})"
        try:
            # By the name of the branch, so that the cache knows its commit without a network.
            path = hf_hub_download(source, name, revision=revision, local_files_only=not is_online)
        except LocalEntryNotFoundError:
            continue
        return LocatedSource(source, Path(path).parent.name, is_online)
    raise unloadable(source, reason)


def fetch_file(source: str, name: str, revision: str) -> Path | None:
    """Return the local path of a file of a folder or a hub id; None if it has no such file.

    Without a network, a file that is not cached counts as absent, with a warning.

    Raises:
        ConfigError: if the source cannot be found or reached.
    """
    at = find_source(source, revision)
    if at.commit is None:
        path = Path(at.location) / name
        return path if path.is_file() else None
    cached = try_to_load_from_cache(at.location, name, revision=at.commit)
    if isinstance(cached, str):
        return Path(cached)
    if cached is not None:  # known to be absent
        return None
    try:
        return Path(
            hf_hub_download(
                at.location, name, revision=at.commit, local_files_only=not at.is_online
            )
        )
    except LocalEntryNotFoundError:
        logger.warning(
            "the hub cannot be reached to look for %s of %s; taken as absent", name, source
        )
    except EntryNotFoundError:
        pass
    except Exception as error:  # of any library that the hub's client uses
        raise unloadable(source, f"{name} could not be fetched ({error})") from None
    return None


def require_file(source: str, name: str, revision: str) -> Path:
    """Return the local path of a file of a folder or a hub id.

    Raises:
        ConfigError: if the file or the source cannot be found, or the source cannot be reached; it
            says what to do.
    """
    path = fetch_file(source, name, revision)
    if path is None:
        raise unloadable(source, f"there is no {name} in it")
    return path


def find_weights(source: str, revision: str) -> WeightsFile:
    """Return where the weights of a source are, without fetching large files.

    The weights of a folder with ``export_files.json`` are compared with it.

    Raises:
        ConfigError: if the weights are missing or damaged, or the source cannot be found or
            reached.
    """
    at = find_source(source, revision)
    if at.commit is None:
        check_export_files(Path(at.location))
    subfolder = _transformer_folder(source, revision)
    unreachable = ""
    for name in (SAFETENSORS, SAFETENSORS + INDEX, PICKLE, PICKLE + INDEX):
        path = posixpath.join(subfolder, name)
        try:
            if _has_file(source, path, revision):
                return WeightsFile(path, is_pickle=name.startswith(PICKLE))
        except _UnreachableError as error:
            # Weights of another kind may be cached.
            unreachable = str(error)
    if unreachable:
        raise unloadable(source, f"the hub could not be reached ({unreachable})")
    where = f" in its folder {subfolder}" if subfolder else ""
    raise unloadable(source, f"it has no weights: no {SAFETENSORS} and no {PICKLE}{where}")


def _transformer_folder(source: str, revision: str) -> str:
    """Return the folder with the weights; for sentence-transformers, that of the first module."""
    path = fetch_file(source, MODULES, revision)
    if path is None:
        return ""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))[0].get("path", "")).strip("/")
    except (OSError, ValueError, LookupError, AttributeError, RecursionError):
        return ""  # ``read_sentence_folder`` refuses it, and says why


def _has_file(source: str, name: str, revision: str) -> bool:
    at = find_source(source, revision)
    if at.commit is None:
        return (Path(at.location) / name).is_file()
    cached = try_to_load_from_cache(at.location, name, revision=at.commit)
    if cached is not None or not at.is_online:
        return isinstance(cached, str)
    try:
        return file_exists(at.location, name, revision=at.commit)
    except Exception as error:  # of any library that the hub's client uses
        raise _UnreachableError(str(error)) from None


def weights_files(source: str, revision: str) -> list[str]:
    """Return the names of all files of a source's weights, fetching the list of parts only.

    Raises:
        ConfigError: as ``find_weights``, or if the list of parts cannot be read.
    """
    name = find_weights(source, revision).name
    if not name.endswith(INDEX):
        return [name]
    path = require_file(source, name, revision)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        parts = {str(part) for part in content["weight_map"].values()}
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise unloadable(source, f"{name} cannot be read ({error})") from None
    folder = name.rpartition("/")[0]
    if any("/" in part or part.startswith(".") for part in parts):
        raise unloadable(source, f"{name} names parts outside its folder")
    return sorted(posixpath.join(folder, part) for part in parts)


def source_record(source: str, revision: str) -> dict[str, str]:
    """Return what identifies the weights of a source: its commit, or their digest for a folder.

    Raises:
        ConfigError: if the source or its weights cannot be found or reached.
    """
    record = {
        "source": source,
        "revision": revision,
        "weights": find_weights(source, revision).name,
    }
    commit = find_source(source, revision).commit
    if commit is not None:
        return record | {"commit": commit}
    return record | {"sha256": sha256_of_weights(source, revision)}


def weights_of_models(source_by_name: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return what identifies the weights of models in a report, by name.

    It does not contain the source, which may be the folder of a local copy.

    Raises:
        ConfigError: as ``source_record``.
    """
    weights = {}
    for name, source in source_by_name.items():
        record = source_record(source, "main")
        del record["source"]
        weights[name] = record
    return weights


def sha256_of_weights(source: str, revision: str) -> str:
    """Return 64 hex digits of the weights of a folder.

    Raises:
        ConfigError: if a file of the weights is missing.
    """
    digests = [
        cached_file_digest(require_file(source, name, revision).resolve())
        for name in weights_files(source, revision)
    ]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _folder_or_hub_id(source: str) -> str:
    if not is_pinned(source):
        check_local(source, "encoder.source")
    folder = source_folder(source)
    if folder.is_dir():
        return str(folder)
    try:
        validate_repo_id(source)
    except HFValidationError:
        raise ConfigError(
            f"encoder.source {source!r}: no such folder. Give an existing one, 'scratch' or a hub "
            "id."
        ) from None
    return source


def unloadable(source: str, reason: str) -> ConfigError:
    """Return the error that says why a source cannot be loaded, and what to do."""
    if is_converted(source):
        advice = "The cache has it from pickled weights: remove that folder, and it is made again."
    elif source_folder(source).is_dir():
        advice = (
            "The folder must be one that save_pretrained writes, or a copy of a hub repository: "
            f"config.json, {SAFETENSORS} or {PICKLE}, and the tokenizer."
        )
    else:
        advice = (
            "If it is meant to be a folder, there is none of that name here. If this machine has "
            f"no network, fetch it elsewhere with `hf download {source} --local-dir FOLDER` and "
            "set encoder.source=FOLDER, or copy a filled hub cache here and set HF_HUB_OFFLINE=1."
        )
    return ConfigError(
        f"encoder.source {source!r} cannot be loaded: {' '.join(reason.split())[:300]}. {advice}"
    )
