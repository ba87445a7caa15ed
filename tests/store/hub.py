"""A small stand-in for a Hugging Face hub, on the loopback only: one repository, ranges, faults on demand."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """What the server serves and what it saw."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.lying: dict[str, bytes] = {}
        """Content sent in place of a file's own."""
        self.break_after: dict[str, int] = {}
        """Cut the connection after that many bytes, once."""
        self.missing: set[str] = set()
        """Listed files that are not there."""
        self.status = 200
        self.requests: list[str] = []
        self.endpoint = ""

    def info(self) -> dict[str, Any]:
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "blobId": "b",
                "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 100},
            }
            for name, data in self.files.items()
        ]
        card = {"license": "mit"}
        return {"id": "org/repo", "sha": COMMIT, "siblings": siblings, "cardData": card, "tags": [], "private": False}


def handler_of(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
            if hub.status != 200:
                self.reply(hub.status, b"{}", body, {"X-Error-Message": "no"})
            elif path.startswith("/api/models/org/repo"):
                self.look_up(path, body)
            elif path.startswith(f"/org/repo/resolve/{COMMIT}/"):
                self.file(path.removeprefix(f"/org/repo/resolve/{COMMIT}/"), body)
            else:
                self.reply(404, b"{}", body, {"X-Error-Code": "RepoNotFound"})

        def look_up(self, path: str, body: bool) -> None:
            revision = path.removeprefix("/api/models/org/repo").removeprefix("/revision/")
            if revision in ("", "main", "v1", COMMIT):
                self.reply(200, json.dumps(hub.info()).encode(), body, {"Content-Type": "application/json"})
            else:
                self.reply(404, b"{}", body, {"X-Error-Code": "RevisionNotFound"})

        def file(self, name: str, body: bool) -> None:
            if name in hub.missing:
                self.reply(404, b"{}", body, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
                return
            data = hub.lying.get(name, hub.files[name])
            etag = hashlib.sha256(hub.files[name]).hexdigest()
            headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            start = 0
            if wanted := self.headers.get("Range"):
                start = int(wanted.removeprefix("bytes=").split("-")[0])
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            cut = hub.break_after.pop(name, None) if body else None
            self.reply(206 if start else 200, data[start:], body, headers, cut)

        def reply(self, status: int, data: bytes, body: bool, headers: dict[str, str], cut: int | None = None) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                self.wfile.write(data if cut is None else data[:cut])
            if cut is not None:
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            return

    return Handler


@contextmanager
def serve(files: dict[str, bytes]) -> Iterator[Hub]:
    """Serve `files` as org/repo until the block ends."""
    hub = Hub(files)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(hub))
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
