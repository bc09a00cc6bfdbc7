#!/usr/bin/python3
"""Training speed as ratios in one run: `eps train` with one worker of 2 threads against PyTorch, doing the same work.

  keep          all activations kept              against PyTorch as it is
  recompute     every block recomputed            against PyTorch with a checkpoint per block (the faster of its two)
  relay         under the smallest cap, recompute  against everything resident, recompute

Both sides: the same GPT-2 shape, batch, fp32 and AdamW; a step is batch + forward + backward + update. PyTorch runs on
OpenBLAS with its allocator tuned to keep its pages: with glibc's defaults it gives them back and faults them in again,
every step. The sides take turns; each round starts fresh processes and drops their first step. Prints a table and,
last, one JSON line.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "harness"))
EPS = ROOT / "bin" / "eps"

# glibc keeps freed memory instead of giving its pages back.
TORCH_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(1 << 28),
                "MALLOC_MMAP_MAX_": "0"}


def torch_side(args, checkpointing):
    """Runs in a process of its own: prints the seconds of each step."""
    import numpy as np
    import torch
    from torch.utils.checkpoint import checkpoint

    import torch_gpt2

    torch.set_num_threads(args.threads)
    layers, d, heads, T, B = args.layers, args.d_model, args.heads, args.context, args.batch
    w = {k: v.requires_grad_() for k, v in torch_gpt2.random_weights(layers, d, T, 256, seed=1).items()}
    optimizer = torch_gpt2.adamw(w, 6e-4, (0.9, 0.95), 1e-8, 0.1)
    text = torch.from_numpy(np.frombuffer(Path(args.text).read_bytes(), np.uint8).astype(np.int64))

    def run_block(w, i, x, heads):
        if checkpointing == "none":
            return torch_gpt2.block(w, i, x, heads)
        return checkpoint(torch_gpt2.block, w, i, x, heads, use_reentrant=checkpointing == "reentrant")

    for step in range(args.steps):
        start = time.perf_counter()
        rows = [text[i * T: i * T + T + 1] for i in range(step * B, (step + 1) * B)]
        batch = torch.stack(rows)
        optimizer.zero_grad(set_to_none=True)
        torch_gpt2.loss(w, batch[:, :-1], batch[:, 1:], layers, heads, run_block).backward()
        optimizer.step()
        print(json.dumps({"seconds": time.perf_counter() - start}), flush=True)


def torch_step_seconds(args, checkpointing):
    command = [sys.executable, str(Path(__file__).resolve()), "--torch-side", checkpointing, *shape_arguments(args)]
    out = subprocess.run(command, env={**os.environ, **TORCH_MALLOC}, check=True, capture_output=True, text=True).stdout
    return [json.loads(line)["seconds"] for line in out.splitlines()]


def run_torch(args, checkpointing):
    return tokens_per_second(args, torch_step_seconds(args, checkpointing))


def tokens_per_second(args, seconds):
    seconds = seconds[1:]
    return args.batch * args.context * len(seconds) / sum(seconds)


def run_spec(args):
    """Of a GPT-2 over bytes, fp32, one vnode."""
    return {
        "model": {"family": "GPT2", "layers": args.layers, "d_model": args.d_model, "heads": args.heads,
                  "context": args.context, "vocab": 256, "init_seed": 1},
        "data": {"path": args.text, "tokenizer": "BYTES", "order": "SEQUENTIAL"},
        "batch": {"virtual_nodes": 1, "micro_batches": args.batch // args.micro_batch, "micro_batch": args.micro_batch},
        "optimizer": {"adamw": {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
                      "schedule": {"peak": 6e-4}},
        "precision": {"wire": "FP32", "gradients": "FP32"}, "steps": args.steps,
    }


def eps_step_seconds(args, folder, *options, program=EPS):
    path, out = Path(folder) / "run.json", Path(tempfile.mkdtemp(dir=folder)) / "run"
    path.write_text(json.dumps(run_spec(args)))
    subprocess.run([str(program), "train", "--run", str(path), "--out", str(out), "--threads", str(args.threads), "--quiet",
                    *options], check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["step_seconds"] for line in lines]


def run_eps(args, folder, *options):
    return tokens_per_second(args, eps_step_seconds(args, folder, *options))


def smallest_cap(args, folder):
    path = Path(folder) / "run.json"
    done = subprocess.run([str(EPS), "train", "--run", str(path), "--out", str(Path(folder) / "refused"), "--device-memory",
                           "1024", "--quiet", "--set", "relay.inner=RECOMPUTE"], capture_output=True, text=True)
    return re.search(r"needs at least (\d+) bytes", done.stderr).group(1)


def compare(args, name, ours, theirs, ours_name, theirs_name):
    a, b = [], []
    for _ in range(args.rounds):
        a.append(ours())
        b.append(theirs())
    ratio = statistics.median(a) / statistics.median(b)
    print(f"  {name:<10} {ours_name:<34} {statistics.median(a):8.0f} tokens/s   [{min(a):.0f}..{max(a):.0f}]")
    print(f"  {'':<10} {theirs_name:<34} {statistics.median(b):8.0f} tokens/s   [{min(b):.0f}..{max(b):.0f}]")
    print(f"  {'':<10} ratio {ratio:.3f}; round by round {' '.join(f'{x / y:.2f}' for x, y in zip(a, b))}", flush=True)
    return {"ratio": round(ratio, 4), "ours": round(statistics.median(a), 1), "theirs": round(statistics.median(b), 1)}


SHAPE = {"layers": 6, "d-model": 384, "heads": 6, "context": 256, "batch": 16, "micro-batch": 8, "steps": 4,
         "threads": 2}


def shape_arguments(args):
    return [word for key in SHAPE for word in (f"--{key}", str(getattr(args, key.replace("-", "_"))))] + ["--text", args.text]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for key, value in SHAPE.items():
        parser.add_argument(f"--{key}", type=int, default=value)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="keep, recompute or relay")
    parser.add_argument("--text", default="")
    parser.add_argument("--torch-side", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.torch_side:
        torch_side(args, args.torch_side)
        return

    with tempfile.TemporaryDirectory(prefix="eps-bench-") as folder:
        if not args.text:
            from eps_run import sample_text
            args.text = str(Path(folder) / "text.txt")
            Path(args.text).write_bytes(sample_text(1_000_000))
        print(f"train: {args.layers} layers, {args.d_model} wide, {args.context} tokens, batch {args.batch} "
              f"(ours in micro-batches of {args.micro_batch}), fp32, {args.threads} threads, medians of {args.rounds}")
        results = {}
        if args.only in ("", "keep"):
            results["keep"] = compare(
                args, "keep", lambda: run_eps(args, folder, "--set", "relay.inner=KEEP"), lambda: run_torch(args, "none"),
                "eps, relay, all kept", "PyTorch")
        if args.only in ("", "recompute"):
            faster = max(("reentrant", "nonreentrant"), key=lambda kind: run_torch(args, kind))
            results["recompute"] = compare(
                args, "recompute", lambda: run_eps(args, folder, "--set", "relay.inner=RECOMPUTE"),
                lambda: run_torch(args, faster), "eps, relay, recomputed", f"PyTorch, checkpoint ({faster})")
        if args.only in ("", "relay"):
            run_eps(argparse.Namespace(**{**vars(args), "steps": 2}), folder, "--set", "relay.inner=RECOMPUTE")
            cap = smallest_cap(args, folder)
            results["relay"] = compare(
                args, "relay", lambda: run_eps(args, folder, "--device-memory", cap, "--set", "relay.inner=RECOMPUTE"),
                lambda: run_eps(args, folder, "--set", "relay.inner=RECOMPUTE", "--set", "relay.resident=true"),
                f"eps, relay in {int(cap) / 2**20:.1f} MiB", "eps, everything resident")
    print(json.dumps({"name": "train", **results}))


if __name__ == "__main__":
    main()
