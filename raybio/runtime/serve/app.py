"""The HTTP interface of a trained model, as an ASGI app; it needs no Ray.

    GET  /health     what is served
    POST /encode     {"inputs": [...]}            -> {"embeddings": [[...], ...]}
    POST /neighbors  {"inputs": [...], "k": 10}   -> {"neighbors": [[{"key", "cosine"}, ...], ...]}
    POST /predict    {"inputs": [...]}            -> {"predictions": [...]}

``/neighbors`` exists if there is an index, ``/predict`` if the model has a head. Invalid, blank or
too long inputs return 422, too large requests 413, and ``/encode`` of a model that embeds only
words in their context 422. Other paths return 404 and a list of these paths.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field

from raybio.core.errors import DataError
from raybio.core.version import VERSION
from raybio.runtime.load import TrainedModel
from raybio.runtime.search.index import EmbeddingIndex
from raybio.runtime.search.queries import SCORE_COLUMN
from raybio.runtime.serve.batcher import Batcher

MOST_ERRORS = 5
"""Maximum number of errors that the answer to an invalid request names."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@dataclass(frozen=True)
class Limits:
    """Limits of a request.

    Attributes:
        max_inputs: maximum number of inputs.
        max_characters: maximum characters of an input, or of its JSON if it is not a text.
        max_neighbors: maximum ``k`` of a search.
    """

    max_inputs: int = 256
    max_characters: int = 20_000
    max_neighbors: int = 1000

    @property
    def max_bytes(self) -> int:
        """Maximum bytes of a request, in JSON with escapes; an emoji takes 12."""
        return min(self.max_inputs * self.max_characters * 12, 2**26) + 2**12


class EncodeRequest(BaseModel):
    """The body of ``/encode``."""

    model_config = ConfigDict(extra="forbid")

    inputs: list[str] = Field(min_length=1)


class NeighborsRequest(EncodeRequest):
    """The body of ``/neighbors``."""

    k: int = Field(10, ge=1)


class PredictRequest(BaseModel):
    """The body of ``/predict``."""

    model_config = ConfigDict(extra="forbid")

    inputs: list[Any] = Field(min_length=1)


def http_app(
    model: TrainedModel, index: EmbeddingIndex | None = None, limits: Limits | None = None
) -> Callable[[Message, Receive, Send], Awaitable[None]]:
    """Return the ASGI app of a model.

    Inputs of concurrent requests are computed together. All computations run in one thread.

    Args:
        model: the served model.
        index: index of the model's embeddings; None: no ``/neighbors``.
        limits: limits of a request.
    """
    limits = limits or Limits()
    service = _Service(model, index, limits)
    app = FastAPI(title="raybio", version=VERSION)
    _add_error_handlers(app)
    app.add_api_route("/health", service.health, methods=["GET"])
    app.add_api_route("/encode", service.encode_inputs, methods=["POST"])
    if index is not None:
        app.add_api_route("/neighbors", service.neighbors, methods=["POST"])
    if model.has_head:
        app.add_api_route("/predict", service.predict_inputs, methods=["POST"])
    return _Bounded(app, limits.max_bytes)


