"""Readers of files that users give, and the command line: whatever is given, they take it or say why not.

Inputs are sound files, and commands of the documentation, with seeded mutations.
"""

import gzip
import json
from pathlib import Path

import numpy as np
import psutil
import pytest

from raybio.core.errors import RaybioError
from tests.script_process import run_script
from tests.sound_inputs import READERS

PIECES = [
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1f\x8b", b"\r", b"\n", b"\t", b",", b";", b" ", b'"', b"'",
    b"|", b"-1", b"1e999", b"NaN", b"9" * 25, b"9" * 5000, b"null", b"true", b"[]", b"{}", b"[" * 3000,
    b'{"a":' * 3000, b"]", b"}", b":", b"<", b"</", b"/>", b"&x;", b"&#0;", b"<!DOCTYPE x [", b"<?x?>",
    b"\\ud800", b"\\u0000", b"\xed\xa0\x80", "\u2028é\U0001f9ec".encode(), b">", b"*", b"&a *a", b"!!python/x",
    b"-", b"\x0b\x0c\x1c\x85",
]  # fmt: skip
"""Bytes that mean something in one of the formats, or nothing in any."""

NUM_NIGHTLY = 20_000
"""Inputs of each reader in the second tier."""

NUM_COMMANDS_NIGHTLY = 5_000
"""Mutated command lines in the second tier; the first has one of each command of the documentation."""

NUM_UNTIL_STEADY = 1000
"""Inputs after which memory stays as it is."""

MAX_GROWTH_MIB = 50
"""Of the resident set from then on."""


def mutated(sound: bytes, rng: np.random.Generator) -> bytes:
    """Return a file with one to three changes, gzipped now and then and then perhaps torn."""
    content = sound
    for _ in range(int(rng.integers(1, 4))):
        first, end = sorted(rng.integers(0, len(content) + 1, 2).tolist())
        end = min(end, first + int(rng.integers(0, 40)))
        part = content[first:end]
        piece = PIECES[int(rng.integers(len(PIECES)))]
        flipped = bytes(byte ^ int(rng.integers(1, 256)) for byte in part[:3])
        new = [piece, b"", part * 2, piece + part, flipped + part[3:], content[:first]]
        content = content[:first] + new[int(rng.integers(len(new)))] + content[end:]
    if rng.random() < 0.1:
        content = gzip.compress(content, mtime=0)
        content = (
            content[: int(rng.integers(1, len(content) + 1))] if rng.random() < 0.5 else content
        )
    return content


@pytest.mark.parametrize("num_inputs", [100, pytest.param(NUM_NIGHTLY, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", READERS)
def test_a_mutated_file_is_read_or_refused(name: str, num_inputs: int, tmp_path: Path) -> None:
    reader = READERS[name]
    reader.write_others(tmp_path)
    path = tmp_path / reader.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(reader.content)
    assert reader.read(path)
    rng = np.random.default_rng([num_inputs, *name.encode()])
    num_refused = 0
    resident_bytes = []
    for number in range(num_inputs):
        content = mutated(reader.content, rng)
        path.write_bytes(content)
        try:
            reader.read(path)
        except RaybioError as error:
            num_refused += 1
            assert len(str(error)) < 1000, (number, str(error)[:300])
        except Exception as error:
            raise AssertionError(f"input {number}: {content[:500]!r}") from error
        if number + 1 in (NUM_UNTIL_STEADY, num_inputs):
            resident_bytes.append(psutil.Process().memory_info().rss)
    assert num_refused > 0
    growth_mib = (resident_bytes[-1] - resident_bytes[0]) / 2**20
    assert growth_mib < MAX_GROWTH_MIB


@pytest.mark.parametrize(
    "num_inputs", [0, pytest.param(NUM_COMMANDS_NIGHTLY, marks=pytest.mark.nightly)]
)
def test_a_mutated_command_is_accepted_or_refused_and_writes_only_into_its_folder(
    num_inputs: int, tmp_path: Path
) -> None:
    environment = {
        "HF_HUB_OFFLINE": "1",
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "RAYBIO_STORES": str(tmp_path / "stores"),
    }
    done = run_script("tests.mutated_commands", tmp_path, str(num_inputs), "0", **environment)
    assert done.returncode == 0, done.stderr[-5000:]
    result = json.loads(done.stdout.splitlines()[-1])
    codes = result["codes"]
    assert codes.keys() <= {"-1", "0", "2"}
    assert sum(codes.values()) >= max(num_inputs, 300)
    assert codes["2"] > 0.5 * sum(codes.values())
    assert result["growth_mib"] < MAX_GROWTH_MIB
