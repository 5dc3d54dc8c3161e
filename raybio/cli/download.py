"""The commands ``raybio prepare download SOURCE``: public data, from their sites or a mirror."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from raybio.core.errors import ConfigError
from raybio.core.text import count_of, size_text
from raybio.store.benchmark_data import BY_HAND, benchmark_sets
from raybio.store.download import RemoteFile, download_files
from raybio.store.public_data import (
    SOURCES,
    ogb_mag_files,
    openalex_files,
    pubmed_files,
    string_files,
    tree_of_life_files,
)
from raybio.store.retrying_http import RetryingHttp

downloads = typer.Typer(no_args_is_help=True)

Out = Annotated[Path, typer.Option(help="folder of the files")]
Url = Annotated[
    str, typer.Option(help="a mirror: replaces https://HOST of the addresses, keeps their paths")
]


SECONDS_BETWEEN_LINES = 30.0
"""Smallest time between two lines about one file: the largest take hours."""


@downloads.command()
def string(
    out: Out,
    taxid: Annotated[
        list[str] | None,
        typer.Option(help="NCBI taxid of a species (E. coli K-12 MG1655: 511145); repeatable"),
    ] = None,
    all_species: Annotated[
        bool, typer.Option("--all-species", help="all species, in one file of links")
    ] = False,
    physical: Annotated[
        bool, typer.Option("--physical", help="links of the physical subnetwork only")
    ] = False,
    version: Annotated[str, typer.Option(help="version of STRING")] = "12.0",
    url: Url = "",
) -> None:
    """STRING: scored links of proteins, and their sequences.

    Example: raybio prepare download string --taxid 511145 --out string/
    """
    taxids = list(dict.fromkeys(taxid or ()))
    wrong = [text for text in taxids if not (text.isascii() and text.isdigit())]
    if wrong:
        raise ConfigError(f"--taxid {wrong[0]!r}: want a number, such as 9606 for human")
    if bool(taxids) == all_species:
        raise ConfigError("want --taxid for each species, or --all-species (138 GB of links)")

    files = string_files(RetryingHttp(), url, taxids, version, physical=physical)
    _download("string", files, out)
    links = "protein.physical.links" if physical else "protein.links"
    _show_next(
        f"raybio prepare proteins --edges '{out}/*{links}*.gz' "
        f"--proteins '{out}/*protein.sequences*.gz' --min-score 700 --out STORE"
    )


@downloads.command()
def tree_of_life(out: Out, url: Url = "") -> None:
    """SNAP's Tree of life: interactomes of 1,840 species; their sequences from STRING 10.5.

    Example: raybio prepare download tree-of-life --out tree_of_life/
    """
    archive, species, sequences = _download(
        "tree-of-life", tree_of_life_files(RetryingHttp(), url), out
    )
    _show_next(f"unzip {archive} -d {out}")
    _show_next(
        f"raybio prepare proteins --interactomes {out} --species {species} "
        f"--sequences {sequences} --out STORE"
    )


@downloads.command()
def ogb_mag(out: Out, url: Url = "") -> None:
    """OGB-MAG: citations of 736,389 papers. OpenAlex has their abstracts.

    Example: raybio prepare download ogb-mag --out ogb/
    """
    (archive,) = _download("ogb-mag", ogb_mag_files(RetryingHttp(), url), out)
    _show_next(f"unzip {archive} -d {out}")
    _show_next(
        f"raybio prepare articles --mag {out / 'mag'} "
        "--abstracts 'OPENALEX/works/*/*.gz' --out STORE"
    )


@downloads.command()
def openalex(
    out: Out,
    since: Annotated[
        str, typer.Option(help="only works that changed on or after this day, YYYY-MM-DD")
    ] = "",
    limit: Annotated[
        int | None, typer.Option(min=1, help="most files, newest first: for a try")
    ] = None,
    url: Url = "",
) -> None:
    """OpenAlex: works with inverted abstracts, citations, dates and MAG ids.

    Example: raybio prepare download openalex --limit 10 --out openalex/
    """
    files = openalex_files(RetryingHttp(), url, since=since, limit=limit)
    _download("openalex", files, out)
    _show_next(f"raybio prepare articles --openalex '{out}/works/*/*.gz' --out STORE")


@downloads.command()
def pubmed(
    out: Out,
    updates: Annotated[
        bool, typer.Option("--updates", help="daily updates instead of the year's baseline")
    ] = False,
    first: Annotated[int | None, typer.Option(min=0, help="number of the first file")] = None,
    last: Annotated[int | None, typer.Option(min=0, help="number of the last file")] = None,
    url: Url = "",
) -> None:
    """PubMed's baseline or update files.

    Example: raybio prepare download pubmed --first 1 --last 10 --out baseline/
    """
    if first is not None and last is not None and first > last:
        raise ConfigError(
            f"--first {first} comes after --last {last}; want the first number and then the last"
        )

    files = pubmed_files(RetryingHttp(), url, updates=updates, first=first, last=last)
    _download("pubmed", files, out)
    # Updates alone would lack the articles that they delete, and most that they revise.
    baseline = "--input 'BASELINE/*.xml.gz' " if updates else ""
    _show_next(f"raybio prepare medline {baseline}--input '{out}/*.xml.gz' --workers N --out STORE")


@downloads.command()
def benchmark_data(
    out: Out,
    chosen: Annotated[
        list[str] | None,
        typer.Option("--set", help="a set, such as biored; repeatable (default: all)"),
    ] = None,
    url: Url = "",
) -> None:
    """Public sets of the suites of `raybio benchmark`.

    Example: raybio prepare download benchmark-data --out public/
    """
    sets = benchmark_sets(chosen or (), url)
    for each in sets:
        print(f"{each.name}: {_total(each.files)} from {each.files[0].url}")
        print(f"    license: {each.license}")
    _fetch([file for each in sets for file in each.files], out)
    for each in sets:
        each.unpack(out)
    if not chosen:
        for name, content in BY_HAND.items():
            print(f"by hand: {out / name}: {content}")
    _show_next(f"raybio benchmark RUN --suite biomedical --data {out} --out report/")


def _download(name: str, files: Sequence[RemoteFile], out: Path) -> list[Path]:
    """Show the source and its license, and download the files."""
    source = SOURCES[name]
    print(f"{_total(files)} from {files[0].url}")
    print(f"license: {source.license}; published checksums: {source.checksum}")
    return _fetch(files, out)


def _total(files: Sequence[RemoteFile]) -> str:
    """Return the number and total size of files as text."""
    sizes = [file.num_bytes for file in files if file.num_bytes is not None]
    total = size_text(sum(sizes)) if len(sizes) == len(files) else "sizes not announced"
    return f"{count_of(len(files), 'file')} ({total})"


def _fetch(files: Sequence[RemoteFile], out: Path) -> list[Path]:
    """Download files and show progress."""
    size_by_path = {file.path: file.num_bytes for file in files}

    def show(path: str, num_done: int, num_files: int) -> None:
        size = size_by_path[path]
        print(f"{num_done:,}/{num_files:,} {path}" + (f" ({size_text(size)})" if size else ""))

    return download_files(RetryingHttp(progress=_BytesShown()), files, out, show)


class _BytesShown:
    """Prints how much of a file is here, at most once in ``SECONDS_BETWEEN_LINES``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._shown = clock()

    def __call__(self, part: Path, num_here: int, num_all: int | None) -> None:
        """Show the bytes that are in ``part``, of all bytes of the file."""
        now = self._clock()
        if now - self._shown < SECONDS_BETWEEN_LINES:
            return
        self._shown = now
        whole = f" of {size_text(num_all)}" if num_all is not None else ""
        print(f"    {part.stem}: {size_text(num_here)}{whole}", flush=True)


def _show_next(command: str) -> None:
    print(f"next: {command}")
