"""What bench/gpu/run's parts say, in a line and in tables, of the figures that they found."""

import models
from part_report import Table

GIB = 1 << 30
ATTENTION_NOTE = ("Model operations: 6 a weight of a product and token, the head's table among them, and causal "
                  "attention, which is half of 12 * layers * context * width a token. Recomputing counts as none.")
TORCH_NOTE = ("PyTorch: bf16 weights, fp32 masters and moments, fused AdamW, scaled_dot_product_attention, a token "
              "table padded to a multiple of 64 rows; gradients of micro-batches add up in bf16 (ours in fp32). "
              "`autocast`: fp32 weights in place of that. Neither side clips, drops out, or writes a checkpoint.")



def share(a, b):
    return a / b if a and b else None


def gib(num_bytes):
    return None if num_bytes is None else num_bytes / GIB


# ---- In words ----

def goal(value, least=None, tolerance=0.0, below=None):
    """What was to be reached, at `least` or `below`, and whether it was; a `tolerance` of what is measured."""
    wanted = f"below {below:.0%}" if least is None else f"{least:.3g}"
    missed = value >= below if least is None else value < least - tolerance
    return f"(goal {wanted}{': MISSED' if missed else ''})"


def waits_said(got):
    return f"waits {got['wait_fraction']:.1%} {goal(got['wait_fraction'], below=0.05)}"


def compiled_ways(torch):
    """Of what Bench.torch says: those that may be PyTorch's best."""
    return {name: variant for name, variant in torch["variants"].items() if "compiled" in name.split("+")}


def is_compared_with_best(torch):
    """Whether a way ran that may be it."""
    return any("tokens_per_second" in variant for variant in compiled_ways(torch).values())


def compared(model, pairs, best, ratios, torch):
    """pairs: by Batch; ratios: of the fastest of all pairs."""
    for batch, pair in pairs.items():
        if relay := pair.get("relay"):
            yield (f"{batch.tokens(model):,} tokens a step in {batch.micro_batches} micro-batches: relay in "
                   f"{gib(relay['device_cap_bytes']):.3g} GiB {relay['tokens_per_second']:,.0f} tokens/s")
            if ratio := share(relay["tokens_per_second"], pair.get("resident", {}).get("tokens_per_second")):
                yield f"{ratio:.3f} of everything resident {goal(ratio, 0.95)}"
            yield waits_said(relay)
    if len(pairs) > 1 and (ratio := ratios["fastest_relay_to_fastest_resident"]):
        yield f"the fastest relay {ratio:.3f} of the fastest resident {goal(ratio, 0.95)}"
    if ratio := ratios["relay_to_torch"]:
        yield (f"the fastest relay {ratio:.3f} of PyTorch's best, {best['variant']} {goal(ratio, 1)}"
               if is_compared_with_best(torch) else f"the fastest relay {ratio:.3f} of PyTorch's {best['variant']}")
    if not is_compared_with_best(torch):
        yield "not compared with PyTorch's best, as no compiled way ran"
    failed = [f"{name}: {variant['error']}" for name, variant in torch["variants"].items() if "error" in variant]
    if failed:  # of which one might have been the best
        yield f"PyTorch ran {'not in every' if best else 'in no'} way ({'; '.join(failed)})"


def bound_of(floors):
    """What bounds a step, and its seconds; (None, None) where no ceiling is known."""
    known = {name: seconds for name, seconds in floors.items() if seconds is not None}
    name = max(known, key=known.get, default=None)
    return name, known.get(name)


def utilisation_at_bound(got):
    """Of the bf16 peak, were a step as short as what bounds it."""
    name, seconds = bound_of(got["floors"])
    return got["utilisation"] * got["step_seconds"] / seconds if name and got["utilisation"] else None


def limits_said(got):
    name, seconds = bound_of(got["floors"])
    if name is None:
        return "what bounds a step is not known without ceilings (the part `ceilings`, or --ceilings)"
    parts = ", ".join(f"{part} {known:.3g}" for part, known in got["floors"].items() if known is not None)
    most = utilisation_at_bound(got)
    return (f"a step takes {got['step_seconds']:.3g} s, and its parts alone {parts} s: {name} bounds it, "
            f"{share(seconds, got['step_seconds']):.2f} of what it allows is reached"
            + (f", which is {most:.1%} of the bf16 peak" if most else ""))


