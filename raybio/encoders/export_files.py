"""The digests of an export's weights: written with them, and compared before they are read.

``export_files.json`` names each file of weights with its sha256. Exports of earlier commits and
folders of other programs have none, and are read without it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from raybio.core.digest import file_digest, json_digest
from raybio.core.errors import ConfigError, RecordError
from raybio.core.files import atomic_folder
from raybio.core.records import read_record, write_record
from raybio.core.verification import file_state, first_damage

EXPORT_FILES = "export_files.json"

_KIND = "export files"

_WEIGHTS = "*.safetensors"

_ADVICE = (
    "Restore it from a backup, delete the folder if it is a fetched copy, or export the run again: "
    "delete the run's result.json and give its command. If you have changed the weights on "
    f"purpose, delete {EXPORT_FILES}."
)


@contextmanager
def export_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder for an export, as ``atomic_folder``; its weights' digests are added."""
    with atomic_folder(path) as folder:
        yield folder
        digests = {name: file_digest(folder / name) for name in _weights_of(folder)}
        write_record(folder / EXPORT_FILES, _KIND, {"sha256": digests})


def check_export_files(folder: Path) -> None:
    """Compare the weights of an export with their digests, once per machine and state of the files.

    Args:
        folder: any folder; one without ``export_files.json`` is not checked.

    Raises:
        ConfigError: if weights are missing or differ from the exported ones, or the record of
            their digests is damaged or of another version.
    """
    record = folder / EXPORT_FILES
    try:
        content = read_record(record, _KIND)
    except RecordError as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"{record}: cannot be read ({error.strerror})") from None
    if content is None:
        return
    digests = content.get("sha256")
    if not isinstance(digests, dict) or not all(isinstance(each, str) for each in digests.values()):
        raise ConfigError(f"{record}: lacks the sha256 of its files. {_ADVICE}")
    # Names in a record from elsewhere are compared, never opened as paths.
    if missing := digests.keys() - _weights_of(folder):
        raise ConfigError(
            f"{folder / min(missing)}: there is no such file, and {EXPORT_FILES} says that it was "
            f"exported. {_ADVICE}"
        )
    states = tuple(tuple(file_state(folder / name, ConfigError)) for name in digests)
    _check_states(folder.resolve(), tuple(digests.items()), states)


@cache
def _check_states(
    folder: Path, sha256_by_name: tuple[tuple[str, str], ...], states: tuple[tuple[int, ...], ...]
) -> None:
    """Compare weights with their digests; without a writable cache, once per process."""
    wanted = dict(sha256_by_name)
    damage = first_damage(folder, wanted, json_digest(wanted), ConfigError)
    if damage is not None:
        raise ConfigError(
            f"{folder / damage.name}: sha256 is {damage.sha256[:16]}…, {EXPORT_FILES} says "
            f"{wanted[damage.name][:16]}…: the file was damaged or changed after the export. "
            f"{_ADVICE}"
        )


def _weights_of(folder: Path) -> list[str]:
    """Return the relative paths of the files of weights below a folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob(_WEIGHTS))
