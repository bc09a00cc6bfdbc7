#!/usr/bin/python3
"""How fast a daemon loads a folder of a model, and in how much memory, against a plain read of the same files.

Loading reads the files and fills memory that nobody has touched: its floor is the slower of the two. The first is timed
with the files in the system's memory and, where it lets go of them, from the disk; the second by filling as much fresh
shared memory from one thread. Where others keep the cores busy, the processor's time says more: loading's against that of
reading and filling together."""

import argparse
import json
import mmap
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "harness"))

import loading  # noqa: E402

PIECE = 8 << 20


class Taken(NamedTuple):
    seconds: float
    cpu_seconds: float


def now():
    return Taken(time.monotonic(), time.process_time())


def since(begin):
    end = now()
    return Taken(end.seconds - begin.seconds, end.cpu_seconds - begin.cpu_seconds)


def read(paths):
    begin, buffer = now(), bytearray(PIECE)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return since(begin)


def fill(num_bytes):
    piece = bytes(range(256)) * (PIECE // 256)
    with mmap.mmap(-1, num_bytes) as memory:
        begin = now()
        for first in range(0, num_bytes, PIECE):
            memory[first:first + PIECE] = piece[:num_bytes - first]
        return since(begin)


def forget(paths):
    """Takes the files out of the system's memory, as far as it lets them go."""
    for path in paths:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def is_in_memory(folder):
    """Whether no disk is behind it."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return any(words[2] == number and words[words.index("-") + 1] in ("tmpfs", "ramfs") for words in mounts)


def load(folder, work):
    work.mkdir()
    loaded = loading.load(folder, work)
    shutil.rmtree(work)
    return loaded


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=2_000_000_000, help="of the folder")
    parser.add_argument("--dtype", default="BF16", choices=["BF16", "F16", "F32"], help="of its tensors")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", default="", help="where the folder is made; default: a temporary folder")
    args = parser.parse_args()
    taken = {name: [] for name in ("read", "fill", "load", "disk read", "disk load")}
    loads = []
    with tempfile.TemporaryDirectory(prefix="eps-bench-", dir=args.out or None) as folder:
        folder = Path(folder)
        if is_in_memory(folder):
            print(f"load_bench: {folder} lies in memory: give a folder on a disk as --out", file=sys.stderr)
            sys.exit(77)  # cannot run here, as ./test understands it
        paths = loading.make_folder(folder / "hf", args.bytes, args.dtype)
        for i in range(args.rounds):  # in turn: what else the machine does falls on all of them
            read(paths)  # into the system's memory
            taken["read"].append(read(paths))
            loads.append(load(folder / "hf", folder / "warm"))
            taken["load"].append(loads[-1])
            filled = loads[-1].peak_bytes
            taken["fill"].append(fill(filled))
            forget(paths)
            taken["disk read"].append(read(paths))
            forget(paths)
            loads.append(load(folder / "hf", folder / "cold"))
            taken["disk load"].append(loads[-1])
    best = {name: min(value.seconds for value in values) for name, values in taken.items()}
    cpu = {name: min(value.cpu_seconds for value in values) for name, values in taken.items()}
    num_bytes, planned = loads[0].tensor_bytes, loads[0].planned
    peak, peak_file = max(l.peak_bytes for l in loads), max(l.peak_file_bytes for l in loads)
    floor, disk_floor = max(best["read"], best["fill"]), max(best["disk read"], best["fill"])
    print(f"load: a folder of {num_bytes / 1e9:.2f} GB, {args.dtype}, which fills {filled / 1e9:.2f} GB of the state; best of "
          f"{args.rounds}, {os.cpu_count()} threads, load {os.getloadavg()[0]:.1f}")
    for name, what in (("read", "plain read, files in memory"), ("fill", "fresh memory filled, one thread"),
                       ("load", "eps_server, files in memory"), ("disk read", "plain read, files on disk"),
                       ("disk load", "eps_server, files on disk")):
        of = filled if name == "fill" else num_bytes
        print(f"  {what:<34} {best[name]:7.2f} s  {of / best[name] / 1e9:6.2f} GB/s   {cpu[name]:6.2f} s of processors")
    cpu_ratio = (cpu["read"] + cpu["fill"]) / cpu["load"]
    print(f"  floor / load: {floor / best['load']:.2f} in memory, {disk_floor / best['disk load']:.2f} from disk; of processors' time "
          f"(read + fill) / load {cpu_ratio:.2f}")
    print(f"  peak {peak / 1e9:.3f} GB of own and shared memory, {peak / planned['model_state_bytes']:.3f} of the planned state of "
          f"{planned['model_state_bytes'] / 1e9:.3f} GB; {peak_file / 1e6:.0f} MB of mapped files and code")
    print(json.dumps({"name": "load", "folder_bytes": num_bytes,
                      "gb_per_second": round(num_bytes / best["load"] / 1e9, 3),
                      "read_gb_per_second": round(num_bytes / best["read"] / 1e9, 3),
                      "disk_gb_per_second": round(num_bytes / best["disk load"] / 1e9, 3),
                      "disk_read_gb_per_second": round(num_bytes / best["disk read"] / 1e9, 3),
                      "fill_gb_per_second": round(filled / best["fill"] / 1e9, 3),
                      "ratio": round(floor / best["load"], 3), "disk_ratio": round(disk_floor / best["disk load"], 3),
                      "cpu_ratio": round(cpu_ratio, 3),
                      "peak_bytes": peak, "planned_state_bytes": planned["model_state_bytes"],
                      "planned_total_bytes": planned["total_bytes"]}))


if __name__ == "__main__":
    main()
