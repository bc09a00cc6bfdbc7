"""The part `memory` of bench/gpu/run: at equal batch the device's memory and the speed of BERT-Large, against PyTorch
with all of the batch at once, as L2L's paper (arXiv:2002.05645) compares them."""

import time

import models
from models import Batch
from part_report import Failed, Outcome, Table
from tables import GIB, compiled_ways, gib, goal, share

LESS_MEMORY, MORE_THROUGHPUT = 0.45, 0.40  # L2L's
# Sequences, of L2L's table. The goals are of the largest that PyTorch runs, so those that may be it come first:
# compiled it took 20 GiB for 32 (docs/gpu-results.md), of which 5 do not grow: 256 want some 125, and 128 some 65 of
# the 78 of a card of 80 GB. Then the other end.
BATCHES = (256, 128, 32, 64)
BATCH_SECONDS = 40  # for one at least, of which it leaves to the next what it does not take
LEAST_BATCH_SECONDS = 25  # left, for one to begin
TORCH_SECONDS = 20  # of a batch's time: an import, one way compiled, and eager. The rest is ours, which wants 10 to 15
OUR_SHARE = 0.4  # where that rest is less
# The fastest first, as what is cut off is not to be it: that by cuDNN's attention, with which the parts begin that
# compare with PyTorch's best. A second compiled way has time only where that one cannot be: those tell them apart.
WAYS, OTHER_COMPILED = "compiled+cudnn,eager", "compiled"
LEAST_TORCH_SECONDS = 12  # left, for that other one
OUT_OF_MEMORY = "out of memory"  # torch_side's
NOTE = ("Ours: what lies in the arena at most, and what libraries hold beside it. PyTorch's: what its tensors take at "
        "most (its allocator holds more). The batch is one micro-batch there, as in L2L's baseline, and micro-batches "
        "of 16 here. L2L's paper has 45% less memory and 40% more throughput.")


