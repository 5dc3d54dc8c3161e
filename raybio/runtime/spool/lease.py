"""One driver at a time: a lease of a run or an embedding in a bucket, by conditional writes.

``lease.json`` holds a random id of the driver, a counter that makes the content of each renewal
unique, and how long it has been held by the holder's own clock. Its holder renews it every
``HEARTBEAT_SECONDS``. If a lease was not written for ``LEASE_SECONDS``, its driver counts as dead.
Clocks of machines are not compared: the age is first that of the object by the server's clock, then
the time that this process has waited without a new version. A holder that ends writes
``is_released`` instead, which the next driver replaces at once.
"""

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from raybio.core.errors import ClusterError, MissingObjectError, StorageError
from raybio.core.records import is_count
from raybio.runtime.run.duration import in_words
from raybio.runtime.run.spec import LeaseKey
from raybio.store.bucket import BucketFolder, ObjectVersion
from raybio.store.json import is_text

LEASE = "lease.json"

LEASE_SECONDS = 60.0
"""A driver that has not renewed its lease for this time counts as dead."""

HEARTBEAT_SECONDS = 10.0

GIVEN_UP_SHARE = 0.5
"""Share of ``LEASE_SECONDS`` after which a driver that cannot renew its lease stops writing.

The rest is for a request in progress: an impatient client repeats a request for 15 s, and waits 10
s for the last response (``store/bucket_client``).
"""

_RELEASED = b'{"is_released": true}'

_POLL_SECONDS = 1.0


class LostLeaseError(ClusterError):
    """This driver no longer holds the lease, or may have lost it."""


class TakenOverError(LostLeaseError):
    """Another driver has taken over what this one held."""


class LeasedWork(NamedTuple):
    """The kind of work that a lease protects, for errors.

    Attributes:
        noun: its noun, such as "run".
        option: the option that chooses another one.
    """

    noun: str
    option: str


class Holder(NamedTuple):
    """The content of a lease: who holds it.

    Attributes:
        id: random id of the driver; None in a released or damaged lease.
        is_released: whether the driver has ended.
        host: name of its machine; None: unknown.
        machine: result of ``_machine`` in the driver.
        pid: id of its process; None: unknown.
        process_start: result of ``_start_of`` for the process.
        held_seconds: how long it has held the lease, by its own clock.
    """

    id: str | None = None
    is_released: bool = False
    host: str | None = None
    machine: str | None = None
    pid: int | None = None
    process_start: int | None = None
    held_seconds: int = 0

    @classmethod
    def parse(cls, content: bytes) -> "Holder":
        """Return the holder that a lease names; unknown if the lease is damaged."""
        try:
            fields = json.loads(content)
        except (ValueError, RecursionError):
            return cls()
        if not isinstance(fields, dict):
            return cls()
        valid = [name for name, is_valid in _FIELDS.items() if is_valid(fields.get(name))]
        return cls(**{name: fields[name] for name in valid})

    def __str__(self) -> str:
        """Return its name for errors."""
        if self.host is None or self.pid is None:
            return "an unknown driver"
        return f"process {self.pid} on {self.host:.100}, for {in_words(float(self.held_seconds))}"

    def is_running(self) -> bool | None:
        """Return whether its process is running on this machine; None if that is unknown."""
        if self.pid is None:
            return None
        start = _start_of(self.pid)
        if start is not None:
            return None if self.process_start is None else start == self.process_start
        try:
            os.kill(self.pid, 0)  # sends nothing
        except PermissionError:
            return None  # owned by another user, whose folder in /proc may be hidden
        except (OSError, OverflowError):
            pass
        return False


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "id": is_text,
    "is_released": lambda value: value is True,
    "host": is_text,
    "machine": is_text,
    "pid": is_count,
    "process_start": is_count,
    "held_seconds": is_count,
}
"""Field of a lease -> function that validates its value; invalid values count as missing."""

A_RUN = LeasedWork("run", "--name")
AN_EMBEDDING = LeasedWork("embedding", "--out")


