"""What Ray Data parses or counts is what one process does."""

import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from raybio.cli.commands.biostransformers import parse_by_ray_data
from raybio.cli.prepare import app
from raybio.core.errors import ClusterError
from raybio.methods.biostransformers.config import ArticleConfig
from raybio.methods.biostransformers.prepare import prepare_medline
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.mtb_mccl.mtb import recurring_pairs as entity_pairs
from raybio.methods.mtb_mccl.mtb.config import EntityPairConfig
from raybio.methods.mtb_mccl.mtb.recurring_pairs import recurring_pairs
from raybio.store.store import open_store
from tests.methods.biostransformers.formats.medline_files import citation, deletion, write_medline

pytestmark = pytest.mark.usefixtures("ray_cluster")
RATS = "<MeshHeading><DescriptorName MajorTopicYN='N'>Rats</DescriptorName></MeshHeading>"


@pytest.mark.parametrize("workers", [2, pytest.param(1, marks=pytest.mark.nightly)])
def test_ray_data_on_one_worker_or_two_gives_the_store_of_one_process(
    tmp_path: Path, workers: int
) -> None:
    files = [
        write_medline(
            tmp_path / "a.xml.gz",
            citation(1, mesh=RATS),
            citation(2, mesh=RATS),
            citation(None, mesh=RATS),
        ),
        write_medline(
            tmp_path / "b.xml", citation(1, title="Newer.", mesh=RATS), others=deletion(2)
        ),
        write_medline(tmp_path / "c.xml", citation(3, mesh=RATS)),
    ]
    files[2].write_bytes(files[2].read_bytes()[:-30])
    config = ArticleConfig(max_bad_share=0.5)
    here = prepare_medline(tmp_path / "here", files, config)
    assert here.pmid_N.tolist() == [1]
    assert [one["file"] for one in here.manifest["broken_files"]] == ["c.xml"]
    parse_all = partial(parse_by_ray_data, workers)
    there = prepare_medline(tmp_path / "there", files, config, parse_all=parse_all)
    assert there.digest == here.digest


@pytest.mark.nightly
@pytest.mark.parametrize("missing", ["file", "folder"])
def test_what_only_the_driver_sees_is_an_error_and_no_broken_file(
    tmp_path: Path, missing: str
) -> None:
    """A few broken files are skipped, but not those that a node does not see."""
    path = write_medline(tmp_path / "a.xml", citation(1, mesh=RATS))
    parts = tmp_path / "parts"
    if missing == "folder":
        expected = parts
    else:
        parts.mkdir()
        path.unlink()
        expected = path
    with pytest.raises(ClusterError, match=f"{expected}: is not the same on node .* and here"):
        parse_by_ray_data(1, [path], parts)


@pytest.mark.nightly
def test_pairs_counted_by_ray_data_are_those_counted_here_and_training_takes_them(
    tiny_documents: DocumentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tiny_documents.path, tmp_path / "store")
    config = EntityPairConfig(min_documents=2, num_pairs=50)
    here = asdict(recurring_pairs(tiny_documents, config))
    monkeypatch.setattr(entity_pairs, "OCCURRENCES_AT_ONCE", 40)  # several parts
    arguments = [
        "--store",
        str(tmp_path / "store"),
        "--min-documents",
        "2",
        "--num-pairs",
        "50",
        "--workers",
        "2",
    ]
    done = CliRunner().invoke(app, ["recurring-pairs", *arguments])
    assert done.exit_code == 0, done.output
    assert f"{len(here['count_K'])} pairs in 2 to" in done.output
    assert "--set pairs.min_documents=2 --set pairs.num_pairs=50" in done.output
    assert len(list((tmp_path / "store").glob("derived/recurring_pairs-*.npz"))) == 1
    monkeypatch.setattr(entity_pairs, "pair_blocks", None)
    there = asdict(recurring_pairs(open_store(tmp_path / "store", DocumentStore), config))
    for name, values in here.items():
        np.testing.assert_array_equal(there[name], values)
