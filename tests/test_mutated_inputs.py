"""Readers of files that users give, and the command line: whatever is given, they take it or say why not.

Inputs are sound files, and commands of the documentation, with seeded mutations.
"""

import base64
import gzip
import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from raybio.core.errors import RaybioError
from tests.script_process import run_script
from tests.sound_inputs import INPUTS
from tests.sound_records import RECORDS

READERS = INPUTS | RECORDS

PIECES = [
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1f\x8b", b"\r", b"\n", b"\t", b",", b";", b" ", b'"', b"'",
    b"|", b"-1", b"1e999", b"NaN", b"9" * 25, b"9" * 5000, b"null", b"true", b"[]", b"{}", b"[" * 3000,
    b'{"a":' * 3000, b"]", b"}", b":", b"<", b"</", b"/>", b"&x;", b"&#0;", b"<!DOCTYPE x [", b"<?x?>",
    b"\\ud800", b"\\u0000", b"\xed\xa0\x80", "\u2028é\U0001f9ec".encode(), b">", b"*", b"&a *a", b"!!python/x",
    b"-", b"\x0b\x0c\x1c\x85",
]  # fmt: skip
"""Bytes that mean something in one of the formats, or nothing in any."""

NUM_INPUTS = int(os.environ.get("FUZZ_INPUTS", "3000"))
"""Inputs of each reader in the second tier; ``make fuzz`` sets it to 100,000, which takes hours."""

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


VALUES = [None, True, -1, 3, 1.5, 1e300, 2**63, "", "x", "x" * 200, [], [1], {}, {"a": 1}]
"""Values of JSON, each of which is of the wrong type somewhere."""


def changed_content(sound: Any, rng: np.random.Generator) -> Any:
    """Return JSON with one to three entries dropped, added or replaced; its outermost type stays."""
    content = json.loads(json.dumps(sound))
    for _ in range(int(rng.integers(1, 4))):
        part = content
        while part:
            key = list(part)[int(rng.integers(len(part)))] if isinstance(part, dict) else 0
            if not isinstance(part[key], dict | list) or not part[key] or rng.random() < 0.3:
                break
            part = part[key]
        value = VALUES[int(rng.integers(len(VALUES)))]
        change = int(rng.integers(3))
        if change == 0 and part:
            del part[key]
        elif change == 1 and isinstance(part, dict):
            part["a key of another version"] = value
        elif part:
            part[key] = value
    return content


