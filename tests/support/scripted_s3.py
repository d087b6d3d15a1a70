"""A tiny S3 over HTTP whose answers fail as a test says: for what no healthy server can be made to do."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from driftline.errors import ObjectMissing, PreconditionFailed
from driftline.store.memory import MemoryStore

Fault = Literal["none", "drop before", "drop after", "truncate"] | tuple[int, str]
"""What happens to one request: the connection breaks before or after it took effect, the body ends early, or
it is answered with an HTTP status and an error code."""


class ScriptedS3:
    """Serves the bucket `bucket`, path style; lists nothing.

    `faults` are used up one a request; then all requests succeed.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all objects and faults."""
        self.objects = MemoryStore()
        self.faults: deque[Fault] = deque()
        self.seen: list[str] = []
        self.ignores_conditions = False

    def answer(self, method: str, key: str, headers: Any, body: bytes) -> tuple[int, str, bytes, str]:
        """Returns status, error code, body and entity tag."""
        try:
            if method == "GET" and not key:
                return 200, "", b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>", ""
            if method == "GET":
                found = self.objects.get(key)
                if headers.get("If-None-Match") == found.etag:
                    return 304, "", b"", found.etag
                return 200, "", found.body, found.etag
            if method == "PUT":
                return 200, "", b"", self._put(key, headers, body)
            self.objects.delete(re.findall("<Key>(.*?)</Key>", body.decode()))
            return 200, "", b"<DeleteResult/>", ""
        except ObjectMissing:
            return 404, "NoSuchKey", b"", ""
        except PreconditionFailed:
            return 412, "PreconditionFailed", b"", ""

    def _put(self, key: str, headers: Any, body: bytes) -> str:
        if headers.get("If-None-Match") == "*" and not self.ignores_conditions:
            return self.objects.create(key, body).etag
        if headers.get("If-Match") and not self.ignores_conditions:
            return self.objects.swap(key, body, headers["If-Match"]).etag
        return self.objects.put(key, body).etag


@contextlib.contextmanager
def serving(script: ScriptedS3) -> Iterator[str]:
    """Serve until the end of the block; yields the endpoint."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._handle()

        def do_PUT(self) -> None:
            self._handle()

        def do_POST(self) -> None:
            self._handle()

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            key = self.path.partition("?")[0].removeprefix("/bucket").removeprefix("/")
            script.seen.append(f"{self.command} {key}")
            fault = script.faults.popleft() if script.faults else "none"
            if fault == "drop before":
                self.close_connection = True
                return
            if isinstance(fault, tuple):
                self._send(fault[0], fault[1], b"", "")
                return
            answer = script.answer(self.command, key, self.headers, body)
            if fault == "drop after":
                self.close_connection = True
                return
            self._send(*answer, truncate=fault == "truncate")

        def _send(self, status: int, code: str, body: bytes, etag: str, *, truncate: bool = False) -> None:
            if code:
                body = f"<Error><Code>{code}</Code><Message>scripted</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if etag:
                self.send_header("ETag", etag)
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if truncate else body)
            self.close_connection = self.close_connection or truncate

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
