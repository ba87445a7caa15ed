"""inferd beside llama.cpp and OpenVINO GenAI, alternately in one run: `python -m tests.bench.peers --help`."""
