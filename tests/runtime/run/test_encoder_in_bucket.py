"""An encoder that begins from a model in a bucket: fetched by each machine, refused when replaced."""

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from raybio.core.digest import file_digest, weights_digest
from raybio.core.errors import CheckpointError, ConfigError, StorageError
from raybio.core.location import BucketPath
from raybio.encoders import sources
from raybio.encoders.mlm_head import MASK_HEAD_FILE
from raybio.encoders.text import check_text_encoder
from raybio.methods import METHODS
from raybio.methods.mtb_mccl.encoder import PARTS, read_parts
from raybio.methods.relation_graphs.encoder import HEADS, read_heads
from raybio.runtime.preflight import nodes
from raybio.runtime.run.card import _without_local_paths
from raybio.runtime.run.encoder_source import encoder_record, pin_on_worker
from raybio.runtime.run.folder import RunFolder
from raybio.store.bucket import BucketFolder
from raybio.store.store import Store
from raybio.training.bucket_source import fetch_source
from tests.encoders.tiny_text import save_tiny
from tests.methods.published_encoders import PUBLISHED
from tests.s3 import S3

WEIGHTS = "model.safetensors"
BERT = PUBLISHED["bert"]


def new_machine(monkeypatch: pytest.MonkeyPatch, disk: Path) -> None:
    """Go on as a process of another machine, with an empty disk."""
    monkeypatch.setenv("RAYBIO_CACHE", str(disk))
    monkeypatch.setattr(sources, "_copy_by_address", {})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_tiny(tmp_path / "export")
    return tmp_path / "export"


@pytest.fixture
def run(model: Path, bucket: BucketPath, monkeypatch: pytest.MonkeyPatch) -> BucketPath:
    """The folder of a finished run in a bucket, as far as a training reads it."""
    new_machine(monkeypatch, model.parent / "disk")
    path = bucket / "runs" / "mine"
    BucketFolder(path).write("run.json", b"{}")
    upload(model, path / "export")
    return path


def upload(folder: Path, path: BucketPath) -> None:
    for file in folder.iterdir():
        BucketFolder(path).upload(file, file.name)


def replace_weights(run: BucketPath, model: Path) -> str:
    """Replace one number of the weights in the bucket, and return their digest."""
    tensors = load_file(model / WEIGHTS)
    next(iter(tensors.values())).view(-1)[0] += 1
    save_file(tensors, model / WEIGHTS, metadata={"format": "pt"})
    BucketFolder(run / "export").upload(model / WEIGHTS, WEIGHTS)
    return file_digest(model / WEIGHTS)


