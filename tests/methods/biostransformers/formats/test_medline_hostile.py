"""Broken and hostile files: each gives its valid articles, or an error that names it, quickly."""

import gzip
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from raybio.core.errors import DataError
from raybio.methods.biostransformers.formats.medline import read_medline
from raybio.store.quarantine import Quarantine
from tests.methods.biostransformers.formats.medline_files import (
    DOCTYPE,
    article_set,
    citation,
    deletion,
    write_medline,
)
from tests.paths import ROOT

MEBI = 1 << 20
MESH = (
    '<MeshHeading><DescriptorName UI="D1" MajorTopicYN="N">Rats</DescriptorName>'
    '<QualifierName UI="Q1" MajorTopicYN="Y">blood</QualifierName></MeshHeading>'
)
CITATIONS = [
    citation(1, title="[Über α-Ratten].", mesh=MESH),
    citation(2, abstract="<AbstractText>p &lt; 0<sup>.1</sup> &amp; <i>q</i></AbstractText>"),
    citation(None),
    citation(3, title=None, abstract=None),
    citation(4, version=2, mesh=MESH * 2),
]
SOUND = article_set(*CITATIONS, others=deletion(9)).encode()
NUM_CITATIONS = len(CITATIONS)


def outcome(path):
    """Return the number of read or skipped citations, None for a file refused with a DataError."""
    quarantine = Quarantine()
    try:
        num_rows = sum(
            batch.articles.num_rows
            for batch in read_medline(path, quarantine, articles_per_batch=2)
        )
    except DataError as error:
        assert str(path) in str(error)
        assert "\n" not in str(error)
        return None
    num_bad = sum(
        count for reason, count in quarantine.count_by_reason.items() if reason in {*SKIPPED}
    )
    assert num_rows + num_bad == quarantine.num_seen("citation")
    return num_rows + num_bad


SKIPPED = (
    "no PMID", "no legal PMID", "neither title nor abstract",
    "text with an entity that is not declared", "not an article",
    "PubmedArticle without a MedlineCitation", "unknown element",
)  # fmt: skip


def refused(path, content, match):
    path.write_bytes(content)
    with pytest.raises(DataError, match=match):
        list(read_medline(path, Quarantine()))


def test_a_file_cut_anywhere_is_refused(tmp_path):
    path, end = tmp_path / "x.xml", SOUND.rindex(b">") + 1
    for length in range(0, end, 2):
        path.write_bytes(SOUND[:length])
        assert outcome(path) is None, length
    path.write_bytes(SOUND[:end])
    assert outcome(path) == NUM_CITATIONS


def test_a_gzip_cut_anywhere_is_refused(tmp_path):
    path, content = tmp_path / "x.xml.gz", gzip.compress(SOUND)
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert outcome(path) is None, length


def test_a_gzip_with_a_damaged_byte_gives_everything_or_is_refused(tmp_path):
    path, content, rng = tmp_path / "x.xml.gz", gzip.compress(SOUND), np.random.default_rng(0)
    found = set()
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        found.add(outcome(path))
    assert found == {None, NUM_CITATIONS}


def test_bytes_replaced_anywhere_lose_no_citation_in_silence(tmp_path):
    path, rng = tmp_path / "x.xml", np.random.default_rng(1)
    found = set()
    for _ in range(1200):
        damaged = np.frombuffer(SOUND, np.uint8).copy()
        at = rng.integers(0, len(damaged), int(rng.integers(1, 4)))
        damaged[at] = (
            rng.integers(0, 256, len(at)) if rng.random() < 0.5 else rng.choice(damaged, len(at))
        )
        path.write_bytes(damaged.tobytes())
        found.add(outcome(path))
    assert found == {None, NUM_CITATIONS}


def test_pieces_that_change_places_lose_no_citation_in_silence(tmp_path):
    path, rng = tmp_path / "x.xml", np.random.default_rng(2)
    for _ in range(1000):
        a, b, c, d = sorted(int(at) for at in rng.integers(0, len(SOUND), 4))
        path.write_bytes(SOUND[:a] + SOUND[c:d] + SOUND[b:c] + SOUND[a:b] + SOUND[d:])
        assert outcome(path) in {None, NUM_CITATIONS}


