"""Requests to an ASGI app in this process."""

import json
from collections import deque
from typing import Any, NamedTuple


class Answer(NamedTuple):
    status: int
    content: Any


async def call(
    app: Any, method: str, path: str, body: Any = None, *, chunks: list[bytes] | None = None
) -> Answer:
    """Send a request; ``chunks`` is a body whose length is not stated."""
    content = b"" if body is None else json.dumps(body).encode()
    headers = [(b"content-type", b"application/json")]
    if chunks is None:
        headers.append((b"content-length", str(len(content)).encode()))
        chunks = [content]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "headers": headers,
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
    }
    waiting = deque(
        {"type": "http.request", "body": chunk, "more_body": number < len(chunks)}
        for number, chunk in enumerate(chunks, start=1)
    )
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return waiting.popleft() if waiting else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    text = b"".join(message.get("body", b"") for message in sent[1:])
    return Answer(sent[0]["status"], json.loads(text))
