#!/usr/bin/python3
"""Two workers over loopback by gRPC, in plaintext and over TLS with client certificates, both with a token: tokens per
second, and the share of pass time in which compute waits, by cause. The sides take turns. Prints a table and, last, one
JSON line."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "harness"))

from eps_run import endpoints, sample_text, summary  # noqa: E402

SIDES = ("plaintext", "tls")
WORKERS = 2


def write_spec(args, folder):
    spec = {
        "model": {"family": "GPT2", "layers": args.layers, "d_model": args.d_model, "heads": args.d_model // 64,
                  "context": args.context, "vocab": 256, "init_seed": 1},
        "data": {"path": "text.txt", "tokenizer": "BYTES", "order": "SEQUENTIAL"},
        "batch": {"virtual_nodes": WORKERS, "micro_batches": 1, "micro_batch": args.micro_batch},
        "optimizer": {"adamw": {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
                      "schedule": {"peak": 6e-4}},
        "steps": args.steps, "transport": "GRPC",
    }
    (folder / "text.txt").write_bytes(sample_text())
    (folder / "run.json").write_text(json.dumps(spec))


def doors(keys, side):
    """Flags of the daemon and of a worker."""
    token = ["--token-file", keys / "token"]
    if side == "plaintext":
        return token, token
    server = ["--tls-cert", keys / "server.crt", "--tls-key", keys / "server.key", "--tls-client-ca", keys / "ca.crt"]
    client = ["--tls-ca", keys / "ca.crt", "--tls-cert", keys / "client.crt", "--tls-key", keys / "client.key"]
    return server + token, client + token


def start(log, *command):
    return subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def run_once(args, folder, side):
    out = Path(tempfile.mkdtemp(dir=folder)) / "run"
    daemon_doors, worker_doors = doors(folder / "keys", side)
    processes = []
    with open(out.parent / "log", "w", encoding="utf-8") as log:
        try:
            daemon = start(log, args.bin / "eps_server", "--run", folder / "run.json", "--out", out, "--expect-workers",
                           WORKERS, *daemon_doors)
            processes.append(daemon)
            address = endpoints(daemon, out, log=out.parent / "log")["grpc"]
            processes += [start(log, args.bin / "gpu_worker", "--connect", address, "--threads", 1, *worker_doors)
                          for _ in range(WORKERS)]
            for process in processes:
                if process.wait() != 0:
                    raise OSError(f"{process.args[0]} ended with exit code {process.returncode}:\n"
                                  + (out.parent / "log").read_text(encoding="utf-8"))
        finally:
            for process in processes:
                process.kill()
                process.wait()
    figures = summary(out)
    return {"tokens_per_second": figures["tokens_per_second"], **figures["wait_fraction"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("layers", 6), ("d-model", 384), ("context", 64), ("micro-batch", 2), ("steps", 20),
                        ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--bin", type=Path, default=ROOT / "bin", help="the folder of the programs to run")
    args = parser.parse_args()
    rounds = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory(prefix="eps-bench-") as name:
        folder = Path(name)
        write_spec(args, folder)
        subprocess.run([str(args.bin / "eps"), "keys", "--out", str(folder / "keys")], check=True,
                       stdout=subprocess.DEVNULL)
        for _ in range(args.rounds):
            for side in SIDES:
                rounds[side].append(run_once(args, folder, side))
    causes = sorted({cause for figures in rounds.values() for one in figures for cause in one} - {"tokens_per_second"})
    result = {"name": "tls"}
    print(f"{'':<10} {'tokens/s':>9} {'waits':>7}  " + " ".join(f"{cause:>8}" for cause in causes))
    for side in SIDES:
        median = {key: statistics.median(one.get(key, 0) for one in rounds[side])
                  for key in ("tokens_per_second", *causes)}
        waits = statistics.median(sum(one.get(cause, 0) for cause in causes) for one in rounds[side])
        print(f"{side:<10} {median['tokens_per_second']:9.0f} {waits:7.3f}  "
              + " ".join(f"{median[cause]:8.3f}" for cause in causes))
        result[side] = {"wait_fraction": round(waits, 4), **{key: round(v, 4) for key, v in median.items()}}
    speeds = [b["tokens_per_second"] / a["tokens_per_second"] for a, b in zip(rounds["plaintext"], rounds["tls"])]
    result["ratio"] = round(statistics.median(speeds), 4)
    print(f"TLS / plaintext, tokens per second: {result['ratio']:.3f}; round by round "
          + " ".join(f"{speed:.2f}" for speed in speeds))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
