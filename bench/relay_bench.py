#!/usr/bin/python3
"""Do products dominate a relay? `eps train`, one worker of 2 threads, with everything kept and with every block recomputed:

  products   operations per second of the products that a step executes, over the whole step, against the peak: the very same
             products, each with its shape and as often, back to back, in the faster of two ways (products_bench)
  PyTorch    tokens per second against PyTorch 1.13, which keeps or recomputes as well (train_bench.py)
  table      where the time goes, from a run of its own whose kernels are timed (timed_device.h)

Operations are counted from the kernels that ran: of matrix products 2 M N K, of causal attention half of its pairs, five
products for two in its backward. The peak's rate is that of the matrix products alone; attention's count at that rate.
The sides take turns; each run is fresh processes and drops its first step; medians. A round in which other processes or the
host took more than 3% of the processors is measured again, up to three times as many rounds; how many were quiet is said.
Last, one JSON line.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

import train_bench
from quiet import QUIET, Others
from train_bench import EPS, SHAPE

INNER = {"keep": "KEEP", "recompute": "RECOMPUTE"}


def median_step(seconds):
    return statistics.median(seconds[1:])


def timed_run(args, folder, inner):
    """The kernels of a run, and its median step."""
    programs = Path(folder) / "timed"
    if not programs.exists():
        programs.mkdir()
        for name in ("eps", "eps_server"):
            shutil.copy(EPS.parent / name, programs)
        shutil.copy(Path(args.programs) / "gpu_worker_timed", programs / "gpu_worker")
    path = Path(folder) / "times.json"
    os.environ["EPS_KERNEL_TIMES"] = str(path)
    seconds = train_bench.eps_step_seconds(args, folder, "--set", f"relay.inner={inner}", program=programs / "eps")
    kernels = json.loads(path.read_text())
    for kernel in kernels:
        kernel["calls"] /= args.steps
        kernel["ms"] = kernel["calls"] * kernel["median_seconds"] * 1e3
    return kernels, median_step(seconds)


def products_of(kernels):
    calls = {}
    for kernel in kernels:
        if "product" in kernel:
            key = tuple(kernel["product"])
            calls[key] = calls.get(key, 0) + kernel["calls"]
    return calls


def fastest_seconds(args, products):
    """Of each product, by the faster of the two ways."""
    ways = []
    for way in ("tiles", "library"):
        done = subprocess.run([str(Path(args.programs) / "products_bench"), way, str(args.threads), str(args.peak_rounds)],
                              input=json.dumps(list(products)), check=True, capture_output=True, text=True)
        ways.append(json.loads(done.stdout))
    return dict(zip(products, (min(seconds) for seconds in zip(*ways))))


def peak_rate(products, fastest):
    """Operations per second of a step's calls of them."""
    operations = sum(2 * M * N * K * calls for (_, M, N, K), calls in products.items())
    return operations / sum(calls * fastest[product] for product, calls in products.items())


def print_table(kernels, step, fastest):
    print(f"  where a step's {step * 1e3:.0f} ms go, of a run whose kernels were timed")
    print(f"    {'kernel':<32} {'calls':>5} {'ms':>8} {'share':>6} {'GFLOP/s':>8} {'at the peak, ms':>16}")
    rest = step * 1e3
    for kernel in sorted(kernels, key=lambda kernel: -kernel["ms"]):
        rest -= kernel["ms"]
        name = f"{kernel['kernel']} {kernel['shape']}" if "product" in kernel else kernel["kernel"]
        rate = f"{kernel['operations'] / kernel['median_seconds'] * 1e-9:8.1f}" if kernel["operations"] else ""
        ideal = f"{fastest[tuple(kernel['product'])] * kernel['calls'] * 1e3:16.1f}" if "product" in kernel else ""
        print(f"    {name:<32} {kernel['calls']:5.0f} {kernel['ms']:8.1f} {kernel['ms'] / step / 10:5.1f}% {rate:>8} {ideal}".rstrip())
    print(f"    {'waits, the update, all else':<32} {'':5} {rest:8.1f} {rest / step / 10:5.1f}%")


