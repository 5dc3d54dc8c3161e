"""P20: citations of a MEDLINE file, beside pubmed_parser: time, and peak memory of processes of their own.

    pip install --target FOLDER --no-deps pubmed_parser unidecode
    PYTHONPATH=.:FOLDER python benchmarks/p20_medline.py [--citations 10000]

The peer is installed beside the environment, as its own requirements do not go with ours. The file repeats the real
citations of ../shared/data/medline_xml in the layout of today's baseline.
"""

import argparse
import copy
import gzip
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _measure import NUM_PAIRS, SMALL, compare, not_here, peak_growth_bytes, report
from lxml import etree

from raybio.methods.biostransformers.formats.medline import read_medline
from raybio.store.quarantine import Quarantine

try:
    import pubmed_parser
except ImportError:
    not_here(
        "pubmed_parser is not installed. Run pip install --target FOLDER --no-deps pubmed_parser unidecode, and this "
        "with PYTHONPATH=.:FOLDER"
    )

GOAL_BYTES = 32 << 20
REAL = Path(__file__).resolve().parents[2] / "shared" / "data" / "medline_xml"
HEAD = (
    '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE PubmedArticleSet PUBLIC "-//NLM//DTD PubMedArticle, '
    '1st January 2025//EN" "https://dtd.nlm.nih.gov/ncbi/pubmed/out/pubmed_250101.dtd">\n<PubmedArticleSet>\n'
)


def real_articles() -> Iterator[str]:
    """PubmedArticle elements as text; the citations of the old layout are wrapped."""
    for path in sorted(REAL.glob("*.xml.gz")):
        with gzip.open(path) as file:
            root = etree.parse(file).getroot()
        for child in root.iterchildren("PubmedArticle", "MedlineCitation"):
            article = child
            if child.tag == "MedlineCitation":
                article = etree.Element("PubmedArticle")
                article.append(copy.deepcopy(child))
            article.tail = "\n"
            yield etree.tostring(article, encoding="unicode")


def write_file(path: Path, num_citations: int) -> None:
    articles = list(real_articles())
    if not articles:
        not_here(
            f"no files in {REAL}: this row needs the folder of real data beside the repository"
        )
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=6) as file:
        file.write(HEAD)
        for number in range(num_citations):
            pmid = f">{number + 1}</PMID>"
            file.write(re.sub(r">\d+</PMID>", pmid, articles[number % len(articles)], count=1))
        file.write("</PubmedArticleSet>\n")


def ours(path: Path) -> int:
    return sum(batch.articles.num_rows for batch in read_medline(path, Quarantine()))


def peer(path: Path) -> int:
    return sum(1 for _ in pubmed_parser.parse_medline_xml(str(path)))


def peer_list(path: Path) -> int:
    return len(list(pubmed_parser.parse_medline_xml(str(path))))


def check_equal(path: Path) -> str:
    """PMID, title, abstract and MeSH names of both, white space, brackets and the colons of labels aside.

    Two things the peer loses, which are counted: the label of an abstract that is one section, and text in markup
    that is nested.
    """
    rows = [row for batch in read_medline(path, Quarantine()) for row in batch.articles.to_pylist()]
    num_labels_lost = 0
    for row, theirs in zip(rows, pubmed_parser.parse_medline_xml(str(path)), strict=True):
        assert row["pmid"] == int(theirs["pmid"])
        assert squeezed(row["title"]).strip("[].") == squeezed(theirs["title"]).strip("[]."), row[
            "pmid"
        ]
        mesh = "; ".join(f"{heading['ui']}:{heading['name']}" for heading in row["mesh"])
        assert mesh == theirs["mesh_terms"], row["pmid"]
        own, other = squeezed(row["abstract"]), squeezed(theirs["abstract"])
        if own != other:
            label = row["abstract"].partition(": ")[0]
            assert own == squeezed(label) + other, row["pmid"]
            num_labels_lost += 1
    return f"equal output ({num_labels_lost} labels that the peer drops aside)"


def squeezed(text: str) -> str:
    return "".join(text.replace(":", "").split())


def growth_bytes(who: str, path: Path, warm_up: Path) -> int:
    """How far the parsing raised the peak memory of a process above what imports and a small file took."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        __file__,
        "--grow",
        who,
        "--files",
        str(warm_up),
        str(path),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--citations", type=int, default=200 if SMALL else 10_000)
    parser.add_argument("--grow", choices=["ours", "peer", "peer_list"], help=argparse.SUPPRESS)
    parser.add_argument("--files", type=Path, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.grow:
        parse = {"ours": ours, "peer": peer, "peer_list": peer_list}[arguments.grow]
        parse(arguments.files[0])
        print(json.dumps(peak_growth_bytes(lambda: parse(arguments.files[1]))))
        return
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "pubmed25n0001.xml.gz"
        small = Path(temporary) / "small.xml.gz"
        write_file(path, arguments.citations)
        write_file(small, 20)
        version = f"pubmed_parser {getattr(pubmed_parser, '__version__', '')}".strip()
        note = f"{arguments.citations:,} real citations, {path.stat().st_size >> 20} MiB gz; {check_equal(path)}"
        compare(
            "P20",
            f"{version} parse_medline_xml",
            lambda: ours(path),
            lambda: peer(path),
            pairs=NUM_PAIRS,
            note=note,
        )
        grown: dict[str, Any] = {
            who: growth_bytes(who, path, small) for who in ("ours", "peer", "peer_list")
        }
        for who, how in (("peer", "article by article"), ("peer_list", "list of its articles")):
            ratio = grown[who] / max(grown["ours"], 1 << 20)  # less than a MiB is noise
            sizes = f"growth of peak memory: {grown[who] / 2**20:.0f} MiB, ours {grown['ours'] / 2**20:.0f} MiB"
            report("P20", f"{version}, memory, {how}", ratio, ratio, sizes)
        ratio = GOAL_BYTES / max(grown["ours"], 1 << 20)
        report(
            "P20", "goal: 32 MiB of peak memory", ratio, ratio, f"{grown['ours'] / 2**20:.0f} MiB"
        )


if __name__ == "__main__":
    main()