def test_random_bytes_are_refused(tmp_path):
    path, rng = tmp_path / "x.xml", np.random.default_rng(3)
    for length in [0, 1, 2, 3, 4, 5, 10, 1000, 300_000]:
        for head in [
            b"",
            b"\x1f\x8b",
            b"\x1f\x8b\x08\x00",
            b"<?xml",
            b"\xff\xfe",
            b"\xfe\xff",
            b"\xef\xbb\xbf<",
            b"\0",
        ]:
            path.write_bytes(head + rng.bytes(length))
            assert outcome(path) is None


@pytest.mark.parametrize("content", [b"", b"\n\n \t\n", b"\0" * 1000, gzip.compress(b"", mtime=0)])
def test_a_file_without_content_is_refused(tmp_path, content):
    refused(tmp_path / "x.xml", content, r"x\.xml.*want <PubmedArticleSet> or <MedlineCitationSet>")


def test_places_that_are_no_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for place in [
        tmp_path,
        tmp_path / "none.xml",
        tmp_path / "fifo",
        tmp_path / ("x" * 300),
        tmp_path / "a\0b",
    ]:
        assert outcome(place) is None


def test_another_root_is_named_with_its_line(tmp_path):
    refused(
        tmp_path / "x.xml",
        b"<?xml version='1.0'?>\n\n<html><body/></html>",
        r"x\.xml, line 3: the root .*<html>",
    )
    spaced = b"<PubmedArticleSet xmlns='urn:x'><PubmedArticle/></PubmedArticleSet>"
    refused(tmp_path / "x.xml", spaced, "the root element is <urn:x PubmedArticleSet>")


def test_broken_xml_is_named_with_its_line(tmp_path):
    lines = SOUND.decode().split("\n")
    at = next(number for number, line in enumerate(lines) if "<sup>" in line)
    broken = [*lines[:at], lines[at].replace("</sup>", ""), *lines[at + 1 :]]
    refused(
        tmp_path / "x.xml",
        "\n".join(broken).encode(),
        rf"x\.xml, line {at + 1}: is not well-formed XML",
    )
    without_doctype = article_set(citation(1), citation(title="&nbsp;"), doctype="").encode()
    line = without_doctype[: without_doctype.index(b"&nbsp;")].count(b"\n") + 1
    refused(tmp_path / "x.xml", without_doctype, rf"x\.xml, line {line}: .*'nbsp' not defined")


LAUGHS = '<!ENTITY l0 "ha">' + "".join(
    f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 15)
)
QUADRATIC = f'<!ENTITY q "{"x" * 500_000}">'