def measure(args, folder, name, checkpointing):
    inner = INNER[name]
    kernels, timed_step = timed_run(args, folder, inner)
    products = products_of(kernels)
    operations = sum(kernel["calls"] * kernel["operations"] for kernel in kernels)
    rounds = []
    for _ in range(3 * args.rounds):
        others = Others()
        step = median_step(train_bench.eps_step_seconds(args, folder, "--set", f"relay.inner={inner}"))
        fastest = fastest_seconds(args, products)
        torch_step = 0 if args.no_torch else median_step(train_bench.torch_step_seconds(args, checkpointing))
        rounds.append((others.share(), step, peak_rate(products, fastest), torch_step, fastest))
        if sum(share <= QUIET for share, *_ in rounds) == args.rounds:
            break
    quiet = sum(share <= QUIET for share, *_ in rounds)
    rounds = sorted(rounds, key=lambda measured: measured[0])[:args.rounds]  # the quietest
    ours, peaks, theirs = ([measured[i] for measured in rounds] for i in (1, 2, 3))
    ratios = [operations / step / peak for step, peak in zip(ours, peaks)]
    result = {"ratio_of_peak": round(statistics.median(ratios), 4), "step_seconds": round(statistics.median(ours), 4),
              "gflops": round(operations / statistics.median(ours) * 1e-9, 1),
              "peak_gflops": round(statistics.median(peaks) * 1e-9, 1), "gflop_of_a_step": round(operations * 1e-9, 1)}
    print(f"  {name}: {operations * 1e-9:.1f} GFLOP a step, {result['step_seconds']:.3f} s: {result['gflops']} GFLOP/s; peak of "
          f"the same products {result['peak_gflops']}")
    result["quiet_rounds"] = quiet
    print(f"    ratio {result['ratio_of_peak']:.3f}; round by round {' '.join(f'{x:.3f}' for x in ratios)}; others' share of the "
          f"processors {' '.join(f'{100 * share:.0f}%' for share, *_ in rounds)}")
    if not args.no_torch:
        result["against_torch"] = round(statistics.median(b / a for a, b in zip(ours, theirs)), 3)
        print(f"    PyTorch {statistics.median(theirs):.3f} s; ratio {result['against_torch']:.2f}; round by round "
              f"{' '.join(f'{b / a:.2f}' for a, b in zip(ours, theirs))}")
    print_table(kernels, timed_step, fastest=rounds[0][4])
    result["shares"] = {f"{k['kernel']} {k['shape']}".strip(): round(k["ms"] / timed_step / 1e3, 4) for k in kernels}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for key, value in {**SHAPE, "steps": 10}.items():  # the first few are some 2% slower, and one alone is dropped
        parser.add_argument(f"--{key}", type=int, default=value)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peak-rounds", type=int, default=7, help="of the products, in each round")
    parser.add_argument("--only", default="", help="keep or recompute")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--text", default="")
    parser.add_argument("--programs", required=True, help="the folder of gpu_worker_timed and products_bench")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eps-bench-") as folder:
        if not args.text:
            from eps_run import sample_text
            args.text = str(Path(folder) / "text.txt")
            Path(args.text).write_bytes(sample_text(1_000_000))
        print(f"relay: {args.layers} layers, {args.d_model} wide, {args.context} tokens, batch {args.batch} in micro-batches "
              f"of {args.micro_batch}, fp32, {args.threads} threads, medians of {args.rounds}")
        results = {}
        for name, checkpointing in (("keep", "none"), ("recompute", "nonreentrant")):
            if args.only in ("", name):
                results[name] = measure(args, folder, name, checkpointing)
    print(json.dumps({"name": "relay", **results}))


if __name__ == "__main__":
    main()
