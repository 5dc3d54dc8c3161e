"""The HTTP interface of a model without Ray: equal to Python's, batched, and bounded."""

import asyncio
import json
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.responses import JSONResponse

import raybio
from raybio.core.errors import ClusterError, ConfigError
from raybio.methods import METHODS
from raybio.methods.mtb_mccl.documents.store import DocumentStore
from raybio.methods.relation_graphs.store import WordStore
from raybio.methods.sppt.downstream.store import TaskStore
from raybio.runtime.cluster.resources import Node
from raybio.runtime.load import TrainedModel
from raybio.runtime.search.build import build_index
from raybio.runtime.serve.app import Limits, _Bounded, _Service, http_app
from raybio.runtime.serve.batcher import Batcher
from raybio.runtime.serve.server import check_replicas, serving
from tests.encoders.tiny_text import save_tiny
from tests.methods.conformance_cases import tiny_config
from tests.methods.relation_graphs.test_word import characters
from tests.runtime.search.test_index import write
from tests.runtime.search.test_queries import SEQUENCES, export
from tests.runtime.serve.asgi import Answer, call

LIMITS = Limits(max_inputs=8, max_characters=60)


def post(app: Any, path: str, body: Any, **options: Any) -> Answer:
    return asyncio.run(call(app, "POST", path, body, **options))


def test_a_hundred_concurrent_requests_equal_encode_and_are_computed_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = raybio.load(export(tmp_path / "model", 0))
    rng = np.random.default_rng(0)
    letters = list("ACDEFGHIKLMNPQRSTVWY")
    requests = [
        ["".join(rng.choice(letters, rng.integers(3, 40))) for _ in range(rng.integers(1, 4))]
        for _ in range(100)
    ]
    expected = [model.encode(inputs) for inputs in requests]
    sizes = []
    encode = type(model).encode

    def counted(self: Any, inputs: Sequence[str]) -> np.ndarray:
        sizes.append(len(inputs))
        return encode(self, inputs)

    monkeypatch.setattr(type(model), "encode", counted)
    app = http_app(model, limits=LIMITS)

    async def all_at_once() -> list[Answer]:
        calls = [call(app, "POST", "/encode", {"inputs": inputs}) for inputs in requests]
        # An invalid request among them fails alone.
        bad = call(app, "POST", "/encode", {"inputs": ["A1"]})
        *answers, refused = await asyncio.gather(*calls[:50], *calls[50:], bad)
        assert (refused.status, "'1'" in refused.content["detail"]) == (422, True)
        return answers

    answers = asyncio.run(all_at_once())
    assert {answer.status for answer in answers} == {200}
    for answer, embeddings in zip(answers, expected, strict=True):
        np.testing.assert_allclose(answer.content["embeddings"], embeddings, rtol=1e-5, atol=1e-6)
    assert sum(sizes) == sum(map(len, requests))
    assert max(sizes) <= LIMITS.max_inputs
    assert len(sizes) < 60


def test_neighbors_are_those_of_the_index(tmp_path: Path) -> None:
    model = raybio.load(export(tmp_path / "model", 0))
    source = write(tmp_path / "a.parquet", model.encode(SEQUENCES), model.digest())
    build_index(source, tmp_path / "index")
    index = raybio.open_index(tmp_path / "index", tmp_path / "model")
    app = http_app(model, index, LIMITS)
    status, content = post(app, "/neighbors", {"inputs": SEQUENCES, "k": 3})
    found = index.search(SEQUENCES, 3)
    assert status == 200
    assert [[one["key"] for one in row] for row in content["neighbors"]] == found.keys
    scores = [[one["cosine"] for one in row] for row in content["neighbors"]]
    np.testing.assert_allclose(scores, found.scores, atol=1e-6)
    health = asyncio.run(call(app, "GET", "/health"))
    assert health.content == {
        "status": "ok",
        "raybio": raybio.__version__,
        "model": model.digest(),
        "encodes": True,
        "predicts": False,
        "indexed": 5,
    }
    refused = post(app, "/neighbors", {"inputs": ["MKT"], "k": 1001})
    assert refused == (422, {"detail": "k: got 1001, want at most 1000"})
    missing = post(app, "/predict", {"inputs": ["MKT"]})
    assert missing == (
        404,
        {
            "detail": "/predict: there is no such path; want GET /health or POST /encode or POST "
            "/neighbors"
        },
    )
    for path in ("/encode", "/neighbors"):
        blank = post(app, path, {"inputs": ["MKT", " "]})
        assert blank == (422, {"detail": "input 1: is blank, want an input"})
    assert post(http_app(model), "/neighbors", {"inputs": ["MKT"]}).status == 404


