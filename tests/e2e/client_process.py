"""A client as a process of its own, to be killed: `python client_process.py RUNTIME OPTIONS`, a JSON object."""

from __future__ import annotations

import json
import sys

from inferd_client import Client

if __name__ == "__main__":
    runtime, options = sys.argv[1], json.loads(sys.argv[2])
    with Client(runtime, name="victim") as client:
        for _ in client.generate(options.pop("prompt"), stream=True, **options):
            pass
