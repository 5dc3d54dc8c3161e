"""A report as Markdown and as one HTML file with its pictures inside, which a phone can show."""

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raybio.core.files import replace_text
from raybio.core.markdown import markdown_table

_STYLE = """
body {
  font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 0.8rem;
  color: #111; background: #fff; overflow-wrap: anywhere
}
h1 { font-size: 1.5rem }
h2 { font-size: 1.2rem; border-bottom: 1px solid #999; margin-top: 2rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; font-size: 0.9rem }
th, td { border: 1px solid #999; padding: 0.25rem 0.5rem; text-align: right; white-space: nowrap }
td { background: #fff }
th { background: #eee }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0 }
.facts td { text-align: left; white-space: normal }
.wide img { min-width: 34rem }
img { max-width: 100%; height: auto; display: block; margin: 0.8rem 0 }
"""


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        heading: the title.
        text: paragraphs.
        table: header and rows; empty for none. A table with an empty header is a list of facts.
        pictures: PNG files with their captions.
    """

    heading: str
    text: Sequence[str] = ()
    table: Sequence[Sequence[str]] = ()
    pictures: Sequence[tuple[Path, str]] = ()


def write_report(title: str, sections: Sequence[Section], folder: Path) -> list[Path]:
    """Write ``report.md``, which links its pictures, and ``report.html``, which embeds them.

    Returns:
        Both files.
    """
    markdown = folder / "report.md"
    page = folder / "report.html"
    replace_text(markdown, _markdown(title, sections, folder))
    replace_text(page, _page(title, sections))
    return [markdown, page]


def _markdown(title: str, sections: Sequence[Section], folder: Path) -> str:
    parts = [f"# {title}"]
    for section in sections:
        parts += [f"## {section.heading}", *section.text]
        if section.table:
            parts.append(markdown_table(section.table[0], section.table[1:]))
        for path, caption in section.pictures:
            parts.append(f"![{caption}]({path.relative_to(folder).as_posix()})")
    return "\n\n".join(parts) + "\n"


def _page(title: str, sections: Sequence[Section]) -> str:
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for section in sections:
        parts.append(f"<h2>{html.escape(section.heading)}</h2>")
        parts += [f"<p>{html.escape(text)}</p>" for text in section.text]
        if section.table:
            parts.append(_table(section.table))
        for path, caption in section.pictures:
            data = base64.b64encode(path.read_bytes()).decode()
            picture = f'<img alt="{html.escape(caption)}" src="data:image/png;base64,{data}">'
            parts.append(f'<div class="wide">{picture}</div>')
    head = (
        '<meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>"
    )
    body = "\n".join(parts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'


def _table(table: Sequence[Sequence[str]]) -> str:
    header, *rows = table
    has_header = any(header)
    lines = [_table_row("th", header)] if has_header else []
    lines += [_table_row("td", row) for row in rows]
    # Without a header it is a list of facts: words, not numbers to be compared.
    kind = "wide" if has_header else "facts"
    return f'<div class="{kind}"><table>' + "\n".join(lines) + "</table></div>"


def _table_row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
