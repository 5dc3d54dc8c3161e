"""Whole models on the Hugging Face hub: fetched, and pushed."""

import re
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    constants,
    get_token,
    snapshot_download,
)
from huggingface_hub.errors import (
    GatedRepoError,
    HFValidationError,
    LocalEntryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import validate_repo_id

from raybio.core.errors import ConfigError, one_line
from raybio.core.version import VERSION
from raybio.encoders.export_files import check_export_files
from raybio.encoders.model_card import CARD, LICENSE_KEYS, TAG, Card, license_sentence
from raybio.encoders.sources import CONFIG, GATED

OTHER_WEIGHTS = ["*.bin", "*.bin.index.json", "*.h5", "*.msgpack", "*.ot", "*.onnx", "*.gguf"]
"""Files that are not fetched where a model has safetensors."""

PICKLED_WEIGHTS = "pytorch_model*.bin*"
"""Fetched only where a model has no safetensors."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)

_COMMIT = re.compile(r"[0-9a-f]{40}")

_OF_THE_HUB = (".gitattributes",)
"""Files that the hub itself puts into a new repository."""


class Pushed(NamedTuple):
    """What a push has written.

    Attributes:
        url: address of the commit.
        commit: 40 hex digits.
        num_files: files of the model.
        deleted: files of an earlier model in the repository that this one does not have.
    """

    url: str
    commit: str
    num_files: int
    deleted: list[str]


def fetch_model(source: str, commit: str | None = None) -> Path:
    """Return the local copy of a model of the hub.

    Without a network, the cached copy is returned.

    Args:
        source: hub id, ``OWNER/NAME``.
        commit: the commit to fetch; None: the newest one.

    Raises:
        ConfigError: if it is not a model of the hub, or cannot be fetched.
    """
    if not _HUB_ID.fullmatch(source):
        raise ConfigError(f"{source}: no such folder; want a run, a model's folder, or a hub id")
    try:
        folder = Path(snapshot_download(source, revision=commit, ignore_patterns=OTHER_WEIGHTS))
        # A sentence encoder has its transformer here or in its first module.
        if not any(folder.glob("*.safetensors")) and not any(folder.glob("0_*/*.safetensors")):
            pickled = [PICKLED_WEIGHTS, f"0_*/{PICKLED_WEIGHTS}"]
            snapshot_download(source, revision=folder.name, allow_patterns=pickled)
        return folder
    except GatedRepoError:
        reason = GATED
    except LocalEntryNotFoundError as error:
        cause = one_line(error.__cause__ or error)
        reason = f"it does not answer ({cause}), and the cache of this machine lacks the model"
    except Exception as error:  # of any library that the hub's client uses
        reason = _with_cause(error)
    raise ConfigError(
        f"{source}: there is no such folder, and it cannot be fetched from the hub: {reason}"
    )


def commit_of(folder: Path) -> str | None:
    """Return the commit of a folder of ``fetch_model``; None for any other folder."""
    is_commit = folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name)
    return folder.name if is_commit else None


def push_folder(
    folder: str | Path,
    repository: str,
    *,
    is_private: bool = False,
    revision: str = "main",
    license_id: str | None = None,
) -> Pushed:
    """Push an export to a repository of the hub, which is created if it does not exist.

    One commit replaces all files of the repository. The code in the pushed card loads the model
    from the hub. The token is that of ``HF_TOKEN`` or of ``hf auth login``.

    Args:
        folder: an ``export/``; it is not changed.
        repository: ``OWNER/NAME``.
        is_private: create a private repository.
        revision: branch, created if it does not exist.
        license_id: license of the card, as the hub names it, such as ``apache-2.0``.

    Raises:
        ConfigError: if the folder is no export of raybio, there is no token, it may not write, the
            repository holds something else or is public though a private one is wanted, or the hub
            refuses the card or does not answer.
    """
    path = Path(folder)
    card = _card_of(path)
    check_export_files(path)
    _check_repository(repository)
    contents: dict[str, Path | bytes] = {}
    for file in path.rglob("*"):
        relative = file.relative_to(path)
        # Downloads and file managers add hidden files, some of which the hub refuses.
        if file.is_file() and not any(part.startswith(".") for part in relative.parts):
            contents[relative.as_posix()] = file
    contents[CARD] = str(published_card(card, repository, license_id)).encode()
    token = ""
    try:
        token = get_token() or ""
        if not token:
            raise ConfigError(
                "raybio push: there is no token. Set HF_TOKEN to an access token with write "
                "permission, or log in with `hf auth login`"
            )
        api = HfApi(token=token, library_name="raybio", library_version=VERSION)
        return _push(api, contents, repository, revision, is_private=is_private)
    except ConfigError:
        raise
    except Exception as error:  # of any library that the hub's client uses
        reason = _refusal(error, repository)
    if token:
        reason = reason.replace(token, "***")
    raise ConfigError(f"raybio push: {reason}")


def published_card(card: Card, repository: str, license_id: str | None) -> Card:
    """Return the card of an export as the hub shows it: with the repository's name in its code."""
    body = re.sub(r'\("\."(?=[,)])', f'("{repository}"', card.body)
    body = body.replace("  # the path of this folder", "")
    body = body.replace("raybio predict . ", f"raybio predict {repository} ")
    body = body.replace("--init .", f"--init {repository}")
    metadata = card.metadata
    if license_id is not None:
        metadata = {key: value for key, value in metadata.items() if key not in LICENSE_KEYS}
        metadata = {"license": license_id, **metadata}
        body = body.replace(license_sentence(card.metadata), license_sentence(metadata))
    return Card(metadata, body)


def _push(
    api: HfApi,
    contents: dict[str, Path | bytes],
    repository: str,
    revision: str,
    *,
    is_private: bool,
) -> Pushed:
    api.create_repo(repository, private=True if is_private else None, exist_ok=True)
    try:
        state = api.model_info(repository, revision=revision)
    except RevisionNotFoundError:
        state = api.model_info(repository)  # a new branch begins with the files of main
    if is_private and not state.private:
        raise ConfigError(
            f"raybio push: {repository} exists and is public, and --private wants a private one. "
            "Nothing was pushed. Change its visibility on the hub, or choose another repository"
        )
    theirs = {file.rfilename for file in state.siblings or ()} - {*_OF_THE_HUB}
    if theirs and not _is_export(api, repository, state.sha, theirs):
        raise ConfigError(
            f"raybio push: {repository} holds something else than a model of raybio (its {CARD} "
            f"lacks the tag {TAG}), and a push replaces all of it. Choose another repository"
        )
    deleted = sorted(theirs - contents.keys())
    operations: list[CommitOperationAdd | CommitOperationDelete] = [
        CommitOperationAdd(name, content) for name, content in sorted(contents.items())
    ]
    operations += [CommitOperationDelete(name) for name in deleted]
    # Only now, so that a push that is refused leaves no branch.
    if revision != "main":
        api.create_branch(repository, branch=revision, revision=state.sha, exist_ok=True)
    commit = api.create_commit(
        repository,
        operations,
        commit_message=f"Model of raybio {VERSION}",
        revision=revision,
        parent_commit=state.sha,
    )
    return Pushed(commit.commit_url, commit.oid, len(contents), deleted)


def _is_export(api: HfApi, repository: str, commit: str | None, files: set[str]) -> bool:
    if CARD not in files:
        return False
    path = Path(api.hf_hub_download(repository, CARD, revision=commit))
    try:
        return TAG in (Card.parse(path.read_text(encoding="utf-8")).metadata.get("tags") or ())
    except (ConfigError, UnicodeDecodeError):
        return False


def _card_of(folder: Path) -> Card:
    """Return the card of an export.

    Raises:
        ConfigError: if the folder is no export of raybio.
    """
    wanted = "want a finished run, or its export/"
    if not folder.is_dir():
        raise ConfigError(f"raybio push: {folder}: no such folder; {wanted}")
    missing = [name for name in (CARD, CONFIG) if not (folder / name).is_file()]
    if not [*folder.glob("*.safetensors")]:
        missing.append("*.safetensors")
    if missing:
        raise ConfigError(
            f"raybio push: {folder} is no export of raybio, it has no {' and no '.join(missing)}; "
            f"{wanted}"
        )
    try:
        card = Card.parse((folder / CARD).read_text(encoding="utf-8"))
    except (ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"raybio push: {folder / CARD}: {error}") from None
    if TAG not in (card.metadata.get("tags") or ()):
        raise ConfigError(
            f"raybio push: {folder} is no export of raybio, its {CARD} lacks the tag {TAG}; "
            f"{wanted}. Other folders are pushed by `hf upload`"
        )
    return card


def _check_repository(repository: str) -> None:
    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise ConfigError(f"raybio push: REPO {repository!r}: {_with_cause(error)}") from None
    if "/" not in repository:
        raise ConfigError(f"raybio push: REPO: got {repository!r}, want OWNER/NAME")


def _refusal(error: Exception, repository: str) -> str:
    """Return why the hub did not take a model, and what to do."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        return (
            f"the hub at {constants.ENDPOINT} does not accept the token. Set HF_TOKEN to a valid "
            "access token with write permission, or log in with `hf auth login`"
        )
    if status in (403, 404):
        return (
            f"the token may not write to {repository}. Want a token with write permission of an "
            "account that may, or another OWNER/NAME"
        )
    if isinstance(error, ValueError) and "Invalid metadata" in str(error):
        return f"the hub refuses the header of the card: {_with_cause(error)}"
    return f"{constants.ENDPOINT} did not take {repository}: {_with_cause(error)}"


def _with_cause(error: BaseException) -> str:
    text = one_line(error)
    cause = "" if error.__cause__ is None else _with_cause(error.__cause__)
    return text if cause in text or text in cause else f"{text} ({cause})"
