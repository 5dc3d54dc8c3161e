"""The map in a real browser, at the widths of a desktop and of a phone."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.explore.test_explore import run, write

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

LISTEN = """<script>
const errors = [];
addEventListener("error", (event) => errors.push(event.message));
addEventListener("unhandledrejection", (event) => errors.push(String(event.reason)));
console.error = (...words) => errors.push(words.join(" "));
</script>"""

LOOK = """<script>
addEventListener("load", () => setTimeout(() => {
  const canvas = document.getElementById("canvas");
  const search = document.getElementById("search");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const colors = new Set();
  for (let place = 0; place < data.length; place += 4) {
    if (data[place + 3] > 0) colors.add(data.slice(place, place + 3).join());
  }
  search.value = "point-17";
  search.dispatchEvent(new Event("input"));
  search.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
  const seen = {
    errors,
    width: innerWidth,
    overflow: document.documentElement.scrollWidth - innerWidth,
    colors: colors.size,
    results: document.getElementById("results").innerText,
    point: document.getElementById("point").innerText,
  };
  document.documentElement.setAttribute("data-seen", JSON.stringify(seen));
}, 500));
</script>"""

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
def test_points_are_drawn_and_found_without_an_error(width: int, tmp_path: Path) -> None:
    """The page lies in a frame: a window of a browser has a least width."""
    rng = np.random.default_rng(0)
    keys = [f"point-{number}" for number in range(60)]
    table = write(tmp_path / "embeddings.parquet", keys, rng.normal(size=(60, 8)).astype("f4"))
    labels = tmp_path / "labels.tsv"
    labels.write_text(
        "id\tlabel\n" + "".join(f"{key}\tclass {number % 3}\n" for number, key in enumerate(keys))
    )
    run(table, "--labels", labels, "--out", tmp_path / "map.html")
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
    assert seen["colors"] > 3  # three classes and the background
    assert seen["results"].splitlines()[0] == "point-17"
    assert "point-17" in seen["point"]