def test_a_run_begins_with_the_weights_in_the_bucket_and_records_address_and_digest(
    run: BucketPath,
    model: Path,
    tiny_articles: Store,
    s3: S3,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = METHODS[BERT.method]

    def weights(source: str) -> str:
        built = method.build(BERT.config(source), tiny_articles.path)
        return weights_digest(built.model.state_dict().items())

    record = {"revision": "main", "weights": WEIGHTS, "sha256": file_digest(model / WEIGHTS)}
    for address in (str(run), f"{run}/export"):
        config = BERT.config(address)
        method.check(config, tiny_articles)
        assert encoder_record(config) == {"source": address, **record}
        assert weights(address) == weights(str(model))
    # Both addresses have one copy, with the record of the run next to it.
    (copy,) = (tmp_path / "disk" / "buckets").glob("folder-*/mine/export")
    assert (copy.parent / "run.json").is_file()
    # Another machine fetches what the driver recorded.
    new_machine(monkeypatch, tmp_path / "other")
    s3.requests.clear()
    pin_on_worker(encoder_record(config))
    assert weights(address) == weights(str(model))
    fetched = [request.path for request in s3.requests if f"export/{WEIGHTS}" in request.path]
    assert len(fetched) == 2  # HEAD and GET
    # A card is published, and says no address.
    assert _without_local_paths(config.to_mapping())["encoder"]["source"] == "export"


def test_weights_that_are_replaced_are_refused_by_workers_and_once_there_are_checkpoints(
    run: BucketPath, model: Path, tiny_articles: Store, tmp_path: Path
) -> None:
    method = METHODS[BERT.method]
    config = BERT.config(str(run))
    folder = RunFolder(tmp_path / "runs", "new")

    def start() -> dict[str, str] | None:
        method.check(config, tiny_articles)
        folder.open(method.name, config, tiny_articles.path, tiny_articles.digest, ())
        folder.record_encoder(encoder_record(config))
        return folder.encoder

    first = start()
    replaced = replace_weights(run, model)
    with pytest.raises(CheckpointError, match=f"began with other weights .*{run}.*{replaced} now"):
        pin_on_worker(first)
    # Nothing stands on the first weights, so a start takes the new ones.
    second = start()
    assert second is not None and second["sha256"] == replaced
    pin_on_worker(second)
    (folder.checkpoints / "step-00000002-1").mkdir(parents=True)
    replace_weights(run, model)
    with pytest.raises(CheckpointError, match=f"began with other weights .*{replaced} then"):
        folder.record_encoder(_record_now(config, tiny_articles))


def _record_now(config: object, store: Store) -> dict[str, str] | None:
    METHODS[BERT.method].check(config, store)
    return encoder_record(config)


def test_heads_next_to_the_transformer_are_read_from_the_copy(
    run: BucketPath, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = load_file(model / WEIGHTS)
    for name in (PARTS, HEADS, MASK_HEAD_FILE):
        save_file(tensors, model / name)
    upload(model, run / "export")
    address = str(run)
    fetch_source(address, "encoder.source")
    assert read_parts(address).keys() == read_heads(address).keys() == tensors.keys()
    # Of its own file, not of the transformer's.
    check_text_encoder(BERT.config(address).encoder, needs_mask_head=True)


@pytest.mark.parametrize(
    ("source", "error", "wanted"),
    [
        ("s3://no-such-bucket/m", StorageError, "there is no bucket 'no-such-bucket'"),
        ("{bucket}/nothing", StorageError, "there is nothing there"),
        ("{bucket}/young", ConfigError, "that run has no model of its own"),
    ],
)
def test_a_model_that_cannot_be_fetched_is_refused_with_its_setting(
    source: str,
    error: type[Exception],
    wanted: str,
    bucket: BucketPath,
    tiny_articles: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new_machine(monkeypatch, tmp_path / "disk")
    BucketFolder(bucket / "young").write("run.json", b"{}")
    config = BERT.config(source.format(bucket=bucket))
    with pytest.raises(error, match=f"^encoder.source s3://.*{wanted}"):
        METHODS[BERT.method].check(config, tiny_articles)
    assert not (tmp_path / "disk").exists()


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("hdfs://host/m", "hdfs: is not supported"),
        ("s3:/bucket/m", "two slashes"),
        ("s3://KEY:never-shown-secret@bucket/m", "a URI with credentials"),
    ],
)
def test_an_address_that_is_not_supported_is_refused_when_settings_are_read(
    source: str, wanted: str
) -> None:
    with pytest.raises(ConfigError, match=f"^encoder.source: got .*{wanted}") as refused:
        BERT.config(source)
    assert "never-shown-secret" not in str(refused.value)
    assert BERT.config("file:///models/m").encoder.source == "/models/m"  # type: ignore[attr-defined]


def test_nodes_look_at_a_model_before_a_start_and_fetch_nothing(
    run: BucketPath, tiny_articles: Store, s3: S3, tmp_path: Path
) -> None:
    def problem(source: str) -> str:
        config = BERT.config(source)
        query = nodes.NodeQuery("", str(tiny_articles.path), BERT.method, (config,))
        return nodes._encoder_problem(query)

    assert problem(str(run)) == ""
    assert not (tmp_path / "disk").exists()
    s3.fail("denied", times=10)
    assert "no permission to" in problem(str(run))
