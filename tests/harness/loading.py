"""Large folders of a model, made at once, and a daemon's memory and time while it loads one."""

import json
import os
import re
import struct
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from eps_run import BIN, EPS, TIME_SCALE, run

D, CONTEXT, VOCAB = 1024, 64, 8192
ELEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2}


def shapes(layers):
    result = {"transformer.wte.weight": (VOCAB, D), "transformer.wpe.weight": (CONTEXT, D)}
    for i in range(layers):
        h = f"transformer.h.{i}."
        result.update({h + "ln_1.weight": (D,), h + "ln_1.bias": (D,), h + "attn.c_attn.weight": (D, 3 * D),
                       h + "attn.c_attn.bias": (3 * D,), h + "attn.c_proj.weight": (D, D), h + "attn.c_proj.bias": (D,),
                       h + "ln_2.weight": (D,), h + "ln_2.bias": (D,), h + "mlp.c_fc.weight": (D, 4 * D),
                       h + "mlp.c_fc.bias": (4 * D,), h + "mlp.c_proj.weight": (4 * D, D), h + "mlp.c_proj.bias": (D,)})
    return {**result, "transformer.ln_f.weight": (D,), "transformer.ln_f.bias": (D,)}


def make_folder(folder, num_bytes, dtype="BF16", shards=2):
    """A GPT-2 of about `num_bytes`, of finite values, in shards with their index. Returns the shards' paths."""
    folder.mkdir()
    layers = max(1, round((num_bytes / ELEM_BYTES[dtype] - VOCAB * D) / (12 * D * D)))
    (folder / "config.json").write_text(json.dumps({
        "model_type": "gpt2", "n_layer": layers, "n_embd": D, "n_head": 16, "n_positions": CONTEXT, "vocab_size": VOCAB,
        "embd_pdrop": 0, "attn_pdrop": 0, "resid_pdrop": 0}))
    # The highest byte of each number is below 0x3f: small, and neither infinite nor NaN.
    last = ELEM_BYTES[dtype] - 1
    block = bytes((i * 2654435761 >> 7) & (0x3f if i % (last + 1) == last else 0xff) for i in range(1 << 18)) * 32
    tensors, paths, weight_map = list(shapes(layers).items()), [], {}
    for s in range(shards):
        path = folder / f"model-{s + 1:05}-of-{shards:05}.safetensors"
        header, end = {}, 0
        for name, shape in tensors[s * len(tensors) // shards:(s + 1) * len(tensors) // shards]:
            length = ELEM_BYTES[dtype] * shape[0] * (shape[1] if len(shape) > 1 else 1)
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + length]}
            weight_map[name], end = path.name, end + length
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for begin in range(0, end, len(block)):
                file.write(block[:end - begin])
            file.flush()
            os.fsync(file.fileno())
        paths.append(path)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return paths


class Loaded(NamedTuple):
    seconds: float      # of reading and storing the tensors, by the daemon's log
    cpu_seconds: float  # of all its threads, from its start to where it listens
    tensor_bytes: int   # in the files
    peak_bytes: int     # of the daemon's own memory and of what it shares with workers: RssAnon + RssShmem
    peak_file_bytes: int  # RssFile: its code, and pages of the files that were mapped at that moment
    planned: dict       # `host` of eps plan


def memory(pid):
    """By kind, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return {key: 1024 * int(value) for key, value in re.findall(r"^(Rss\w+):\s+(\d+) kB$", status, re.M)}


def load(folder, work, timeout=600):
    """What a daemon takes that trains from `folder`, until it listens; `work` is an empty folder for its files."""
    (work / "text.txt").write_bytes(b"so it was\n" * 100)
    spec = work / "run.json"
    spec.write_text(json.dumps({
        "model": {"from": str(folder)}, "data": {"path": "text.txt", "tokenizer": "BYTES"}, "batch": {}, "steps": 1,
        "optimizer": {"adamw": {}, "schedule": {"peak": 1e-3}}, "checkpoint": {"buffer_bytes": 1 << 20}}))
    plan = run([str(EPS), "plan", "--run", str(spec), "--json"])
    if plan.returncode != 0:
        raise AssertionError(plan.stderr)
    peak = peak_file = 0
    with open(work / "log", "w") as log:
        daemon = subprocess.Popen([str(BIN / "eps_server"), "--run", str(spec), "--out", str(work / "out"), "--listen",
                                   "127.0.0.1:0", "--threads", str(os.cpu_count())],
                                  stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + timeout * TIME_SCALE
        while not (work / "out" / "endpoints.json").exists():
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"it does not listen: {(work / 'log').read_text()}")
            sizes = memory(daemon.pid)
            peak = max(peak, sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0))
            peak_file = max(peak_file, sizes.get("RssFile", 0))
            time.sleep(0.002)
        ticks = Path(f"/proc/{daemon.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    finally:
        daemon.kill()
        daemon.wait()
    said = re.search(r"weights_loaded .*tensor_bytes=(\d+) seconds=([\d.e+-]+)", (work / "log").read_text())
    cpu_seconds = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return Loaded(float(said[2]), cpu_seconds, int(said[1]), peak, peak_file, json.loads(plan.stdout)["host"])
