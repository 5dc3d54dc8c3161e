"""Public data that can be downloaded: addresses, licenses, and the files of each source.

A mirror replaces ``https://HOST`` of an address and keeps its path.
"""

import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from raybio.core.errors import ConfigError, DataError
from raybio.store.download import RemoteFile
from raybio.store.retrying_http import RetryingHttp

MAX_INDEX_BYTES = 16 << 20
NUM_SIZE_REQUESTS = 4
"""Number of parallel requests for the sizes of PubMed's files, of which there are over 1,200."""

LINK = re.compile(r"""href\s*=\s*["']?\s*([^"'\s<>]{1,300})""", re.IGNORECASE)
PUBMED_NAME = re.compile(r"pubmed[0-9]{2}n([0-9]{4,6})\.xml\.gz")
BUCKET = "s3://openalex/"
PARTITION = re.compile(r"(?:[\w.-]+/)*works/updated_date=([0-9]{4}-[0-9]{2}-[0-9]{2})/[\w.-]+\.gz")


class PublicSource(NamedTuple):
    """A source of public data.

    Attributes:
        address: page, folder or file; the functions below complete it.
        license: terms of use, as the source states them.
        size: approximate size of the download.
        checksum: what the source publishes to verify a file.
    """

    address: str
    license: str
    size: str
    checksum: str


SOURCES = {
    "string": PublicSource(
        "https://stringdb-downloads.org/download",
        "CC BY 4.0",
        "human 80 MB of links and 7 MB of sequences; all species 138 GB of links",
        "none",
    ),
    "tree-of-life": PublicSource(
        "https://snap.stanford.edu/tree-of-life/data.html",
        "none stated that we know of; cite Zitnik et al. 2019, PNAS 116 (10)",
        "shown before the download",
        "none",
    ),
    "ogb-mag": PublicSource(
        "https://snap.stanford.edu/ogb/data/nodeproppred/mag.zip",
        "ODC-BY",
        "shown before the download",
        "none",
    ),
    "openalex": PublicSource(
        "https://openalex.s3.amazonaws.com/data/jsonl/works/manifest.json",
        "CC0",
        "about 330 GB for all entities, works the most of it",
        "lengths",
    ),
    "pubmed": PublicSource(
        "https://ftp.ncbi.nlm.nih.gov/pubmed/baseline",
        "NLM's terms, no charge; some abstracts are under copyright",
        "about 20 MB a file, over 1,200 files",
        "MD5",
    ),
}
"""Sources by name. Sizes are those of 2026."""

STRING_10_5 = "https://version-10-5.string-db.org/download/protein.sequences.v10.5.fa.gz"
"""Sequences of the version of STRING that SNAP's Tree of life was made from."""

PUBMED_UPDATES = "https://ftp.ncbi.nlm.nih.gov/pubmed/updatefiles"


def mirrored(address: str, mirror: str) -> str:
    """Return an address at a mirror, or as it is if ``mirror`` is empty."""
    if not mirror:
        return address
    return mirror.rstrip("/") + urlsplit(address).path


def string_files(
    http: RetryingHttp, mirror: str, taxids: Sequence[str], version: str, *, physical: bool
) -> list[RemoteFile]:
    """Return STRING's links and sequences of some species, or of all in two files.

    Args:
        http: the client, which requests the sizes.
        mirror: as in ``mirrored``.
        taxids: species; empty: all.
        version: version of STRING, such as ``12.0``.
        physical: links of the physical subnetwork only.

    Raises:
        DataError: if a file does not exist.
    """
    base = mirrored(SOURCES["string"].address, mirror)
    kinds = {
        "protein.physical.links" if physical else "protein.links": "txt.gz",
        "protein.sequences": "fa.gz",
    }
    names = []
    for kind, ending in kinds.items():
        folder = f"{kind}.v{version}"
        if taxids:
            names += [f"{folder}/{taxid}.{folder}.{ending}" for taxid in taxids]
        else:
            names.append(f"{folder}.{ending}")
    return [_file(http, f"{base}/{name}") for name in names]


def tree_of_life_files(http: RetryingHttp, mirror: str) -> list[RemoteFile]:
    """Return the interactomes and species that SNAP's page links, and STRING 10.5's sequences.

    Raises:
        DataError: if the page has no link to one of them.
    """
    page = mirrored(SOURCES["tree-of-life"].address, mirror)
    links = _links(http.read(page, MAX_INDEX_BYTES))
    files = []
    for pattern in (r"treeoflife\.interactomes[\w.]*\.zip", r"treeoflife\.species\.tsv"):
        matching = [link for link in links if re.fullmatch(pattern, link.rpartition("/")[2])]
        if not matching:
            raise DataError(
                f"{page}: links no file {pattern!r}. Has the page moved? It links "
                f"{', '.join(links[:20]) or 'nothing'}"
            )
        target = urljoin(SOURCES["tree-of-life"].address, matching[0])
        files.append(_file(http, mirrored(target, mirror)))
    return [*files, _file(http, mirrored(STRING_10_5, mirror))]


