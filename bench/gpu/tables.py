"""What bench/gpu/run's parts say, in a line and in tables, of the figures that they found."""

import models
from part_report import Table

GIB = 1 << 30
ATTENTION_NOTE = ("Model operations: 6 a weight of a product and token, the head's table among them, and causal "
                  "attention, which is half of 12 * layers * context * width a token. Recomputing counts as none.")
TORCH_NOTE = ("PyTorch: bf16 weights, fp32 masters and moments, fused AdamW, scaled_dot_product_attention, a token "
              "table padded to a multiple of 64 rows; gradients of micro-batches add up in bf16 (ours in fp32). "
              "`autocast`: fp32 weights in place of that. Neither side clips, drops out, or writes a checkpoint.")
MEMORY_NOTE = ("Ours: what lies in the arena at most, and what libraries hold beside it. PyTorch's: what its tensors "
               "take at most (its allocator holds more). The batch is one micro-batch there, as in L2L's baseline, and "
               "micro-batches of 32 here. L2L's paper has 45% less memory and 40% more throughput.")


def share(a, b):
    return a / b if a and b else None


def gib(num_bytes):
    return None if num_bytes is None else num_bytes / GIB


# ---- In words ----

def compared(middle, best, ratios, torch):
    if relay := middle.get("relay"):
        yield f"relay in {gib(relay['device_cap_bytes']):.3g} GiB {relay['tokens_per_second']:,.0f} tokens/s"
        if ratios["relay_to_resident"]:
            yield f"{ratios['relay_to_resident']:.3f} of everything resident (goal 0.95)"
        if best:
            yield f"{ratios['relay_to_torch']:.3f} of PyTorch's best, {best['variant']} (goal 1.0)"
        yield f"waits {relay['wait_fraction']:.1%} (goal below 5%)"
    if not best:
        name, variant = next(iter(torch["variants"].items()))
        yield f"PyTorch ran in no way ({name}: {variant['error']})"


# ---- Tables ----

def link_tables(links):
    copies = [[row["memory"], row["piece_bytes"] >> 20, *(row[f"{key}_gb_per_second"] for key in (
        "in", "out", "both_in", "both_out"))] for row in links["copies"]]
    notes = [f"Within the device {links['device_copy_gb_per_second']:.0f} GB/s, read and written. Registering shared "
             f"memory: {links['register_seconds_per_gb']:.3f} s a GB at once, "
             f"{links['register_in_pieces_seconds_per_gb']:.3f} s in pieces of 32 MiB."]
    products = [[row[key] for key in ("form", "M", "N", "K", "tflops")] for row in links["products"]]
    return [Table("Copies between host and device, GB/s", ["memory", "pieces of MiB", "in", "out", "in, both at once",
                                                           "out, both at once"], copies, notes),
            Table("bf16 products by cuBLASLt", ["form", "M", "N", "K", "TFLOP/s"], products,
                  ["NN: forward; NT: gradient of the input; TN: gradient of the weight, in fp32, added to."])]


def update_table(update):
    rows = [[name, update[key], 28 * update["parameters"] / update[key] / 1e9, update["parameters"] / update[key] / 1e9]
            for name, key in (("plain loop", "floor_seconds"), ("update", "update_seconds"))]
    return Table(f"Update of {update['parameters'] / 1e6:.0f} M parameters by {update['threads']} threads",
                 ["", "s", "GB/s of DRAM", "G parameters/s"], rows,
                 [f"{update['ratio']:.3f} of the byte floor (goal 0.85)."])


SPEED_COLUMNS = ["", "tokens/s", "model TFLOP/s", "of the bf16 peak", "device GiB", "waits", "recomputed"]


def speed_table(model, batch, ours, torch):
    rows = []
    for name, got in ours.items():
        rows.append([name, got["tokens_per_second"], got["model_flops"] / 1e12, got["utilisation"],
                     gib(got["device_peak_bytes"] + (got["device_outside_bytes"] or 0)), got["wait_fraction"],
                     got["recomputed"]])
    operations = models.model_operations(model, 1)
    notes = [ATTENTION_NOTE, "Waits: the share of a pass in which the compute stream waits."]
    for name, variant in (torch["variants"] if torch else {}).items():
        speed = variant.get("tokens_per_second")
        rows.append([f"PyTorch, {name}", speed or variant["error"], speed and speed * operations / 1e12, None,
                     gib(variant.get("peak_bytes")), None, None])
    if torch:
        notes += [TORCH_NOTE, *([f"PyTorch {torch['torch']}. {'; '.join(torch['notes'])}"] if torch["torch"] else [])]
    title = (f"{model.name}: {model.layers} layers, {model.d} wide, {model.heads} heads, context {model.context}; "
             f"{batch.micro_batches} micro-batches of {batch.micro_batch} sequences")
    return Table(title, SPEED_COLUMNS, rows, notes)


def curve_table(model, points, left_out):
    rows = []
    for tokens, got in sorted(points.items()):
        floors = got["floors"]
        known = {name: seconds for name, seconds in floors.items() if seconds is not None}
        bound = max(known, key=known.get, default=None)
        rows.append([tokens, got["step_seconds"], known.get(bound), bound, *floors.values(), got["tokens_per_second"],
                     got["utilisation"], got["wait_fraction"], got["recomputed"],
                     models.pulled_bytes(model) / got["step_seconds"] / 1e9,
                     gib(got["host_planned_bytes"])])
    notes = [ATTENTION_NOTE,
             "The model of a step: the largest of compute (operations, what is recomputed among them, over the bf16 "
             "peak), in and out (weights, gradients and boundaries over the link, both ways at once), update (by all "
             "cores), and host (all that the host's memory reads and writes, over its bandwidth).",
             "Pulls: the bytes of weights over the time of the whole step. The worker does not tell how long its "
             "transfers took, so this is the least that they reached; it comes near to the link where a step is bound "
             "by `in`.",
             *left_out]
    return Table(f"{model.name}: speed against tokens a step",
                 ["tokens a step", "s", "model s", "bound by", "compute s", "in s", "out s", "update s", "host s",
                  "tokens/s", "of the bf16 peak", "waits", "recomputed", "pulls GB/s", "host GiB planned"], rows, notes)


def memory_rows(batch, ours, theirs):
    sequences = batch.micro_batches * batch.micro_batch
    mine = ours["device_peak_bytes"] + (ours["device_outside_bytes"] or 0)
    rows = []
    for name, variant in theirs["variants"].items():
        peak, speed = variant.get("peak_bytes"), variant.get("tokens_per_second")
        rows.append([sequences, f"PyTorch, {name}" + (f": {variant['error']}" if "error" in variant else ""), gib(peak),
                     share(mine, peak), speed, share(ours["tokens_per_second"], speed)])
    return [[sequences, "ours", gib(mine), None, ours["tokens_per_second"], None], *rows]


def memory_table(model, rows):
    return Table(f"Memory at equal batch: {model.name}",
                 ["sequences", "who", "device GiB", "of PyTorch's", "tokens/s", "of PyTorch's"], rows, [MEMORY_NOTE])


def memory_said(rows):
    told = [f"batch {row[0]}: {1 - row[3]:.0%} less memory and {row[5] - 1:+.0%} throughput against {row[1]}"
            for row in rows if row[3] and row[5] and "checkpoint" not in row[1]]
    return "; ".join(told) or "no peak of PyTorch's to compare with"