class Lease:
    """A lease that this driver holds.

    Attributes:
        id: the driver's id, which workers compare with that in the bucket.
    """

    def __init__(
        self, bucket: BucketFolder, id_: str, version: ObjectVersion, work: LeasedWork = A_RUN
    ) -> None:
        """Take over a lease that was just written; use ``held`` instead."""
        self.id = id_
        self._bucket = bucket
        self._work = work
        self._version = version
        self._counter = 0
        self._began = _now()
        self._renewed = self._began
        self._loss: LostLeaseError | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew_forever, name="lease", daemon=True)
        self._thread.start()

    @property
    def key(self) -> LeaseKey:
        """The lease as workers know it."""
        return LeaseKey(self._bucket.path, self.id)

    def check_not_lost(self) -> None:
        """Raise if another driver has taken over, or if the lease was deleted.

        Work that writes nothing continues while the bucket is unavailable, since the lease may
        still be held afterwards.

        Raises:
            LostLeaseError: if it has, or if the lease was deleted.
        """
        if self._loss is not None:
            # Raise a new object each time, since several threads call this.
            raise type(self._loss)(str(self._loss))

    def check(self) -> None:
        """Raise before a write if another driver may have taken over.

        Raises:
            LostLeaseError: if it has, or the lease could not be renewed in time.
        """
        self.check_not_lost()
        silent = _now() - self._renewed
        if silent > GIVEN_UP_SHARE * LEASE_SECONDS:
            raise LostLeaseError(
                f"{self._bucket.path / LEASE}: could not be renewed for {silent:.0f} s, so that "
                f"another driver may take over the {self._work.noun}. The same command resumes it"
            )

    def confirm(self) -> None:
        """Read the lease, and raise if another driver holds it.

        Raises:
            LostLeaseError: if another driver holds it, or if it was deleted.
            StorageError: if the bucket cannot be read.
        """
        self.check_not_lost()
        _check_held(self._bucket, self.id, self._work, is_holder=True)

    def is_taken_over(self) -> bool:
        """Return whether another driver holds the lease now; False if that cannot be read."""
        try:
            self.confirm()
        except TakenOverError:
            return True
        except (LostLeaseError, StorageError):
            pass
        return False

    def release(self) -> None:
        """Release the lease, if this driver still holds it."""
        self._ended.set()
        self._thread.join()
        # If the bucket cannot be reached, the lease expires by itself.
        with contextlib.suppress(StorageError):
            # Do not delete it: another driver could take it between a check and the deletion.
            self._bucket.replace(LEASE, _RELEASED, self._version)

    def delete(self) -> None:
        """End the lease of complete work, and delete it with the rest of its folder."""
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(StorageError):
            # Renew it first: then no driver takes it for ``LEASE_SECONDS``, which is longer than
            # retries of a deletion take.
            if self._bucket.replace(LEASE, self._content(), self._version) is not None:
                self._bucket.delete(LEASE)

    def _renew_forever(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            began = _now()
            try:
                version = self._bucket.replace(LEASE, self._content(), self._version)
                if version is None:
                    version = self._own_version()
            except StorageError:
                continue  # ``check`` tracks how long this lasts
            if version is None:
                try:
                    _check_held(self._bucket, self.id, self._work, is_holder=True)
                except LostLeaseError as loss:
                    self._loss = loss
                    return
                except StorageError:
                    pass
                continue
            self._version = version
            self._renewed = began

    def _own_version(self) -> ObjectVersion | None:
        """Return the version in the bucket if this driver wrote it but the response was lost."""
        current = _read(self._bucket)
        return current[1] if current is not None and current[0].id == self.id else None

    def _content(self) -> bytes:
        self._counter += 1
        return _content(self.id, self._counter, _now() - self._began)


@contextlib.contextmanager
def held(bucket: BucketFolder, work: LeasedWork = A_RUN) -> Iterator[Lease]:
    """Hold a lease for a ``with`` block.

    Args:
        bucket: the folder of the run or of the embedding's parts, with an impatient client, since
            late heartbeats are useless.
        work: the kind of work, for errors.

    Raises:
        ClusterError: if another driver holds it, with its name and for how long.
        StorageError: if the bucket cannot be read or written.
    """
    lease = acquire(bucket, work)
    try:
        yield lease
    finally:
        lease.release()


def acquire(bucket: BucketFolder, work: LeasedWork = A_RUN) -> Lease:
    """Take a lease, like ``held``."""
    id_ = uuid.uuid4().hex
    content = _content(id_, 0, 0.0)
    while True:
        version = bucket.create(LEASE, content)
        if version is None:
            current = _read(bucket)
            if current is None:
                continue  # it was released just now
            holder, old = current
            if not holder.is_released and not _is_dead(bucket, holder, old):
                raise _refused(bucket, holder, work)
            version = bucket.replace(LEASE, content, old)
        if version is not None:
            return Lease(bucket, id_, version, work)


def refuse_if_held(bucket: BucketFolder) -> None:
    """Refuse a run whose lease a driver holds, whether or not the driver is alive.

    Raises:
        ClusterError: as ``held``.
        StorageError: if the bucket cannot be read.
    """
    current = _read(bucket)
    if current is not None and not current[0].is_released:
        raise _refused(bucket, current[0], A_RUN)


def check_key(key: LeaseKey, work: LeasedWork = A_RUN, *, is_patient: bool = True) -> None:
    """Raise if a driver no longer holds its lease; any process may call this before a write.

    Args:
        key: the lease.
        work: the kind of work, for errors.
        is_patient: wait for minutes for a bucket that does not answer.

    Raises:
        LostLeaseError: if another driver has taken over, or the driver has ended.
        StorageError: if the bucket cannot be read.
    """
    _check_held(BucketFolder(key.path, is_patient=is_patient), key.id, work)


def _check_held(
    bucket: BucketFolder, id_: str, work: LeasedWork, *, is_holder: bool = False
) -> None:
    """Raise if ``id_`` does not hold the lease in a bucket.

    Args:
        bucket: folder of the lease.
        id_: id of the driver that took the lease.
        work: the kind of work, for errors.
        is_holder: whether this process took the lease; then only another one can have released it.
    """
    current = _read(bucket)
    if current is None:
        raise LostLeaseError(
            f"{bucket.path / LEASE}: was deleted while the {work.noun} was at work. The same "
            "command resumes from what is left in the bucket"
        )
    holder = current[0]
    if holder.id == id_:
        return
    if holder.is_released and not is_holder:
        raise LostLeaseError(
            f"{bucket.path}: the driver of the {work.noun} has ended. The same command resumes it"
        )
    end = "which has ended" if holder.is_released else "which goes on with it"
    raise TakenOverError(
        f"{bucket.path}: the {work.noun} has been started again by another driver, {end}"
    )


def _is_dead(bucket: BucketFolder, holder: Holder, version: ObjectVersion) -> bool:
    """Return whether the holder has ended; wait until this is certain."""
    if holder.machine == _machine():
        is_running = holder.is_running()
        if is_running is not None:
            return not is_running
    seconds_left = LEASE_SECONDS - _age(bucket)
    if seconds_left > 0:
        print(
            f"{bucket.path}: held by {holder}; waiting up to {seconds_left:.0f} s to see "
            "whether it is alive",
            flush=True,
        )
    until = _now() + seconds_left
    while _now() < until:
        time.sleep(min(_POLL_SECONDS, LEASE_SECONDS / 10))
        current = _read(bucket)
        if current is None or current[0].is_released:
            return True
        if current[1] != version:
            return False
    return True


def _age(bucket: BucketFolder) -> float:
    """Return the seconds since the lease was written, by the clock of the server."""
    info = bucket.info(LEASE)
    if info is None:
        return LEASE_SECONDS
    probe = f".clock-{uuid.uuid4().hex}"
    bucket.write(probe, b"")
    now = bucket.info(probe)
    bucket.delete(probe)
    # The server's clock has a resolution of one second.
    return 0.0 if now is None else max(now.modified - info.modified - 1.0, 0.0)


def _read(bucket: BucketFolder) -> tuple[Holder, ObjectVersion] | None:
    try:
        content, version = bucket.read_version(LEASE)
    except MissingObjectError:
        return None
    return Holder.parse(content), version


def _content(id_: str, counter: int, held_seconds: float) -> bytes:
    content = {
        "id": id_,
        "counter": counter,
        "held_seconds": round(held_seconds),
        "host": socket.gethostname(),
        "machine": _machine(),
        "pid": os.getpid(),
        "process_start": _start_of(os.getpid()),
    }
    return json.dumps(content, indent=1).encode()


def _machine() -> str:
    """Return a name that is unique to this machine and container."""
    parts = [socket.gethostname()]
    # Linux has both files; on other systems, a dead driver's lease expires.
    with contextlib.suppress(OSError):
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            parts.append(file.read().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
        return "-".join(parts)
    return uuid.uuid4().hex


def _start_of(pid: int) -> int | None:
    """Return when a process of this machine began, in ticks since boot; None if it has ended.

    Unlike times of the clock, ticks do not change when the clock is set.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The program's name, in parentheses, may contain spaces.
            state, *fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in ("Z", "X") else int(fields[18])


def _refused(bucket: BucketFolder, holder: Holder, work: LeasedWork) -> ClusterError:
    return ClusterError(
        f"{bucket.path}: another driver is at work on this {work.noun}: {holder}. Wait "
        f"until it ends, stop it, or choose another {work.option}"
    )


def _now() -> float:
    """Return the seconds of a clock that, if available, also runs while the machine sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)
