"""Python files with tasks of a user's own, whose source travels to the workers of a cluster."""

import ast
import hashlib
import importlib.util
import sys
import traceback
from dataclasses import dataclass
from importlib.abc import SourceLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from raybio.core.digest import digest_of
from raybio.core.errors import ConfigError


@dataclass(frozen=True)
class TaskSource:
    """A Python file, and a class in it.

    Attributes:
        path: where the file was read; other machines need not have it.
        content: the bytes of the file.
        class_name: name of the class.
    """

    path: str
    content: bytes
    class_name: str

    @property
    def sha256(self) -> str:
        """Digest of the content, in hex."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def class_names(self) -> list[str]:
        """Names of all classes of the file."""
        return [
            node.name for node in ast.parse(self.content).body if isinstance(node, ast.ClassDef)
        ]

    def module(self) -> ModuleType:
        """Return the module of the file; each process runs it once.

        Raises:
            ConfigError: if it fails.
        """
        name = f"raybio_task_{digest_of({'path': self.path, 'sha256': self.sha256})[:16]}"
        if name not in sys.modules:
            loader = _BytesLoader(self.path, self.content)
            module = importlib.util.module_from_spec(ModuleSpec(name, loader, origin=self.path))
            sys.modules[name] = module  # classes look up their annotations there
            try:
                loader.exec_module(module)
            except Exception as error:  # a user's file may raise anything
                del sys.modules[name]
                reason = error.msg if isinstance(error, SyntaxError) else error
                raise ConfigError(
                    f"{self.path}{_line_of(error, self.path)}: {type(error).__name__}: {reason}"
                ) from error
        return sys.modules[name]


class _BytesLoader(SourceLoader):
    """Loads a module from the bytes of its file; tracebacks show its lines."""

    def __init__(self, path: str, content: bytes) -> None:
        self._path = path
        self._content = content

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str | bytes) -> bytes:
        return self._content


def read_task_source(path: Path, class_name: str) -> TaskSource:
    """Read a Python file.

    Raises:
        ConfigError: if it cannot be read.
    """
    try:
        return TaskSource(str(path), path.read_bytes(), class_name)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None


def _line_of(error: Exception, path: str) -> str:
    """Return ", line 3": the last line of the file that led to an error."""
    if isinstance(error, SyntaxError) and error.filename == path:
        return f", line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == path]
    return f", line {lines[-1]}" if lines else ""
