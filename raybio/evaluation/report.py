"""A report as Markdown and as one HTML file with its pictures inside, which a phone can show."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raybio.core.markdown import markdown_table

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 0.8rem; color: #111;
  background: #fff; overflow-wrap: anywhere }
h1 { font-size: 1.5rem } h2 { font-size: 1.2rem; border-bottom: 1px solid #999; margin-top: 2rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: 0.9rem }
th, td { border: 1px solid #999; padding: 0.25rem 0.5rem; text-align: right; white-space: nowrap }
td { background: #fff } th { background: #eee }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0 }
.facts td { text-align: left; white-space: normal }
.wide img { min-width: 34rem }
img { max-width: 100%; height: auto; display: block; margin: 0.8rem 0 }
"""


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        heading: above it.
        text: paragraphs.
        table: header and rows; empty for none.
        pictures: PNG files and what they show.
    """

    heading: str
    text: Sequence[str] = ()
    table: Sequence[Sequence[str]] = ()
    pictures: Sequence[tuple[Path, str]] = field(default=())


def write_report(title: str, sections: Sequence[Section], folder: Path) -> list[Path]:
    """Write ``report.md``, which names its pictures, and ``report.html``, which holds them; returns both."""
    files = [folder / "report.md", folder / "report.html"]
    files[0].write_text(_markdown(title, sections, folder), encoding="utf-8")
    files[1].write_text(_page(title, sections), encoding="utf-8")
    return files


def _markdown(title: str, sections: Sequence[Section], folder: Path) -> str:
    parts = [f"# {title}"]
    for one in sections:
        parts += [f"## {one.heading}", *one.text]
        if one.table:
            parts.append(markdown_table(one.table[0], one.table[1:]))
        parts += [
            f"![{shows}]({path.relative_to(folder).as_posix()})" for path, shows in one.pictures
        ]
    return "\n\n".join(parts) + "\n"


def _page(title: str, sections: Sequence[Section]) -> str:
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for one in sections:
        parts.append(f"<h2>{html.escape(one.heading)}</h2>")
        parts += [f"<p>{html.escape(text)}</p>" for text in one.text]
        if one.table:
            parts.append(_table(one.table))
        for path, shows in one.pictures:
            data = base64.b64encode(path.read_bytes()).decode()
            picture = f'<img alt="{html.escape(shows)}" src="data:image/png;base64,{data}">'
            parts.append(f'<div class="wide">{picture}</div>')
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>"
    )
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _table(table: Sequence[Sequence[str]]) -> str:
    # Without a header it is a list of facts: words, not numbers to be compared.
    has_header = any(table[0])
    rows = [
        "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
        for tag, cells in [
            *([("th", table[0])] if has_header else []),
            *(("td", row) for row in table[1:]),
        ]
    ]
    kind = "wide" if has_header else "facts"
    return f'<div class="{kind}"><table>' + "\n".join(rows) + "</table></div>"