@pytest.mark.parametrize(
    ("declaration", "use"),
    [
        (LAUGHS, "&l14;"),
        (LAUGHS + '<!ATTLIST PubmedArticleSet a CDATA "&l14;">', ""),
        (QUADRATIC, "&q;" * 20_000),
        ('<!ENTITY a "&b;"><!ENTITY b "&a;">', "&a;"),
        ('<!ENTITY secret SYSTEM "SECRET">', "&secret;"),
        ('<!ENTITY secret PUBLIC "x" "SECRET">', "&secret;"),
        ('<!ENTITY % secret SYSTEM "SECRET"> %secret;', ""),
        ("<!ENTITY % a \"<!ENTITY &#37; secret SYSTEM 'SECRET'> &#37;secret;\"> %a;", ""),
        ('<!NOTATION n SYSTEM "x"><!ENTITY picture SYSTEM "SECRET" NDATA n>', ""),
        ('<!ENTITY harmless "word">', ""),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_files_that_declare_entities_are_refused_before_anything_is_opened(
    tmp_path, declaration, use, encoding
):
    # Opening it would wait for ever.
    os.mkfifo(tmp_path / "secret")
    doctype = DOCTYPE[:-1] + f"[{declaration.replace('SECRET', (tmp_path / 'secret').as_uri())}]>"
    content = article_set(citation(title=f"a{use}"), doctype=doctype).replace(
        'encoding="utf-8"', ""
    )
    refused(tmp_path / "x.xml", content.encode(encoding), r"x\.xml, line [23]: declares the entity")


def test_no_document_type_is_fetched_from_a_file_or_the_network(tmp_path):
    os.mkfifo(tmp_path / "dtd")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        for place in [
            (tmp_path / "dtd").as_uri(),
            f"http://127.0.0.1:{server.getsockname()[1]}/x.dtd",
        ]:
            doctype = (
                f'<!DOCTYPE PubmedArticleSet SYSTEM "{place}" '
                '[<!ATTLIST PubmedArticle a CDATA "b">]>'
            )
            include = f'<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="{place}"/>'
            style = f'<?xml-stylesheet href="{place}"?>'
            (tmp_path / "x.xml").write_text(
                article_set(citation(title=f"T{include}{style}"), doctype=doctype)
            )
            assert outcome(tmp_path / "x.xml") == 1
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize(
    ("declared", "written", "is_good"),
    [
        ("utf-8", "utf-8", True),
        ("utf-8", "utf-8-sig", True),
        ("UTF-16", "utf-16", True),
        (None, "utf-16", True),
        (None, "utf-8", True),
        ("iso-8859-1", "iso-8859-1", True),
        ("windows-1252", "cp1252", True),
        ("utf-8", "iso-8859-1", False),
        (None, "iso-8859-1", False),
        ("us-ascii", "utf-8", False),
        ("utf-16", "utf-8", False),
        ("no-such-encoding", "utf-8", False),
        ("hex", "utf-8", False),
        ("utf-7", "utf-8", False),
        (None, "utf-32", False),
        (None, "utf-16-le", True),
    ],
)
def test_encodings_are_read_as_declared_or_refused(tmp_path, declared, written, is_good):
    text = article_set(citation(title="Größe"), doctype="")
    text = text.replace(' encoding="utf-8"', f' encoding="{declared}"' if declared else "")
    (tmp_path / "x.xml").write_bytes(text.encode(written))
    assert outcome(tmp_path / "x.xml") == (1 if is_good else None)
    if is_good:
        (batch,) = read_medline(tmp_path / "x.xml", Quarantine())
        assert batch.articles["title"].to_pylist() == ["Größe"]


DEEP = "<b>" * 100_000


@pytest.mark.parametrize(
    "title",
    [
        DEEP,
        DEEP + "</b>" * 100_000,
        "x" * 11_000_000,
        f"<b a='{'x' * 11_000_000}'/>",
        "<b/>" * 5_000_000,
        "<x:b/>",
    ],
    ids=[
        "deep",
        "deep and closed",
        "long text",
        "long attribute",
        "many elements",
        "prefix that is not declared",
    ],
)
def test_what_no_citation_holds_is_refused_soon(tmp_path, title):
    (tmp_path / "x.xml").write_text(article_set(citation(), citation(title=title)))
    assert outcome(tmp_path / "x.xml") is None


def test_a_citation_as_long_as_the_longest_real_ones_is_read(tmp_path):
    author = (
        "<Author><LastName>Name</LastName>"
        "<AffiliationInfo>Somewhere far away</AffiliationInfo></Author>"
    )
    authors = f"<AuthorList>{author * 80_000}</AuthorList>"
    assert (
        outcome(write_medline(tmp_path / "x.xml.gz", citation(1, extra=authors), citation(2))) == 2
    )


def test_a_prolog_without_end_is_refused(tmp_path):
    refused(
        tmp_path / "x.xml", b"<?xml version='1.0'?>" + b"<!-- x -->\n" * 1_000_000, r"x\.xml.*no "
    )
    bomb = gzip.compress(b" " * (64 << 20))
    refused(tmp_path / "x.xml.gz", bomb, r"x\.xml\.gz.*no ")


MEASURE = """
import json, sys
from raybio.methods.biostransformers.formats.medline import read_medline
from raybio.store.quarantine import Quarantine
num_rows = sum(batch.articles.num_rows for batch in read_medline(sys.argv[1], Quarantine()))
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([num_rows, int(peak.split()[1]) * 1024]))
"""


def peak_bytes(path, num_rows):
    root = str(ROOT)
    command = [sys.executable, "-c", MEASURE, str(path)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True, check=True
    )
    found, peak = json.loads(done.stdout)
    assert found == num_rows
    return peak


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_thirty_thousand_citations_take_no_more_memory_than_a_batch_of_them(tmp_path):
    words = "<AbstractText>" + "Some words of an abstract. " * 25 + "</AbstractText>"
    one = citation("PMID", abstract=words, mesh=MESH * 6)
    small = write_medline(
        tmp_path / "small.xml.gz", *(one.replace("PMID<", f"{n}<") for n in range(1, 11))
    )
    large = write_medline(
        tmp_path / "large.xml.gz", *(re.sub(">PMID<", f">{n}<", one) for n in range(1, 30_001))
    )
    assert peak_bytes(large, 30_000) - peak_bytes(small, 10) < 64 * MEBI
