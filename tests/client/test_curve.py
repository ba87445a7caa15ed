"""Over tcp the client proves itself with CURVE keys and speaks to no impostor."""

from __future__ import annotations

import threading

import pytest
import zmq

import inferd_client as ic
from inferd_client import protocol as p

pytestmark = pytest.mark.skipif(not zmq.has("curve"), reason="libzmq without CURVE")


def serve_once(context: zmq.Context, secret: bytes, over: threading.Event) -> tuple[str, threading.Thread]:
    """Answer a hello and a status on a CURVE socket."""
    sock = context.socket(zmq.ROUTER)
    sock.curve_server = True
    sock.curve_secretkey = secret
    sock.linger = 0
    port = sock.bind_to_random_port("tcp://127.0.0.1")

    def run() -> None:
        while not over.is_set():
            if not sock.poll(50):
                continue
            identity, *frames = sock.recv_multipart()
            message = p.decode(frames, p.control_decoder)
            reply: p.Reply = p.StatusReply(id=getattr(message, "id", ""), pid=7)
            if isinstance(message, p.Hello):
                limits = p.Limits(max_frame=1 << 20, max_queue=1, max_client_requests=1)
                reply = p.Welcome(
                    major=1, minor=0, version="t", instance="i", session="s", role="user", limits=limits, heartbeat_s=1
                )
            sock.send_multipart([identity, *p.encode(reply)])
        sock.close(100)

    thread = threading.Thread(target=run)
    thread.start()
    return f"tcp://127.0.0.1:{port}", thread


@pytest.mark.parametrize("right_key", [True, False])
def test_only_the_daemon_with_the_known_key_is_spoken_to(right_key):
    server_public, server_secret = zmq.curve_keypair()
    other_public, _ = zmq.curve_keypair()
    public, secret = zmq.curve_keypair()
    context = zmq.Context()
    over = threading.Event()
    endpoint, thread = serve_once(context, server_secret, over)
    keys = ic.Curve(server_key=server_public if right_key else other_public, public_key=public, secret_key=secret)
    timeouts = ic.Timeouts(connect=60.0 if right_key else 0.5)
    with ic.Client(endpoints=ic.Endpoints(endpoint, endpoint, endpoint), curve=keys, timeouts=timeouts) as client:
        if right_key:
            assert client.status().pid == 7
        else:
            with pytest.raises(ic.ConnectionFailed):
                client.status()
    over.set()
    thread.join(60)
    context.destroy(linger=0)