def copies_said(model, got, ceilings):
    said = []
    for name, kind, num_bytes, link, least in (
            ("pulls", "pull", got["pulled_bytes"], ceilings.in_alone_bytes, 0.9),
            ("pushes", "push", models.pushed_bytes(model), ceilings.out_alone_bytes, None)):
        copied = got["copies"].get(kind, {}).get("bytes_per_second")
        words = [f"{copied / 1e9:.1f} GB/s while they are copied"] if copied else []
        if copied and link:
            words.append(f"{copied / link:.2f} of the link{f' {goal(copied / link, least)}' if least else ''}")
        words.append(f"{num_bytes / got['step_seconds'] / 1e9:.1f} GB/s over the whole step")
        said.append(f"{name} {', '.join(words)}")
    return "; ".join(said)


# ---- Tables ----

def link_tables(links):
    """Of what gpu_ceilings came to."""
    copies = [[row["memory"], row["piece_bytes"] >> 20, *(row[f"{key}_gb_per_second"] for key in (
        "in", "out", "both_in", "both_out"))] for row in links.get("copies", [])]
    notes = []
    if "device_copy_gb_per_second" in links:
        notes.append(f"Within the device {links['device_copy_gb_per_second']:.0f} GB/s, read and written.")
    if "register_seconds_per_gb" in links:
        notes.append(f"Registering shared memory: {links['register_seconds_per_gb']:.3f} s a GB at once, "
                     f"{links['register_in_pieces_seconds_per_gb']:.3f} s in pieces of 32 MiB.")
    notes += [f"Not measured: {name}: {why}" for name, why in links.get("not_measured", {}).items()]
    products = [[*(row[key] for key in ("form", "M", "N", "K")), row.get("algorithm", "first"), row["tflops"]]
                for row in links.get("products", [])]
    return [Table("Copies between host and device, GB/s", ["memory", "pieces of MiB", "in", "out", "in, both at once",
                                                           "out, both at once"], copies, notes),
            Table("bf16 products by cuBLASLt", ["form", "M", "N", "K", "algorithm", "TFLOP/s"], products,
                  ["NN: forward; NT: gradient of the input; TN: gradient of the weight, in fp32, added to. The first "
                   "algorithm is what a run takes. 8192 x 8192 x 8192: over 2 s without a break."])]


def update_table(update):
    rows = [[name, update[key], each * update["parameters"] / update[key] / 1e9, update["parameters"] / update[key] / 1e9]
            for name, key, each in (("plain loop", "floor_seconds", 28), ("update", "update_seconds", 28),
                                    ("plain loop, bf16 moments", "bf16_moments_floor_seconds", 20),
                                    ("update, bf16 moments", "bf16_moments_update_seconds", 20),
                                    ("plain loop, fp8 moments", "fp8_moments_floor_seconds", 16.125),
                                    ("update, fp8 moments", "fp8_moments_update_seconds", 16.125))]
    return Table(f"Update of {update['parameters'] / 1e6:.0f} M parameters by {update['threads']} threads",
                 ["", "s", "GB/s of DRAM", "G parameters/s"], rows,
                 [f"{update['ratio']:.3f} of the byte floor, with bf16 moments {update['bf16_moments_ratio']:.3f} "
                  f"(goal 0.85), with fp8 moments {update['fp8_moments_ratio']:.3f}."])


PLAN_COLUMNS = ("depth_first_blocks", "kept", "swapped", "recomputed")  # of what eps_side.plan_in_short says
PLAN_TITLES = ("depth first", "kept", "swapped", "recomputed")
SPEED_COLUMNS = ["", "tokens a step", "tokens/s", "model TFLOP/s", "of the bf16 peak", "device GiB", "waits",
                 *PLAN_TITLES, "s a step", "planned s"]


