"""MEDLINE files parsed by Ray Data give the store that one process gives."""

from functools import partial
from pathlib import Path

import pytest

from raybio.data.articles import ArticleConfig
from raybio.data.prepare_articles import prepare_medline
from raybio.runtime.preparing import _parse_by_ray_data
from tests.data.citations import citation, deletion, write_medline

pytestmark = [pytest.mark.usefixtures("ray_cluster"), pytest.mark.timeout(300)]
RATS = "<MeshHeading><DescriptorName MajorTopicYN='N'>Rats</DescriptorName></MeshHeading>"


def test_ray_data_on_one_worker_or_two_gives_the_store_of_one_process(tmp_path: Path) -> None:
    files = [
        write_medline(tmp_path / "a.xml.gz", citation(1, mesh=RATS), citation(2, mesh=RATS), citation(None, mesh=RATS)),
        write_medline(tmp_path / "b.xml", citation(1, title="Newer.", mesh=RATS), others=deletion(2)),
        write_medline(tmp_path / "c.xml", citation(3, mesh=RATS)),
    ]
    files[2].write_bytes(files[2].read_bytes()[:-30])
    config = ArticleConfig(max_bad_share=0.5)
    here = prepare_medline(tmp_path / "here", files, config)
    assert here.pmid_N.tolist() == [1]
    assert [one["file"] for one in here.manifest["broken_files"]] == ["c.xml"]
    for workers in (1, 2):
        parse_all = partial(_parse_by_ray_data, workers)
        there = prepare_medline(tmp_path / f"there{workers}", files, config, parse_all=parse_all)
        assert there.digest == here.digest