def test_predictions_are_those_of_predict(tmp_path: Path, tiny_task: TaskStore) -> None:
    folder = tmp_path / "export"
    METHODS["finetune"].build(tiny_config("finetune"), tiny_task.path).export(folder, {})
    model = raybio.load(folder)
    app = http_app(model, limits=LIMITS)
    status, content = post(app, "/predict", {"inputs": SEQUENCES})
    assert (status, content["predictions"]) == (200, model.predict(SEQUENCES))
    refused = post(app, "/predict", {"inputs": ["A1"]})
    assert (refused.status, "'1'" in refused.content["detail"]) == (422, True)
    assert asyncio.run(call(app, "GET", "/health")).content["predicts"]


def counted_predictions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list that receives the number of inputs of each call of ``predict``."""
    sizes = list[int]()
    predict = TrainedModel.predict

    def counted(self: TrainedModel, inputs: Sequence[Any]) -> list[Any]:
        sizes.append(len(inputs))
        return predict(self, inputs)

    monkeypatch.setattr(TrainedModel, "predict", counted)
    return sizes


def assert_same(found: Any, expected: Any) -> None:
    """Compare predictions; numbers may be rounded differently in another batch."""
    if isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        assert_same([*found.values()], [*expected.values()])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        assert found == expected


def predictions_at_once(app: Any, requests: Sequence[Sequence[Any]]) -> list[Answer]:
    """Return the answers to requests that are sent at the same time."""

    async def all_at_once() -> list[Answer]:
        calls = [call(app, "POST", "/predict", {"inputs": inputs}) for inputs in requests]
        return await asyncio.gather(*calls)

    return asyncio.run(all_at_once())


def test_concurrent_predictions_equal_predict_and_are_computed_together(
    tmp_path: Path, tiny_task: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "export"
    METHODS["finetune"].build(tiny_config("finetune"), tiny_task.path).export(folder, {})
    model = raybio.load(folder)
    requests = [SEQUENCES[number % 3 : 3] for number in range(40)]
    expected = [model.predict(inputs) for inputs in requests]
    sizes = counted_predictions(monkeypatch)
    app = http_app(model, limits=LIMITS)
    answers = predictions_at_once(app, requests)
    assert sum(sizes) == sum(map(len, requests))
    assert max(sizes) <= LIMITS.max_inputs
    assert len(sizes) < 30
    for answer, values in zip(answers, expected, strict=True):
        assert answer.status == 200
        assert_same(answer.content["predictions"], values)
    # An invalid input fails its own request.
    *answers, refused = predictions_at_once(app, [*requests[:4], ["MKT", "A1"]])
    assert {answer.status for answer in answers} == {200}
    assert (refused.status, "input 1" in refused.content["detail"]) == (422, True)


def test_concurrent_documents_are_computed_together_and_may_share_ids(
    tmp_path: Path, tiny_documents: DocumentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "export"
    method = METHODS["relation_finetune"]
    method.build(tiny_config("relation_finetune"), tiny_documents.path).export(folder, {})
    model = raybio.load(folder)
    code = re.search(r"^inputs = (.*)$", (folder / "README.md").read_text(), re.MULTILINE)
    assert code is not None
    document = json.loads(code[1])[0]
    expected = model.predict([document])
    sizes = counted_predictions(monkeypatch)
    app = http_app(model)
    for ids in (["a", "b", "c"], ["a", "b", "b"]):
        sizes.clear()
        answers = predictions_at_once(app, [[{**document, "id": one}] for one in ids])
        for answer in answers:
            assert answer.status == 200
            assert_same(answer.content["predictions"], expected)
        assert max(sizes) > 1


def test_a_request_whose_prediction_fails_fails_alone(
    tmp_path: Path, tiny_task: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "export"
    METHODS["finetune"].build(tiny_config("finetune"), tiny_task.path).export(folder, {})
    predict = TrainedModel.predict

    def failing(self: TrainedModel, inputs: Sequence[Any]) -> list[Any]:
        if "MKW" in inputs:
            raise TypeError("unforeseen")
        return predict(self, inputs)

    monkeypatch.setattr(TrainedModel, "predict", failing)
    service = _Service(raybio.load(folder), None, LIMITS)
    first, second, third = service._predictions_of([["MKT"], ["MKW"], ["MKV"]])
    assert isinstance(second, TypeError)
    assert len(first) == len(third) == 1


def test_relations_of_documents_are_those_of_predict(
    tmp_path: Path, tiny_documents: DocumentStore
) -> None:
    folder = tmp_path / "export"
    method = METHODS["relation_finetune"]
    method.build(tiny_config("relation_finetune"), tiny_documents.path).export(folder, {})
    model = raybio.load(folder)
    app = http_app(model)
    code = re.search(r"^inputs = (.*)$", (folder / "README.md").read_text(), re.MULTILINE)
    assert code is not None
    inputs = json.loads(code[1])
    status, content = post(app, "/predict", {"inputs": inputs})
    assert (status, content["predictions"]) == (200, model.predict(inputs))
    assert post(app, "/predict", {"inputs": ["a"]}).status == 422
    assert post(app, "/encode", {"inputs": ["Asthma in early life."]}).status == 200


@pytest.mark.parametrize("has_word_pieces", [True, False])
def test_relations_of_sentences_are_those_of_predict_though_their_encoder_may_embed_no_texts(
    tmp_path: Path, tiny_words: WordStore, has_word_pieces: bool
) -> None:
    folder = tmp_path / "export"
    config = tiny_config("relation_graphs")
    if not has_word_pieces:
        characters(tmp_path / "source")
        changes = {"encoder.source": str(tmp_path / "source"), "encoder.max_length": 32}
        config = tiny_config("relation_graphs", **changes)
    METHODS["relation_graphs"].build(config, tiny_words.path).export(folder, {})
    model = raybio.load(folder)
    app = http_app(model)
    sentences = ["Aspirin causes asthma.", "Sugar was given."]
    status, content = post(app, "/predict", {"inputs": sentences})
    assert (status, content["predictions"]) == (200, model.predict(iter(sentences)))
    health = asyncio.run(call(app, "GET", "/health")).content
    assert (health["encodes"], health["predicts"]) == (has_word_pieces, True)
    assert health["model"] == model.digest()
    answer = post(app, "/predict", {"inputs": [sentences[0], "Sugar \ud83d"]})
    assert answer.status == 422
    assert "input 1" in answer.content["detail"]
    answer = post(app, "/encode", {"inputs": sentences})
    assert answer.status == (200 if has_word_pieces else 422)
    if not has_word_pieces:
        assert answer.content["detail"].startswith("embeds words in their context")


def test_requests_beyond_the_limits_are_refused(tmp_path: Path) -> None:
    app = http_app(raybio.load(export(tmp_path / "model", 0)), limits=LIMITS)
    for body, message in (
        ({"inputs": ["A"] * 9}, "got 9 inputs, want at most 8"),
        ({"inputs": ["A", "C" * 61]}, "input 1: has 61 characters, want at most 60"),
        ({"inputs": []}, "at least 1 item"),
        ({"inputs": [1]}, "valid string"),
        ({"inputs": "A"}, "valid list"),
        ({"input": ["A"]}, "Field required"),
        ({"inputs": ["A"], "more": 1}, "not permitted"),
    ):
        status, content = post(app, "/encode", body)
        assert (status, message in str(content["detail"])) == (422, True), content
    # 12 bytes an emoji, with escapes.
    emojis = ["\N{DNA DOUBLE HELIX}" * LIMITS.max_characters] * LIMITS.max_inputs
    assert len(json.dumps(emojis)) < LIMITS.max_bytes
    one = Limits(max_inputs=1)
    assert len(json.dumps(["\N{GREEK SMALL LETTER ALPHA}" * one.max_characters])) < one.max_bytes
    too_large = {"inputs": ["A" * LIMITS.max_bytes]}
    assert post(app, "/encode", too_large).status == 413
    chunks = [b'{"inputs": ["'] + [b"A" * 1000] * (LIMITS.max_bytes // 1000 + 1)
    status, content = post(app, "/encode", None, chunks=chunks)
    assert (status, "larger than" in content["detail"]) == (413, True)
    # A body in chunks that fits is read.
    assert post(app, "/encode", None, chunks=[b'{"inputs"', b': ["MKT"]}']).status == 200


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ('{"inputs": [NaN]}', ["body", "inputs", 0]),
        ('{"inputs": [Infinity]}', ["body", "inputs", 0]),
        ('{"inputs": "M\\ud83d"}', ["body", "inputs"]),
        ('{"inputs": ["M"], "\\ud83d": -Infinity}', ["body"]),
        ('{"inputs": ["M"], "' + "x" * 200 + '": NaN}', ["body", "x" * 100]),
        ('{"inputs": [1, 2, 3, 4, 5, 6, 7]}', ["body", "inputs", 0]),
    ],
)
def test_what_json_cannot_answer_is_refused_with_its_position(
    tmp_path: Path, body: str, where: list[str | int]
) -> None:
    app = http_app(raybio.load(export(tmp_path / "model", 0)), limits=LIMITS)
    status, content = post(app, "/encode", None, chunks=[body.encode()])
    assert (status, content["detail"][0]["loc"]) == (422, where)
    assert len(content["detail"]) <= 5
    assert all(error.keys() == {"type", "loc", "msg"} for error in content["detail"])


def test_a_body_of_many_chunks_is_read_in_a_time_that_grows_with_its_size() -> None:
    """Each chunk copied all before it: a minute for 8 MB in chunks of 64 bytes."""
    received = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        received.append((await receive())["body"])
        await JSONResponse({})(scope, receive, send)

    chunks = [bytes(64)] * (1 << 17)
    start = time.process_time()
    assert post(_Bounded(app, 1 << 23), "/encode", None, chunks=chunks).status == 200
    assert time.process_time() - start < 10
    assert received == [bytes(1 << 23)]


def test_a_batch_that_fails_fails_its_requests_and_no_later_ones() -> None:
    computed = []

    def compute(inputs: list[int]) -> list[int]:
        computed.append(inputs)
        if 13 in inputs:
            raise ValueError("thirteen")
        return [2 * value for value in inputs]

    async def run() -> None:
        with ThreadPoolExecutor(1) as thread:
            batch = Batcher(compute, 4, thread)
            found = await asyncio.gather(
                batch([1, 2]), batch([3]), batch([13]), batch([4] * 9), return_exceptions=True
            )
            # The first three make a batch of four inputs; the last is one of its own.
            assert [str(one) for one in found[:3]] == ["thirteen"] * 3
            assert found[3] == [8] * 9
            cancelled = asyncio.ensure_future(batch([5]))
            waiting = asyncio.ensure_future(batch([6]))
            await asyncio.sleep(0)
            cancelled.cancel()
            assert await waiting == [12]

    asyncio.run(run())
    assert computed[:2] == [[1, 2, 3, 13], [4] * 9]


def test_a_model_that_answers_nothing_is_refused_before_ray_starts(tmp_path: Path) -> None:
    pytest.importorskip("grpc_reflection", reason="raybio[serve] is not installed")
    folder = save_tiny(tmp_path / "model", "bert")
    with pytest.raises(ConfigError, match="give the pooling, mean or cls"), serving(folder):
        pass
    model = export(tmp_path / "mean", 0)
    with pytest.raises(ConfigError, match="states mean"), serving(model, pooling="cls"):
        pass


@pytest.mark.parametrize(
    ("nodes", "replicas", "cpus", "expected"),
    [
        ([Node(2)], 4, 0.5, 0),
        ([Node(2)], 5, 0.5, None),
        ([Node(2)], 1, 64, None),
        ([Node(8, 2)], 2, 1.0, 1),
        ([Node(8, 2)], 3, 1.0, None),
        ([Node(8, 0), Node(8, 4)], 4, 2.0, 1),
        ([Node(3), Node(3)], 4, 1.5, 0),
        ([Node(3), Node(3)], 3, 2.0, None),
    ],
)
def test_replicas_that_do_not_fit_are_refused(
    nodes: list[Node], replicas: int, cpus: float, expected: int | None
) -> None:
    if expected is None:
        with pytest.raises(ClusterError, match=f"--replicas {replicas}: each takes .* room for"):
            check_replicas(nodes, replicas, cpus)
    else:
        assert check_replicas(nodes, replicas, cpus) == expected
