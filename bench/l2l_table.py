#!/usr/bin/python3
"""L2L's table (arXiv 2002.05645), by `eps plan`: device memory of BERT-Large against the whole model on the device, for batches of 2
to 256 samples and 24 to 384 layers, and the largest model for 16 GiB of device memory and 512 GB of host memory.

Arithmetic alone: nothing is trained. The last line is one JSON object."""

import argparse
import itertools
import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BERT_LARGE = ROOT / "examples/bert_large.textproto"
MICRO_BATCH = 2  # samples that a layer runs at once, in the relay
# On the device beside activations where it has everything: weights and gradients in 16 bits, master and two moments in fp32.
WHOLE_MODEL_BYTES = 2 + 2 + 4 + 4 + 4
DEVICE_BYTES, HOST_BYTES = 16 << 30, 512 * 10**9  # L2L's machine
GIB = 1 << 30


def plan(**fields):
    command = [str(ROOT / "bin/eps"), "plan", "--run", str(BERT_LARGE), "--device", "cuda", "--json"]
    for field, value in fields.items():
        command += ["--set", f"{field.replace('__', '.')}={value}"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def of_batch(batch, **fields):
    """As a vnode: micro-batches of MICRO_BATCH, one after the other."""
    return {"batch__virtual_nodes": 1, "batch__micro_batch": MICRO_BATCH,
            "batch__micro_batches": batch // MICRO_BATCH, **fields}


def relay(batch, layers):
    """The smallest arena: nothing kept, boundaries on the host."""
    made = plan(**of_batch(batch, model__layers=layers, relay__inner="RECOMPUTE", relay__boundaries="HOST"))
    return made["device"]["smallest_cap_bytes"], made["worker_host"]["boundary_bytes"]


def whole_model(batch, layers):
    """Everything on the device: the state, and all activations of a batch that runs at once, kept, as this device's kernels need them."""
    made = plan(batch__virtual_nodes=1, batch__micro_batches=1, batch__micro_batch=batch, model__layers=layers,
                relay__resident="true", relay__inner="KEEP", relay__boundaries="DEVICE")
    of_state = ("weights", "gradients", "push")
    activations = sum(b["bytes"] for b in made["device"]["buffers"] if b["what"] not in of_state + ("device total",)
                      and not b["what"].startswith("host"))
    return made["parameters"] * WHOLE_MODEL_BYTES + activations


def most_layers(**shape):
    """Of that width, with a batch of 32: what 16 GiB and 512 GB hold, the state, boundaries and the daemon's buffers included. Clipped
    by the norm of the step before, so that no gradients are held."""
    def fits(layers):
        made = plan(**of_batch(32, model__layers=layers, relay__inner="RECOMPUTE", relay__boundaries="HOST",
                               checkpoint__buffer_bytes=0, optimizer__clip__mode="LAGGED", **shape))
        host = made["host"]["total_bytes"] + made["worker_host"]["total_bytes"]
        return made, made["device"]["smallest_cap_bytes"] <= DEVICE_BYTES and host <= HOST_BYTES
    low, high = 1, 4096
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle)[1] else (low, middle - 1)
    made, _ = fits(low)
    return low, made["parameters"], made["host"]["total_bytes"] / made["parameters"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    rows = []
    print("BERT-Large, 512 tokens a sample, device memory: relay (micro-batches of 2, nothing kept) against the whole model there")
    print(f"{'layers':>6} {'batch':>6} {'relay':>12} {'whole model':>14} {'less':>7} {'boundaries on the host':>24}")
    for layers, batches in ((24, (2, 4, 8, 16, 32, 64, 128, 256)), (48, (32,)), (96, (32,)), (384, (2, 32, 256))):
        for batch in batches:
            device, boundaries = relay(batch, layers)
            whole = whole_model(batch, layers)
            rows.append({"layers": layers, "batch": batch, "relay_bytes": device, "whole_model_bytes": whole,
                         "host_boundary_bytes": boundaries})
            print(f"{layers:>6} {batch:>6} {device / GIB:>8.2f} GiB {whole / GIB:>10.1f} GiB {1 - device / whole:>7.1%} "
                  f"{boundaries / GIB:>20.2f} GiB")
    print("L2L: 45% less at batches of up to 256, 24 layers; a batch of 32 in less than 8 GB")
    largest = []
    for what, shape in (("1,024 wide", {}), ("8,192 wide", {"model__d_model": 8192, "model__heads": 64, "model__d_ff": 32768})):
        for moments, versions in itertools.product(("FP32", "BF16", "FP8"), (2, 1)):
            layers, parameters, per_parameter = most_layers(precision__moments=moments, precision__wire_versions=versions, **shape)
            largest.append({"shape": what, "moments": moments, "wire_versions": versions, "layers": layers, "parameters": parameters})
            print(f"most that 16 GiB and 512 GB hold, {what}, {moments} moments, wire_versions {versions}: {layers} layers, "
                  f"{parameters / 1e9:.1f} billion parameters ({per_parameter:.1f} bytes of host memory each); L2L: up to 50 billion")
    constant = len({row["relay_bytes"] for row in rows}) == 1
    print("device memory of the relay is", "the same in every row" if constant else "NOT the same in every row")
    print(json.dumps({"rows": rows, "largest": largest, "constant": constant}))


if __name__ == "__main__":
    main()
