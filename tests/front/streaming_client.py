"""A client process that streams for ever; the reconnect test kills it."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    *paths, runtime = sys.argv[1:]
    sys.path += paths

    import zmq

    from inferd_client import protocol as p

    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.IDENTITY, b"same identity")
    socket.connect(f"ipc://{runtime}/data.sock")
    socket.send_multipart(p.encode(p.Hello(client="same")))
    sampling = p.SamplingParams(ignore_eos=True)
    socket.send_multipart(p.encode(p.Generate(id="same", prompt="foreign", sampling=sampling)))
    while not isinstance(p.decode(socket.recv_multipart(), p.answer_decoder), p.Tokens):
        pass
    print("streaming", flush=True)
    while True:
        socket.recv_multipart()
