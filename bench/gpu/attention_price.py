#!/usr/bin/env python3
"""What bits that are the same each time cost the backward of attention, of bench/gpu/run's part exact-bits.

Of PyTorch's scaled_dot_product_attention by FlashAttention, whose backward adds up the gradient of queries in a fixed order
when it is to be deterministic. Ours is cuDNN's, which in that part is deterministic on both sides, and PyTorch has no
deterministic form of cuDNN's yet: this is the nearest that can be compared. Causal, in bf16. Prints a line of JSON: the
seconds of one backward either way; or `error`, where this machine or this PyTorch has none.
"""

import argparse
import json
import statistics

import torch

CALLS = 50  # between two events
ROUNDS = 9  # in turn, as clocks drift; the first one warms up
AHEAD_CYCLES = 50_000_000  # of the GPU, some 30 ms, in which the host, which is slower, enqueues all calls of a round


def backward_seconds(deterministic, arrays, out, gradient):
    torch.use_deterministic_algorithms(deterministic)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(AHEAD_CYCLES)
    start.record()
    for _ in range(CALLS):
        torch.autograd.grad(out, arrays, gradient, retain_graph=True)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / CALLS


def measure(args):
    """{"deterministic_seconds", "free_seconds"}"""
    if not torch.cuda.is_available():
        return {"error": "PyTorch sees no GPU"}
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return {"error": "this PyTorch does not let one choose the attention"}
    torch.utils.deterministic.fill_uninitialized_memory = False  # a check for errors, which takes time of its own
    torch.manual_seed(1)
    shape = (args.sequences, args.heads, args.tokens, args.width)
    arrays = [torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        out = torch.nn.functional.scaled_dot_product_attention(*arrays, is_causal=True)
    gradient = torch.randn_like(out)
    rounds = [[backward_seconds(deterministic, arrays, out, gradient) for deterministic in (True, False)]
              for _ in range(ROUNDS)]
    return dict(zip(("deterministic_seconds", "free_seconds"), map(statistics.median, zip(*rounds[1:]))))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("sequences", 16), ("heads", 16), ("tokens", 512), ("width", 64)):
        parser.add_argument(f"--{name}", type=int, default=value)
    try:
        said = measure(parser.parse_args())
    except Exception as error:  # whatever it lacks
        said = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    print(json.dumps({"name": "gpu_attention_price", "torch": torch.__version__, **said}))


if __name__ == "__main__":
    main()