@pytest.mark.parametrize("is_nightly", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", READERS)
def test_a_mutated_file_is_read_or_refused(name: str, is_nightly: bool, tmp_path: Path) -> None:
    reader = READERS[name]
    num_inputs = min(reader.num_at_most, NUM_INPUTS) if is_nightly else 100
    reader.write_others(tmp_path)
    path = tmp_path / reader.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(reader.content)
    assert reader.read(path)
    rng = np.random.default_rng([num_inputs, *name.encode()])
    num_refused = 0
    resident_bytes = []
    for number in range(num_inputs):
        if reader.sign is None:
            content = mutated(reader.content, rng)
        else:
            content = reader.sign(changed_content(reader.sound, rng))
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
    assert reader.skips or num_refused > 0
    growth_mib = (resident_bytes[-1] - resident_bytes[0]) / 2**20
    assert growth_mib < MAX_GROWTH_MIB


DAMAGED_PARQUET = (
    b"c-nnazi-n(6n_4Jais_~h_lX8h6pKEk<yZ&rm9dRa?X#2(uyP!avODVQp=bmPH;j?wulLJWMly`v#>ERv-"
    b"3Y7#L~4xC+=O6CIyMJ@15Vf@4oN7r*n-"
    b"pvP30!2qoXXoc)mVwZ8*eVhh%!7M0w18~|35GPkNEDKdv;_;dO7^VzLDi4nLBKml$@rO6|XDe#xi37;Pe1jt=tk@Ji54"
    b"@!b#SBXZn1XXblEldnpTk?cfyntHD7TTDiC~v=WP4g%RR2#ORdp(z^Kw>GGDjjc}g1rRC<z%|z^;+KXaS-"
    b"}MCfZ&eqbgOq!Ei)mAbKiAZ+cy?=Y=CMR5M|wE#NtsInY*3!9`?4HQq_ad&#O=`f>xzG_M+v26zoJ<T-(6T7XF-"
    b"i#}!9UgRKj=X#ttX8e?l-;#AHS)Zi;ci<nfdzPx373>C|#s$yP(v3F?2U0C^$E~1GwSE-"
    b"%K?pR)8jYvU!)c@FM7fXSwQn=V>TEimFt*8TpH&$1S<x3U+rGAcifj35zclyfEW&?`t1VVR@=Op3&>?=Ew0qsqbvEbz`"
    b"0$_`xX$+UC@Zon{O${$B*x423i`$Rb-gKc7fsX222H2Yah+U<yhVXSepW)0sc|Yyuf8uxs*9u-"
    b"dOO`r)5);e`JLH$Az2o6_}HK7tj_wZDBQ1zq-=kYpBVcXjG6}>gqD}}fF=iS^zxNAT5k^q>uwbFPm?EJGz|J-"
    b"@<DDRvynB^{08GC{>5)R{)m47@$AdZ"
)
"""A file whose metadata of a column made Arrow end the process."""

DEEP = b'{"a":' * 3000

FOUND = {
    "log of reports": [
        b'{"step": "x", "time_ms": 1, "metrics": {}}\n' * 2,
        b'{"step": 1, "time_ms": 1}\n',
        b'{"step": 1e999, "time_ms": 1, "metrics": {"loss": null}}\n',
    ],
    "notices of workers": [
        b'{"time_ms": 1, "warning": {"a": 1}}\n',
        b'{"time_ms": 1, "warning": "\\ud800"}\n',
        b'{"time_ms": 1, "first_step": 0, "warning": "a"}\n',
        b'{"time_ms": 1, "first_step": "0", "steps_per_epoch": 0}\n',
    ],
    "lease": [
        b'{"id": "a", "host": "node", "held_seconds": "x"}',
        b'{"id": "a", "pid": 99999999999999999999}',
    ],
    "card of a model": [b"---\ndate: 2020-99-99\n---\n", b"---\n" + b"[" * 3000 + b"\n---\n"],
    "embeddings to search": [zlib.decompress(base64.b85decode(DAMAGED_PARQUET))],
    "settings of a text encoder": [DEEP, b'{"model_type": "bert", "eos_token_id": "gelu"}'],
    "modules of sentence-transformers": [b'[{"type": "' + b"x" * 9000 + b'"}]'],
    "pooling of sentence-transformers": [b'{"pooling_mode": 5}'],
    "list of parts of weights": [b'{"weight_map": {"a": 1, "b": "c"}}'],
    "record of TAPE's LMDB": [b"\x80\x04}r\xff\xff\xff\x0f."],  # would take 4 GB
    "SciBERT": [b'{"text": ' + DEEP],
    "SCOP": [b">a a." + b"9" * 5000 + b".1.1\nMKV\n"],
    "GFP": [b"aaMutations\tmedianBrightness\nSA108D\t" + b"[" * 3000 + b"\n"],
    "table of proteins": [b"id,\rtaxid,sequence\n1.a,1,MKV\n"],
    "table of links": [b"protein1\tprotein1\tscore\n1.a\t1.b\t0.9\n"],
    "labels of nodes": [b"id\tlabel\n" + b"x" * 5000 + b"\tyes\n"],
    "articles and terms": [b"1," + b"a" * 200_000 + b",b,c\n"],
}
"""Reader -> inputs that were a traceback or an endless message."""


@pytest.mark.parametrize("name", FOUND)
def test_an_input_that_was_a_traceback_is_read_or_refused(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    reader.write_others(tmp_path)
    path = tmp_path / reader.name
    for content in FOUND[name]:
        path.write_bytes(content)
        try:
            reader.read(path)
        except RaybioError as error:
            assert len(str(error)) < 1000, str(error)[:300]


@pytest.mark.parametrize("name", ["scores of units", "FLIP's zip"])
def test_a_zip_of_another_version_or_compression_is_refused(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    path = tmp_path / reader.name
    entry = reader.content.index(b"PK\x01\x02")
    for offset in (6, 10):  # the version that is needed to unpack it, and its compression
        content = bytearray(reader.content)
        content[entry + offset] = 99
        path.write_bytes(content)
        with pytest.raises(RaybioError, match="damaged"):
            reader.read(path)


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
