"""The wheel has ``search_spaces/`` within ``raybio/``; a clone reads the folder itself."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FILES = sorted(Path("search_spaces").glob("*.yaml"))


class BuildPackage(build_py):
    """Copies search spaces into the package that is built."""

    def run(self) -> None:
        """Build the package, and copy the files unless the clone itself is installed."""
        super().run()
        if self.editable_mode:
            return
        folder = Path(self.build_lib) / "raybio" / "search_spaces"
        folder.mkdir(parents=True, exist_ok=True)
        for file in FILES:
            shutil.copy(file, folder)

    def get_source_files(self) -> list[str]:
        """Return the sources of the package, which a source distribution has to hold."""
        return [*super().get_source_files(), *map(str, FILES)]


setup(cmdclass={"build_py": BuildPackage})