def ogb_mag_files(http: RetryingHttp, mirror: str) -> list[RemoteFile]:
    """Return the archive of OGB-MAG."""
    return [_file(http, mirrored(SOURCES["ogb-mag"].address, mirror))]


def openalex_files(
    http: RetryingHttp, mirror: str, *, since: str = "", limit: int | None = None
) -> list[RemoteFile]:
    """Return the files of OpenAlex's works, newest first, from the manifest of the snapshot.

    Args:
        http: the client.
        mirror: as ``mirrored``.
        since: only works that changed on or after this day, YYYY-MM-DD.
        limit: maximum number of files.

    Raises:
        ConfigError: if ``since`` is not such a day.
        DataError: if the manifest is malformed, or lists no such file.
    """
    if since:
        _check_day(since)
    url = mirrored(SOURCES["openalex"].address, mirror)
    root = url.removesuffix(urlsplit(SOURCES["openalex"].address).path)
    try:
        manifest = json.loads(http.read(url, MAX_INDEX_BYTES))
        # "entries" in snapshots before 2026.
        entries = manifest["files"] if "files" in manifest else manifest["entries"]
        listed = [_entry(entry) for entry in entries]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise DataError(
            f"{url}: is no manifest of works, want a JSON object with 'files', each with a url and "
            "meta.content_length"
        ) from None
    chosen = sorted((entry for entry in listed if entry[0] >= since), reverse=True)[:limit]
    if not chosen:
        newest = max((day for day, _, _ in listed), default="nothing")
        raise DataError(
            f"{url}: lists {len(listed):,} files, none of works that changed since "
            f"{since or 'ever'}; the newest is of {newest}"
        )
    return [
        RemoteFile(f"{root}/{key}", key[key.index("works/") :], num_bytes)
        for _, key, num_bytes in chosen
    ]


def _check_day(since: str) -> None:
    """Refuse anything but a day in the form YYYY-MM-DD, since days are compared as texts."""
    try:
        is_day = date.fromisoformat(since).isoformat() == since
    except ValueError:
        is_day = False
    if not is_day:
        raise ConfigError(f"--since {since}: want a day as YYYY-MM-DD, such as 2026-01-05")


def _entry(entry: Any) -> tuple[str, str, int]:
    """Return day, key in the bucket and bytes of a file of a manifest.

    Raises:
        ValueError: for anything but a file of works in OpenAlex's bucket.
    """
    key = str(entry["url"]).removeprefix(BUCKET)
    match = PARTITION.fullmatch(key)
    if match is None or ".." in key:
        raise ValueError(key)
    return match[1], key, int(entry["meta"]["content_length"])


def pubmed_files(
    http: RetryingHttp,
    mirror: str,
    *,
    updates: bool = False,
    first: int | None = None,
    last: int | None = None,
) -> list[RemoteFile]:
    """Return PubMed's baseline or update files in order of name, from the index that lists them.

    Args:
        http: the client, which asks for the sizes.
        mirror: as ``mirrored``.
        updates: the daily updates instead of the year's baseline.
        first: lowest file number (1 for ``pubmed25n0001.xml.gz``).
        last: highest file number, inclusive.

    Raises:
        DataError: if the index lists no such file.
    """
    url = mirrored(PUBMED_UPDATES if updates else SOURCES["pubmed"].address, mirror) + "/"
    # Links out of the folder do not match.
    number_by_name = {
        link: int(match[1])
        for link in _links(http.read(url, MAX_INDEX_BYTES))
        if (match := PUBMED_NAME.fullmatch(link))
    }
    if not number_by_name:
        raise DataError(
            f"{url}: lists no file such as pubmed25n0001.xml.gz. Is this PubMed's baseline or "
            "updatefiles?"
        )
    low = 0 if first is None else first
    high = max(number_by_name.values()) if last is None else last
    names = sorted(name for name, number in number_by_name.items() if low <= number <= high)
    if not names:
        numbers = sorted(number_by_name.values())
        raise DataError(
            f"{url}: lists the numbers {numbers[0]} to {numbers[-1]}, none from first={low} to "
            f"last={high}"
        )
    # One request a file: the sizes of the index are rounded.
    with ThreadPoolExecutor(NUM_SIZE_REQUESTS) as pool:
        sizes = list(pool.map(lambda name: http.num_bytes(url + name), names))
    return [
        RemoteFile(url + name, name, num_bytes, f"{url}{name}.md5")
        for name, num_bytes in zip(names, sizes, strict=True)
    ]


def _file(http: RetryingHttp, url: str) -> RemoteFile:
    return RemoteFile(url, urlsplit(url).path.rpartition("/")[2], http.num_bytes(url))


def _links(page: bytes) -> list[str]:
    return LINK.findall(page.decode("utf-8", "replace"))
