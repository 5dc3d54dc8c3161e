"""P48: the first step of a node with an empty cache, of a store of 1 GiB in a bucket, beside the same store on its disk.

Each side opens the store, builds the demo's encoder, and makes one step, without Ray, whose start both would have. Each
verifies every file, since the cache that says so is empty.
The server is a process of its own on this machine that answers S3's reads from the store's folder: moto reads a whole
object for each range of it. So the network's speed is not in the figure, and its own cost is.
"""

import hashlib
import http.server
import multiprocessing
import os
import re
import shutil
import tempfile
from http import HTTPStatus
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from _measure import NUM_PAIRS, SMALL, interleaved, report, seconds_of
from p15_first_step import SETTINGS

from raybio.core.config import override_all
from raybio.core.location import BucketPath, Location
from raybio.methods import METHODS
from raybio.methods.sppt.graph.csr import Graph
from raybio.methods.sppt.graph_store import LinkedRows
from raybio.methods.sppt.proteins.store import ProteinStore, commit_proteins
from raybio.store.ragged import Ragged
from raybio.store.remote_store import fetch_store
from raybio.store.store import open_store
from raybio.store.writer import Draft
from raybio.training.loop import fit
from tests.s3 import ENVIRONMENT

NUM_PROTEINS = 512
LENGTH = 200 if SMALL else 1 << 21
"""Residues of a protein: a few long ones make a large store, and are cropped like others."""

BUCKET = "bucket"


def large_proteins(folder: Path) -> ProteinStore:
    """Write a store of 1 GiB of random proteins and their links."""
    rng = np.random.default_rng(0)
    letters = np.frombuffer(b"ACDEFGHIKLMNPQRSTVWY", dtype=np.uint8)
    residue_T = rng.integers(0, len(letters), NUM_PROTEINS * LENGTH, dtype=np.uint8)
    np.take(letters, residue_T, out=residue_T, mode="clip")
    group_N = np.zeros(NUM_PROTEINS, dtype=np.int32)
    edge_E2 = np.sort(rng.integers(0, NUM_PROTEINS, (8 * NUM_PROTEINS, 2)), axis=1)
    edge_E2 = np.unique(edge_E2[edge_E2[:, 0] < edge_E2[:, 1]], axis=0)
    rows = LinkedRows(
        keys=pa.array([f"p{number}" for number in range(NUM_PROTEINS)]),
        content=Ragged(residue_T, np.arange(NUM_PROTEINS + 1) * LENGTH),
        group_N=group_N,
        group_names=["9606"],
        group_labels=["human"],
        graph=Graph.from_edges(edge_E2[8:], NUM_PROTEINS, group_N),
        heldout_E2=edge_E2[:8],
        cluster_N=np.arange(NUM_PROTEINS),
    )
    with Draft(folder / "store") as draft:
        provenance = {"sources": {}, "parameters": {}, "quarantine": {}}
        return commit_proteins(draft, rows, provenance)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers HEAD and GET, also of a range, from the files of a folder."""

    protocol_version = "HTTP/1.1"
    folder = Path()

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(with_content=False)

    def do_GET(self) -> None:
        self.answer(with_content=True)

    def answer(self, *, with_content: bool) -> None:
        file = self.folder / self.path.removeprefix(f"/{BUCKET}/")
        if not file.is_file():
            self.send_response(HTTPStatus.NOT_FOUND)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        size = file.stat().st_size
        first, last = 0, size - 1
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        self.send_response(HTTPStatus.PARTIAL_CONTENT if wanted else HTTPStatus.OK)
        if wanted:
            first, last = int(wanted[1]), min(int(wanted[2]), last)
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.send_header("ETag", f'"{hashlib.md5(self.path.encode()).hexdigest()}"')
        self.send_header("Last-Modified", self.date_time_string(file.stat().st_mtime))
        self.end_headers()
        if with_content:
            with file.open("rb") as content:
                content.seek(first)
                self.wfile.write(content.read(last + 1 - first))


def serve(folder: Path, pipe: Connection) -> None:
    Handler.folder = folder
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        pipe.send(server.server_port)
        server.serve_forever()


def measure(folder: Path) -> None:
    store = large_proteins(folder)
    num_bytes = sum(facts["bytes"] for facts in store.manifest["files"].values())
    address = BucketPath("s3", BUCKET) / "store"
    method = METHODS["sppt_protein"]
    config = override_all(method.demo, SETTINGS)

    def empty_cache() -> None:
        shutil.rmtree(folder / "cache", ignore_errors=True)

    def first_step(where: Location) -> None:
        empty_cache()
        open_store(where, ProteinStore, verify=True)
        reports = fit(method.build(config, where), config)
        next(report for report in reports if report.step == 1)

    sides = [lambda: first_step(address), lambda: first_step(store.path)]
    times = interleaved(sides, NUM_PAIRS)
    fetching = []
    verifying = []
    for _ in range(NUM_PAIRS):
        empty_cache()
        fetching.append(seconds_of(lambda: fetch_store(address, report=lambda line: None)))
        empty_cache()
        verifying.append(seconds_of(lambda: open_store(store.path, verify=True)))
    ratios = [local / remote for remote, local in times]
    remote, local = (median(seconds) for seconds in zip(*times, strict=True))
    note = (
        f"a store of {num_bytes / 2**30:.3g} GiB: {1 / median(ratios):.2f}× the local folder's time "
        f"({remote:.3g} s, {local:.3g} s); fetching and verifying it {num_bytes / median(fetching) / 1e6:.3g} MB/s, "
        f"verifying the local one {num_bytes / median(verifying) / 1e6:.3g} MB/s"
    )
    report("P48", "local folder", median(ratios), min(ratios), note)


def main() -> None:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="rb") as name:
        os.environ["RAYBIO_CACHE"] = f"{name}/cache"
        pipe, end = context.Pipe()
        server = context.Process(target=serve, args=(Path(name), end), daemon=True)
        server.start()
        os.environ |= ENVIRONMENT | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{pipe.recv()}"}
        try:
            measure(Path(name))
        finally:
            server.terminate()
            server.join()


if __name__ == "__main__":
    main()