def plan_note(runs):
    """What their plans were made from."""
    said = dict.fromkeys(
        got["plan"]["from"] + (f", with --host-memory {gib(got['plan']['host_memory_bytes']):.3g} GiB"
                               if got["plan"]["host_memory_bytes"] else "") for got in runs)
    return ("Depth first: of the last blocks so many, as the plan says, of which a micro-batch leaves nothing behind. "
            "Kept, swapped, recomputed: how many inner activations of the others, by block and micro-batch. `planned s`: "
            "the step that the plan predicts. Plans were made "
            f"from {'; from '.join(said)}.")


def speed_table(model, batch, ours, torch):
    rows = []
    for name, got in ours.items():
        rows.append([name, got["tokens_per_step"], got["tokens_per_second"], got["model_flops"] / 1e12,
                     got["utilisation"], gib(got["device_peak_bytes"] + (got["device_outside_bytes"] or 0)),
                     got["wait_fraction"], *(got["plan"][place] for place in PLAN_COLUMNS), got["step_seconds"],
                     got["plan"]["predicted_seconds"]])
    operations = models.model_operations(model, 1)
    notes = [ATTENTION_NOTE, "Waits: the share of a pass in which the compute stream waits.",
             *([plan_note(ours.values())] if ours else [])]
    for name, variant in (torch["variants"] if torch else {}).items():
        speed = variant.get("tokens_per_second")
        rows.append([f"PyTorch, {name}", batch.tokens(model), speed or variant["error"],
                     speed and speed * operations / 1e12, None, gib(variant.get("peak_bytes")), None,
                     *(None for _ in PLAN_COLUMNS), None, None])
    if torch:
        notes += [TORCH_NOTE, *([f"PyTorch {torch['torch']}. {'; '.join(torch['notes'])}"] if torch["torch"] else [])]
    title = (f"{model.name}: {model.layers} layers, {model.d} wide, {model.heads} heads, context {model.context}; "
             f"{'PyTorch in ' if torch else ''}{batch.micro_batches} micro-batches of {batch.micro_batch} sequences")
    return Table(title, SPEED_COLUMNS, rows, notes)


def limits_table(title, points, left_out):
    """points: what Bench.eps says of runs."""
    rows = []
    for got in sorted(points, key=lambda got: got["tokens_per_step"]):
        bound, seconds = bound_of(got["floors"])
        rows.append([got["tokens_per_step"], got["step_seconds"], got["plan"]["predicted_seconds"], seconds, bound,
                     *got["floors"].values(), got["tokens_per_second"], got["utilisation"], utilisation_at_bound(got),
                     got["wait_fraction"], *(got["plan"][place] for place in PLAN_COLUMNS),
                     gib(got["host_planned_bytes"])])
    notes = [ATTENTION_NOTE,
             "The model of a step: the largest of compute (operations, what is recomputed among them, over the bf16 "
             "peak), in and out (weights, gradients, boundaries and what is swapped over the link, both ways at once), "
             "update (by all cores), and host (all that the host's memory reads and writes, over its bandwidth). `at "
             "most`: of the bf16 peak, were the step as short as that.", plan_note(points), *left_out]
    return Table(title, ["tokens a step", "s", "planned s", "model s", "bound by", "compute s", "in s", "out s",
                         "update s", "host s", "tokens/s", "of the bf16 peak", "at most", "waits", *PLAN_TITLES,
                         "host GiB planned"], rows, notes)


def copies_table(ours, ceilings):
    """ours: by name, runs with a trace."""
    rows = []
    for name, got in ours.items():
        for kind, copied in got["copies"].items():
            comes_in = kind == "pull" or kind.startswith("load")
            link = ceilings.in_alone_bytes if comes_in else ceilings.out_alone_bytes
            rows.append([name, kind, "in" if comes_in else "out", copied["bytes_per_step"] / 1e9,
                         copied["bytes_per_second"] / 1e9, share(copied["bytes_per_second"], link),
                         copied["bytes_per_step"] / got["step_seconds"] / 1e9])
    return Table("Copies between host and device within a step",
                 ["", "", "", "GB a step", "GB/s while copied", "of the link", "GB/s over the step"], rows,
                 ["By the worker's trace: bytes of the copies over the time that these took by the device's clock, "
                  "without waiting for a version, for memory, or for what the stream did before. The link: of copies "
                  "one way alone, as `ceilings` has it; here both ways, and several streams, may be busy at once."])
