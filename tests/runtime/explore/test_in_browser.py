"""The map in a real browser, at the widths of a desktop and of a phone."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from raybio.methods.sppt.proteins.store import ProteinStore
from tests.runtime.explore.test_explore import residues, run, sorted_cosines, write

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

CLICKED = 5
"""Row of the point that is clicked."""

LISTEN = """<script>
const errors = [];
addEventListener("error", (event) => errors.push(event.message));
addEventListener("unhandledrejection", (event) => errors.push(String(event.reason)));
console.error = (...words) => errors.push(words.join(" "));
</script>"""

LOOK = """<script>
const CLICKED = @@CLICKED@@;
addEventListener("load", () => setTimeout(() => {
  const canvas = document.getElementById("canvas");
  const search = document.getElementById("search");
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  const colors = new Set();
  for (let first = 0; first < pixels.length; first += 4) {
    if (pixels[first + 3] > 0) colors.add(pixels.slice(first, first + 3).join());
  }
  search.value = data.keys[17];
  search.dispatchEvent(new Event("input"));
  search.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
  const found = document.getElementById("point").innerText;
  // Events of a script belong to no real pointer that could be captured.
  canvas.setPointerCapture = () => {};
  document.getElementById("reset").click();
  const box = canvas.getBoundingClientRect();
  const place = { clientX: box.left + screenX(CLICKED), clientY: box.top + screenY(CLICKED) };
  const mouse = { ...place, pointerId: 1, pointerType: "mouse", bubbles: true, cancelable: true };
  canvas.dispatchEvent(new PointerEvent("pointerdown", mouse));
  canvas.dispatchEvent(new PointerEvent("pointerup", mouse));
  const fitted = view.scale;
  canvas.dispatchEvent(new WheelEvent("wheel", { ...place, deltaY: -120, cancelable: true }));
  const seen = {
    errors,
    found,
    zoom: view.scale / fitted,
    moved: [box.left + screenX(CLICKED) - place.clientX, box.top + screenY(CLICKED) - place.clientY],
    width: innerWidth,
    overflow: document.documentElement.scrollWidth - innerWidth,
    colors: colors.size,
    results: document.getElementById("results").innerText,
    point: document.getElementById("point").innerText,
  };
  document.documentElement.setAttribute("data-seen", JSON.stringify(seen));
}, 500));
</script>""".replace("@@CLICKED@@", str(CLICKED))

FRAME = """<body style="margin:0"><iframe src="{name}" style="border:0;width:{width}px;height:800px"></iframe>
<script>
addEventListener("load", () => setInterval(() => {{
  const seen = frames[0].document.documentElement.getAttribute("data-seen");
  if (seen) document.documentElement.setAttribute("data-seen", seen);
}}, 100));
</script>"""


@pytest.mark.nightly
@pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on PATH")
@pytest.mark.parametrize("width", [1280, 390])
def test_points_are_drawn_found_and_clicked_without_an_error(
    width: int, tiny_store: ProteinStore, tmp_path: Path
) -> None:
    """The page lies in a frame: a window of a browser has a least width."""
    keys = tiny_store.keys.to_pylist()
    vectors = np.random.default_rng(0).normal(size=(len(keys), 8)).astype("f4")
    table = write(tmp_path / "embeddings.parquet", keys, vectors)
    run(table, "--store", tiny_store.path, "--out", tmp_path / "map.html")
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    assert page.count("<head>") == 1 and page.count("</body>") == 1
    page = page.replace("<head>", f"<head>{LISTEN}").replace("</body>", f"{LOOK}</body>")
    (tmp_path / "watched.html").write_text(page, encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(name="watched.html", width=width), encoding="utf-8")
    command = [
        str(BROWSER),
        "--headless",
        "--no-sandbox",  # Chromium of a container runs as root
        "--disable-gpu",
        "--allow-file-access-from-files",
        "--window-size=1280,900",
        "--virtual-time-budget=5000",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--dump-dom",
        frame.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    found = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert found is not None, (done.returncode, done.stdout[-1000:], done.stderr[-2000:])
    seen = json.loads(html.unescape(found[1]))
    assert seen["errors"] == []
    assert seen["width"] == width and seen["overflow"] <= 0  # a scroll bar is no overflow
    assert seen["colors"] >= 2  # one a species
    assert seen["results"].splitlines()[0] == keys[17]
    assert keys[17] in seen["found"]
    # The click: id, text, nearest neighbors, links of training, held-out links.
    clicked = seen["point"]
    assert clicked.splitlines()[0] == keys[CLICKED]
    assert residues(tiny_store, CLICKED) in clicked
    nearest, _ = sorted_cosines(vectors, CLICKED)
    graph = tiny_store.graph
    linked = [row for row in range(len(keys)) if graph.has_edge(CLICKED, row)]
    assert f"{len(linked)} link" in clicked
    for row in [*nearest[:10], *linked]:
        assert keys[row] in clicked.split()
    # The wheel zooms in around its place.
    assert seen["zoom"] == pytest.approx(np.exp(0.0022 * 120))
    # Events have whole pixels, so the place is up to one beside the point, which the zoom spreads.
    assert seen["moved"] == pytest.approx([0, 0], abs=np.exp(0.0022 * 120) - 1)
