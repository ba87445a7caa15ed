"""Open GGUF files in a small process; print one JSON line each, then the peak memory in bytes."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from inferd.load.errors import LoadError
from inferd.load.gguf import GgufFile


def main() -> None:
    for path in Path(sys.argv[1]).iterdir():
        start = time.process_time()
        try:
            GgufFile(path)
            message = ""
        except LoadError as error:
            message = str(error)
        print(json.dumps({"name": path.name, "error": message, "seconds": time.process_time() - start}))
    print(peak_memory())


def peak_memory() -> int:
    """Return VmHWM; getrusage would include the parent's memory from before the exec."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