def memory(bench, deadline):
    m, cap = bench.model(models.BERT_LARGE), bench.cap(8 * GIB)
    sizes = BATCHES[:2] if bench.tiny else BATCHES
    ours_of = lambda sequences: bench.batch(sequences // 16, 16)  # noqa: E731  (as `bert-large`, whose profile it is)
    bench.profile(m, ours_of(sizes[0]), deadline)
    found, errors, left_out = {}, [], []
    for i, sequences in enumerate(sizes):
        now, batch = time.monotonic(), ours_of(sequences)
        if deadline - now < LEAST_BATCH_SECONDS and not bench.tiny:
            left_out.append(f"batch {sequences}: left out, {max(0.0, deadline - now):.0f} s were left")
            continue
        until = min(deadline, now + max(BATCH_SECONDS, (deadline - now) / (len(sizes) - i)))
        ours = None
        try:
            ours_until = max(until - TORCH_SECONDS, now + OUR_SHARE * (until - now))
            ours = bench.eps(m, batch, "relay", cap, ours_until, measured=3)
        except Failed as error:  # what PyTorch takes is still worth knowing
            errors.append(f"batch {sequences}: {error}")
        count = batch.micro_batches * batch.micro_batch  # fewer where all is tiny
        found[count] = ours, torch_at_once(bench, m, Batch(1, count), until)
    found = dict(sorted(found.items()))
    all_count = all(counts(theirs) for _, theirs in found.values())
    outcome = Outcome("; ".join([*errors, *said(found), *goals(found), *left_out]), [table(m, found)],
                      {"batches": {count: {"relay": ours, "torch": theirs} for count, (ours, theirs) in found.items()}},
                      state="partly" if left_out or not all_count else "passed")
    if errors:
        raise Failed(outcome.said, outcome)
    return outcome


def torch_at_once(bench, model, batch, until):
    """What Bench.torch says of WAYS, and of the other compiled way if the first told nothing, as where a PyTorch has
    no attention by cuDNN."""
    theirs = bench.torch(model, batch, WAYS, until, measured=3)
    if not counts(theirs) and until - time.monotonic() > LEAST_TORCH_SECONDS:
        theirs["variants"].update(bench.torch(model, batch, OTHER_COMPILED, until, measured=3)["variants"])
    return theirs


def counts(theirs):
    """Whether it is known what PyTorch makes of a batch: a compiled way, which takes the least memory, ran or had not
    enough of it."""
    return any("tokens_per_second" in way or way.get("error") == OUT_OF_MEMORY
               for way in compiled_ways(theirs).values())


def our_bytes(ours):
    return ours["device_peak_bytes"] + (ours["device_outside_bytes"] or 0)


def against(ours, way):
    """Shares of a way's memory and speed that ours are; None without both."""
    return (share(ours and our_bytes(ours), way.get("peak_bytes")),
            share(ours and ours["tokens_per_second"], way.get("tokens_per_second")))


# ---- What is said of {sequences: (ours, or None if it failed, theirs)} ----

def table(model, found):
    rows = []
    for sequences, (ours, theirs) in found.items():
        rows.append([sequences, "ours", gib(ours and our_bytes(ours)), None, ours and ours["tokens_per_second"], None])
        for name, way in theirs["variants"].items():
            of_memory, of_speed = against(ours, way)
            who = f"PyTorch, {name}" + (f": {way['error']}" if "error" in way else "")
            rows.append([sequences, who, gib(way.get("peak_bytes")), of_memory, way.get("tokens_per_second"), of_speed])
    return Table(f"Memory at equal batch: {model.name}",
                 ["sequences", "who", "device GiB", "of PyTorch's", "tokens/s", "of PyTorch's"], rows, [NOTE])


def speed_and_memory(who, tokens_per_second, num_bytes):
    return f"{who} {tokens_per_second:,.0f} tokens/s" + (f" in {gib(num_bytes):.3g} GiB" if num_bytes else "")


def said(found):
    for sequences, (ours, theirs) in found.items():
        for name, way in theirs["variants"].items():
            of_memory, of_speed = against(ours, way)
            mine = speed_and_memory("ours", ours["tokens_per_second"], our_bytes(ours)) if ours else "ours failed"
            if of_speed is None:
                theirs_said = f"PyTorch, {name}: {way['error']}" if "error" in way else speed_and_memory(
                    f"PyTorch, {name}:", way["tokens_per_second"], way.get("peak_bytes"))
                yield f"batch {sequences}: {theirs_said}; {mine}"
            else:
                memory_said = f"{1 - of_memory:.0%} less memory and " if of_memory else ""  # a processor's is not known
                yield f"batch {sequences}: {memory_said}{of_speed - 1:+.0%} throughput against PyTorch, {name}"


def goals(found):
    """L2L's, at the largest batch that counts and that PyTorch ran, against its fastest way."""
    for sequences, (_, theirs) in found.items():
        if not counts(theirs):
            yield f"batch {sequences} does not count for the goals: of PyTorch no compiled way ran or was out of memory"
    ran = {sequences: {name: way for name, way in theirs["variants"].items() if "tokens_per_second" in way}
           for sequences, (_, theirs) in found.items() if counts(theirs)}
    sequences = max((sequences for sequences, ways in ran.items() if ways), default=None)
    if sequences is None:
        return
    ours, ways = found[sequences][0], ran[sequences]
    name = max(ways, key=lambda each: ways[each]["tokens_per_second"])
    where = f"at the largest batch that counts and that PyTorch ran, {sequences}, against its fastest way, {name}"
    if ours is None:
        yield f"{where}: ours failed"
        return
    of_memory, of_speed = against(ours, ways[name])
    memory_said = f"{1 - of_memory:.0%} less memory {goal(1 - of_memory, LESS_MEMORY)} and " if of_memory else ""
    yield f"{where}: {memory_said}{of_speed - 1:+.0%} throughput {goal(of_speed - 1, MORE_THROUGHPUT)}"
