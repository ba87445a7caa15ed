"""OpenVINO GenAI in its own interpreter: reads one JSON line a question, writes one a answer. Run as a file.

    python openvino_child.py MODEL THREADS [PROPERTY=VALUE ...]

{"prompts": [[ids, ...], ...], "output": N} is answered with the seconds taken, the mean seconds a token after the
first as the pipeline counts them, and the peak of resident bytes.
"""

# pyright: reportAttributeAccessIssue=false
import json
import resource
import sys
import time

import numpy as np
import openvino  # pyright: ignore
import openvino_genai as genai  # pyright: ignore

BLOCKS = 1024
"""KV blocks of 32 tokens: room for 32 sequences of 256 and for a prompt of 2048."""
TOKENS_A_STEP = 2048


def pipeline(path, threads, properties):
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    scheduler.num_kv_blocks = BLOCKS
    scheduler.max_num_seqs = 64
    scheduler.max_num_batched_tokens = TOKENS_A_STEP
    return genai.LLMPipeline(path, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=threads, **properties)


def answer(pipe, prompts, output):
    ids = np.array(prompts, np.int64)
    inputs = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
    config = genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = output, True, False
    start = time.perf_counter()
    result = pipe.generate(inputs, config)
    seconds = time.perf_counter() - start
    assert all(len(tokens) == output for tokens in result.tokens)
    tpot = result.perf_metrics.get_tpot().mean / 1e3 if output > 1 else None
    return {"seconds": seconds, "tpot": tpot, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def main(path, threads, *properties):
    pipe = pipeline(path, int(threads), dict(p.split("=", 1) for p in properties))
    print(json.dumps({"ready": openvino.__version__}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(pipe, **json.loads(line))), flush=True)


main(*sys.argv[1:])
