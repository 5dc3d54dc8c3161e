"""Errors that tasks of Ray Data carry to the driver."""

import errno
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from raybio.core.errors import ClusterError, DataError, DiskError, StorageError
from raybio.core.location import BucketPath
from raybio.runtime import embed_actors
from raybio.runtime.map_rows import _map_row, map_rows
from raybio.runtime.model_folders import model_of_folder
from raybio.runtime.spool.lease import LostLeaseError
from raybio.runtime.task_errors import NO_ERROR, error_columns, raise_error_of
from tests.runtime.search.test_queries import export


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DataError("a.xml: is no MEDLINE"), DataError),
        (StorageError("s3://b: refuses"), StorageError),
        (LostLeaseError("the embedding has been started again"), ClusterError),
        (OSError(errno.ENOSPC, "No space left on device", "/data/part"), DiskError),
    ],
)
def test_an_error_arrives_with_its_type_and_message(error: Exception, kind: type) -> None:
    with pytest.raises(kind, match=r"is no MEDLINE|refuses|started again|/data/part: No space"):
        raise_error_of(error_columns(error))  # type: ignore[arg-type]
    raise_error_of(NO_ERROR)
    raise_error_of({"part": 1})


def test_an_error_that_no_disk_explains_is_raised_where_it_happened() -> None:
    with pytest.raises(TimeoutError):
        error_columns(TimeoutError("a socket"))


def test_a_worker_that_cannot_load_the_model_says_so_in_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise StorageError("s3://models: refuses")

    monkeypatch.setattr(embed_actors, "fetch_bucket_model", refused)
    model = model_of_folder(export(tmp_path / "model", 0))
    bucket = BucketPath("s3", "models", "first")
    form = embed_actors.EmbeddingFormat()
    actor = embed_actors._EmbedPart(model, bucket, form, tmp_path / "parts", None, None)
    with pytest.raises(StorageError, match="s3://models: refuses"):
        raise_error_of(actor(pa.table({"part": [0]})).to_pylist()[0])


def torn(path: str, row: dict[str, Any]) -> dict[str, Any]:
    if row["number"] == 1:
        raise OSError(errno.ENOSPC, "No space left on device", path)
    return {"number": row["number"]}


def test_a_full_disk_of_a_task_is_one_line_and_no_traceback_of_ray(tmp_path: Path) -> None:
    function = partial(torn, str(tmp_path / "part"))
    assert _map_row(function, {"number": 0}) == {"number": 0}
    assert _map_row(function, {"number": 1})["error_kind"] == "DiskError"


@pytest.mark.nightly
@pytest.mark.usefixtures("ray_cluster")
def test_the_first_error_of_a_task_ends_the_map(tmp_path: Path) -> None:
    rows = [{"number": number} for number in range(3)]
    with pytest.raises(DiskError, match="part: No space left on device"):
        map_rows(1, rows, partial(torn, str(tmp_path / "part")))
    assert len(map_rows(1, rows[:1], partial(torn, "unused"))) == 1