class _Service:
    """The routes of the app; FastAPI shows their names and docstrings."""

    def __init__(self, model: TrainedModel, index: EmbeddingIndex | None, limits: Limits) -> None:
        self._model = model
        self._index = index
        self._limits = limits
        self._thread = ThreadPoolExecutor(1)
        self._encode = Batcher(model.encode, limits.max_inputs, self._thread)
        self._predict = Batcher(
            self._predictions_of,
            limits.max_inputs,
            self._thread,
            size=lambda requests: sum(map(len, requests)),
        )
        # Load the weights now, not in the first request.
        model.load_weights()
        if index is not None:
            model.check_inputs([])  # neighbors of a model that cannot encode are refused here
        self._digest = model.digest()

    async def health(self) -> dict[str, Any]:
        """Say which model is loaded, and whether it encodes, predicts and has an index."""
        return {
            "status": "ok",
            "raybio": VERSION,
            "model": self._digest,
            "encodes": self._model.encodes,
            "predicts": self._model.has_head,
            "indexed": None if self._index is None else len(self._index),
        }

    async def encode_inputs(self, request: EncodeRequest) -> JSONResponse:
        """Embed each input."""
        model = self._model
        if not model.encodes:
            raise HTTPException(422, model.why_not_encode.removeprefix(f"{model.folder}: "))
        embeddings = await self._embeddings_of(request.inputs)
        return JSONResponse({"embeddings": embeddings.tolist()})

    async def neighbors(self, request: NeighborsRequest) -> JSONResponse:
        """Find the nearest neighbors of each input in the index."""
        index = self._index
        assert index is not None
        most = self._limits.max_neighbors
        if request.k > most:
            raise HTTPException(422, f"k: got {request.k}, want at most {most}")
        embeddings = await self._embeddings_of(request.inputs)
        loop = asyncio.get_running_loop()
        nearest = await loop.run_in_executor(self._thread, index.search, embeddings, request.k)
        score = SCORE_COLUMN[index.metric]
        lists = []
        for keys, scores in zip(nearest.keys, nearest.scores.tolist(), strict=True):
            pairs = zip(keys, scores, strict=True)
            lists.append([{"key": key, score: value} for key, value in pairs])
        return JSONResponse({"neighbors": lists})

    async def predict_inputs(self, request: PredictRequest) -> JSONResponse:
        """Predict for each input with the model's head."""
        _check(request.inputs, self._limits)
        (predictions,) = await self._predict([request.inputs])
        if isinstance(predictions, Exception):
            raise predictions
        return JSONResponse({"predictions": predictions})

    def _predictions_of(self, requests: list[list[Any]]) -> list[list[Any] | Exception]:
        """Return, for each request, its predictions or its own error."""
        if len(requests) > 1:
            # If this fails, requests are computed one by one, so that a request with an invalid
            # input fails alone. Requests may also share ids of documents, which are unique only
            # within a request.
            with contextlib.suppress(Exception):
                predictions = iter(self._model.predict([*itertools.chain(*requests)]))
                return [[*itertools.islice(predictions, len(inputs))] for inputs in requests]
        results = list[list[Any] | Exception]()
        for inputs in requests:
            try:
                results.append(self._model.predict(inputs))
            except Exception as error:
                results.append(error)
        return results

    async def _embeddings_of(self, inputs: list[str]) -> np.ndarray:
        _check(inputs, self._limits)
        # Check here, so that an invalid input fails only its own request and not the whole batch.
        self._model.check_inputs(inputs)
        return np.asarray(await self._encode(inputs))


def _add_error_handlers(app: FastAPI) -> None:
    """Answer invalid inputs with 422, and unknown paths with 404 and a list of paths."""

    @app.exception_handler(DataError)
    async def refuse(_: Request, error: DataError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=422)

    @app.exception_handler(RequestValidationError)
    async def refuse_request(_: Request, error: RequestValidationError) -> JSONResponse:
        # The input is left out: JSON has neither NaN nor half of a surrogate pair.
        errors = [
            {
                "type": part["type"],
                "loc": [
                    _printable(key[:100]) if isinstance(key, str) else key for key in part["loc"]
                ],
                "msg": _printable(part["msg"]),
            }
            for part in error.errors()[:MOST_ERRORS]
        ]
        return JSONResponse({"detail": errors}, status_code=422)

    @app.exception_handler(404)
    async def list_paths(request: Request, _: Exception) -> JSONResponse:
        routes = [route for route in app.routes if isinstance(route, APIRoute)]
        paths = [f"{' '.join(route.methods or ())} {route.path}" for route in routes]
        detail = f"{request.url.path}: there is no such path; want {' or '.join(paths)}"
        return JSONResponse({"detail": detail}, status_code=404)


def _printable(text: str) -> str:
    """Return a text with escapes for halves of surrogate pairs, which UTF-8 lacks."""
    return text.encode(errors="backslashreplace").decode()


def _check(inputs: list[Any], limits: Limits) -> None:
    """Refuse too many, too long or blank inputs."""
    if len(inputs) > limits.max_inputs:
        raise HTTPException(
            422, f"got {len(inputs)} inputs, want at most {limits.max_inputs} in a request"
        )
    for number, value in enumerate(inputs):
        if isinstance(value, str) and not value.strip():
            raise HTTPException(422, f"input {number}: is blank, want an input")
        length = len(value) if isinstance(value, str) else len(str(value))
        if length > limits.max_characters:
            raise HTTPException(
                422,
                f"input {number}: has {length} characters, want at most {limits.max_characters}",
            )


class _Bounded:
    """An ASGI app that answers 413 to a request whose body is too large."""

    def __init__(self, app: Any, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        stated = dict(scope["headers"]).get(b"content-length", b"0")
        if not stated.isdigit() or int(stated) > self._max_bytes:
            await self._refuse(scope, receive, send)
            return
        # A chunked body states no length, so it is read here, before a response begins. A bytearray
        # avoids copying the whole body for each chunk.
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                await self._refuse(scope, receive, send)
                return
            if not message.get("more_body", False):
                break
        whole = {"type": "http.request", "body": bytes(body), "more_body": False}
        messages: list[Message] = [whole]

        async def receive_body() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, receive_body, send)

    async def _refuse(self, scope: Message, receive: Receive, send: Send) -> None:
        detail = (
            f"the request is larger than {self._max_bytes:,} bytes; send fewer or shorter inputs"
        )
        await JSONResponse({"detail": detail}, status_code=413)(scope, receive, send)
