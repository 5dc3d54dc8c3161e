"""Pages of the site that lie outside ``docs/``, and links between them and the pages inside.

On the site, ``docs/x.md`` is ``x.md``, the README is ``index.md``, and any other page of the
repository is ``repository/`` and its path. A link to a file that is no page becomes its text.
Formulas (``math`` fences, as on GitHub) become MathML, which browsers show without a script.
"""

import os.path
import re
from pathlib import Path, PurePosixPath

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]

OUTSIDE = (
    "README.md",
    "CHANGELOG.md",
    "benchmarks/RESULTS.md",
    *(str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("raybio/methods/*/README.md"))),
)
"""Pages outside ``docs/``, by their path in the repository."""

API = """# Python

::: raybio.train
::: raybio.load
::: raybio.open_index
::: raybio.open_store
::: raybio.runtime.train.Run
::: raybio.runtime.run.result.Result
::: raybio.core.final_report.FinalReport
::: raybio.runtime.load.TrainedModel
::: raybio.runtime.search.index.EmbeddingIndex
::: raybio.methods.sppt.graph_store.GraphStore
"""

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")

FORMULA = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside ``docs/``, and the page of the Python interface."""
    for path in OUTSIDE:
        content = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, _site_path(path), content=content))
    files.append(File.generated(config, "api.md", content=API))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Show formulas, and let links lead to pages of the site."""
    here = PurePosixPath(page.file.src_uri)
    by_site_path = {_site_path(path): path for path in OUTSIDE}
    source = by_site_path.get(str(here), f"docs/{here}")

    def relinked(match: re.Match[str]) -> str:
        image, text, target, fragment = match.groups()
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        if path not in OUTSIDE and not path.startswith("docs/"):
            return text
        link = os.path.relpath(_site_path(path), here.parent)
        return f"{image}[{text}]({link}{fragment or ''})"

    return LINK.sub(relinked, FORMULA.sub(_mathml, markdown))


def _mathml(formula: re.Match[str]) -> str:
    return f"<div>{convert(formula[1], display='block')}</div>"


def _site_path(path: str) -> str:
    """Return where a file of the repository lies on the site."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repository/{path}"
