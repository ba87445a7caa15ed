"""A small HTTP client for llama-server's streamed completions: the client shares the cores with the server."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence


def free_port() -> int:
    """Return a TCP port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def stream_completion(port: int, ids: Sequence[int], output: int) -> AsyncIterator[int]:
    """Yield the number of new tokens of each event. Raises OSError or RuntimeError when it cannot be served."""
    body = json.dumps(
        {
            "prompt": list(ids),
            "n_predict": output,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "cache_prompt": False,
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST /completion HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"llama-server answered {status.decode().strip()!r}")
        async for line in reader:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if event.get("tokens") or (event.get("content") is not None and not event.get("stop")):
                    yield len(event.get("tokens") or ()) or 1
    finally:
        writer.close()
