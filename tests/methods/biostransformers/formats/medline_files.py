"""Hand-written citations in the layouts of NLM's files."""

import gzip
from pathlib import Path

import pyarrow as pa

DOCTYPE = (
    '<!DOCTYPE PubmedArticleSet PUBLIC "-//NLM//DTD PubMedArticle, 1st January 2025//EN" '
    '"https://dtd.nlm.nih.gov/ncbi/pubmed/out/pubmed_250101.dtd">'
)


def citation(
    pmid=1,
    *,
    version=1,
    title="A title.",
    abstract="<AbstractText>Words.</AbstractText>",
    extra="",
    mesh="",
    **parts,
):
    """Return a MedlineCitation.

    ``None`` omits a part, ``extra`` goes into the article, ``parts`` are whole elements.
    """
    pmid = "" if pmid is None else f'<PMID Version="{version}">{pmid}</PMID>'
    title = "" if title is None else f"<ArticleTitle>{title}</ArticleTitle>"
    abstract = "" if abstract is None else f"<Abstract>{abstract}</Abstract>"
    published = parts.get("published", "<PubDate><Year>2001</Year></PubDate>")
    mesh = f"<MeshHeadingList>{mesh}</MeshHeadingList>" if mesh else ""
    return (
        f'<MedlineCitation Status="MEDLINE" Owner="NLM">\n{pmid}{parts.get("dates", "")}\n<Article>'
        f"<Journal><JournalIssue>{published}</JournalIssue></Journal>{title}\n{abstract}{extra}</Article>\n"
        f"{mesh}{parts.get('after', '')}</MedlineCitation>"
    )


def deletion(*pmids):
    return "".join(
        [
            "<DeleteCitation>",
            *(f'<PMID Version="1">{pmid}</PMID>' for pmid in pmids),
            "</DeleteCitation>",
        ]
    )


def article_set(*citations, others="", doctype=DOCTYPE):
    """A file since 2017, as text."""
    articles = (f"<PubmedArticle>\n{one}\n<PubmedData/></PubmedArticle>\n" for one in citations)
    head = f'<?xml version="1.0" encoding="utf-8"?>\n{doctype}\n'
    return f"{head}<PubmedArticleSet>\n{''.join(articles)}{others}\n</PubmedArticleSet>\n"


def write_medline(path: Path, *citations, others="") -> Path:
    content = article_set(*citations, others=others).encode()
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
    return path


def read_articles(part: str | Path) -> pa.Table:
    """Return the articles of a part."""
    with pa.OSFile(str(part)) as file, pa.ipc.open_stream(file) as reader:
        return reader.read_all()
