"""The parts of bench/gpu/run: what is measured, and how."""

import contextlib
import dataclasses
import json
import os
import random
import sys
import time
from array import array
from pathlib import Path

import eps_run
import eps_side
import gpu_machine
import kernel_times
import memory_part
import models
import processes
from eps_side import plan_in_short, recomputed_share
from models import Batch, Ceilings
from part_report import Failed, Outcome, Part
from tables import (GIB, compared, copies_said, copies_table, gib, goal, is_compared_with_best, limits_said,
                    limits_table, link_tables, share, speed_table, update_table, waits_said)

HERE = Path(__file__).resolve().parent
WHOLE_DEVICE = 120 * GIB  # a cap for what is to lie on the device whole, where that is free
FREE_SHARE = 0.95  # of the device's free memory: CUDA's context and the libraries lie beside the cap
UPDATED_MILLIONS = 80  # of parameters, 14 bytes and more of each: no cache holds them
HOST_SPARE = 4 * GIB  # of DRAM, for the system and what has no plan
MOST_SWAPPED = 32 * GIB  # of activations: what is taken is pinned before a run's first step, some seconds for 10 GiB
PROFILE_SHARE = 0.3  # of the time that is left, for a profile
LEAST_PROFILE_SECONDS = 25  # the same, where there are as many: one that is cut short is lost
LEAST_RUN_SECONDS = 15  # left, for the first run of several rounds to begin: one that is cut short is lost
RUN_MARGIN = 1.2  # times the longest so far, for each further one
TORCH_SECONDS = 12  # for each of PyTorch's variants, before further runs of ours get any
ATTENTION_SECONDS = 15  # for what PyTorch says of attention's price
COMPARED_STEPS = 12  # of each side: medians of as many hardly change from run to run
CURVE = (8, 1, 4, 2, 16)  # micro-batches, the most telling ones first
MOST_KEPT = 16  # micro-batches, where all is kept
DEPTH_FIRST = 8  # micro-batches, where all blocks are depth first: the memory that they take hardly grows with them
LARGEST_STEPS = 3  # of a model whose steps take some ten seconds
OUR_SHARE = 0.4  # of the time that is left, for a run of ours: one that hangs leaves the rest to the others


def tail_json(text):
    """The last line of a benchmark that is JSON, and whole; {} if none is."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                return json.loads(line)
    return {}


def speed_ratio(one, other):
    """None without both."""
    return share(one["tokens_per_second"], other["tokens_per_second"]) if one and other else None


def fastest(runs):
    """Of those that ran; None if none did."""
    ran = [got for got in runs if got and "tokens_per_second" in got]
    return max(ran, key=lambda got: got["tokens_per_second"], default=None)


def middle_of(runs):
    """By speed; of two the slower one."""
    return sorted(runs, key=lambda got: got["tokens_per_second"])[(len(runs) - 1) // 2]


def comparable(rounds):
    """Of rounds, {name: run} each: those in which all ran that ever did, so that of each there are as many. All rounds,
    if none is so."""
    ever = {name for each in rounds for name in each}
    return [each for each in rounds if each.keys() == ever] or rounds


def share_of_time(deadline, part):
    now = time.monotonic()
    return now + part * (deadline - now)


class DoesNotFit(Failed):
    """No plan fits."""


class Bench:
    """What the parts have in common. `links`: gpu_ceilings' last line, `update`: update_bench's; {} until measured.
    `log` takes what the programs of all runs log, `kept` is the folder of what else the report keeps of them."""

    def __init__(self, folder, device, tiny, host_bytes, rounds, python, log=None, kept=None):
        self.device, self.tiny, self.host_bytes, self.rounds, self.python = device, tiny, host_bytes, rounds, python
        self.links, self.update = {}, {}
        self.place = eps_side.Place(Path(folder), device, Path(folder) / "tokens.bin", log, kept)
        self.slow = []  # why the figures of this part are not those of a machine as it should be

    def take_earlier(self, ceilings, folder):
        """ceilings: what measure_ceilings came to; folder: where profiles lie."""
        self.links, self.update = ceilings.get("links", {}), ceilings.get("update", {})
        self.place.earlier = folder

    def need_tokens(self):
        """Drawn at random, as often as in texts, since what is updated early depends on it: the n-th by 1 / (n + 2.7), as
        plans assume (gpu_worker/plan/step_costs.cc). Every model here may have them."""
        if self.place.tokens.exists():
            return
        vocab = 257 if self.tiny else 50257
        weights = [1 / (rank + 2.7) for rank in range(1, vocab + 1)]
        count = 100_000 if self.tiny else 2_000_000
        tokens = array("H", random.Random(1).choices(range(vocab), weights=weights, k=count))
        if sys.byteorder == "big":
            tokens.byteswap()
        self.place.tokens.write_bytes(tokens.tobytes())

    @property
    def ceilings(self):
        return Ceilings.of(self.links, self.update)

    def model(self, model):
        return models.tiny(model) if self.tiny else model

    def batch(self, micro_batches, micro_batch):
        return Batch(micro_batches, 2 if self.tiny else micro_batch)

    def cap(self, num_bytes):
        return (64 << 20) if self.tiny else num_bytes

    def largest_cap(self, num_bytes):
        """At most so much of the device, and what is free of it; and in words, which of the two."""
        free = gpu_machine.free_device_bytes(self.device)
        if free is None:
            return self.cap(num_bytes), f"cap {gib(self.cap(num_bytes)):.3g} GiB (what is free is not known)"
        cap = self.cap(min(num_bytes, int(FREE_SHARE * free)))
        share_of = "" if cap == num_bytes else f"{FREE_SHARE} of "
        return cap, f"cap {gib(cap):.3g} GiB ({share_of}{gib(free):.1f} GiB that are free)"

    # ---- Both sides ----

    def profile(self, model, batch, deadline):
        self.need_tokens()
        until = max(share_of_time(deadline, PROFILE_SHARE), time.monotonic() + LEAST_PROFILE_SECONDS)
        measured = eps_side.profile(self.place, model, batch, min(deadline, until))
        if measured.failed:
            self.slow.append(f"plans from nominal figures of another GPU: {measured.failed}")
        return measured

    def plan(self, model, batch, choice, cap, deadline, changes=None, nominal=False):
        """As users are told to have it made: from a profile of this machine, but for `nominal`, and with what the host has
        left for activations. Its JSON, the profile, and --host-memory's bytes; 0: it is not given."""
        measured = eps_side.Profile() if nominal else self.profile(model, batch, deadline)
        planned, why = eps_side.plan(self.place, model, batch, choice, cap, deadline, measured=measured, changes=changes)
        if planned is None:
            raise DoesNotFit(f"{choice}: {why}")
        left = min(MOST_SWAPPED, int(self.host_bytes) - HOST_SPARE - planned["host_total_bytes"])
        if choice == "relay" and left > 0 and planned["device"]["recomputed_inner"] > 0:
            host_memory = planned["worker_host"]["boundary_bytes"] + left
            swapping, _ = eps_side.plan(self.place, model, batch, choice, cap, deadline, host_memory, measured, changes)
            if swapping is not None:
                return swapping, measured, host_memory
        return planned, measured, 0

    def eps(self, model, batch, choice, cap, deadline, measured=6, changes=None, picture=None, nominal=False,
            warm_up=eps_side.WARM_UP):
        """A run, with what its plan says and what follows from both. `picture`, `warm_up`: as eps_side.train."""
        planned, profile, host_memory = self.plan(model, batch, choice, cap, deadline, changes, nominal)
        flags = [*profile.flags, *eps_side.memory_flags(None, host_memory)]
        got = eps_side.train(self.place, model, batch, choice, cap, deadline, measured, changes, flags, picture, warm_up)
        self.slow += filter(None, (got["not_pinned"], got["plain_attention"], got["engines_passed_over"]))
        got["plan"] = plan_in_short(planned, profile, host_memory)
        got["recomputed"] = recomputed_share(planned, model, batch)
        got["host_planned_bytes"] = planned["host_total_bytes"]
        host = planned["worker_host"]
        device = planned["device"]
        got["pulled_bytes"] = models.pulled_bytes(model, device["depth_first_blocks"], device["weight_slots"])
        got["floors"] = models.floor_seconds(
            model, batch, got["recomputed"], self.ceilings, got["pulled_bytes"],
            min(1.0, host["boundary_bytes"] / (models.WIRE_BYTES * batch.tokens(model) * model.d * model.layers)),
            host["inner_bytes"])
        rate = models.model_operations(model, 1) * got["tokens_per_second"]
        got["model_flops"], got["utilisation"] = rate, share(rate, self.ceilings.flops)
        return got

    def torch(self, model, batch, variants, deadline, measured=6):
        """What torch_side says; its variants by name. A process that is out of time leaves those it had."""
        self.need_tokens()
        command = [self.python, HERE / "torch_side.py", "--device", self.device.partition(":")[0],
                   "--tokens", self.place.tokens, "--layers", model.layers, "--d-model", model.d,
                   "--heads", model.heads, "--context", model.context, "--vocab", model.vocab,
                   "--micro-batches", batch.micro_batches, "--micro-batch", batch.micro_batch,
                   "--steps", measured, "--warm-up", eps_side.WARM_UP,
                   "--variants", variants, "--seconds", max(1.0, 0.8 * (deadline - time.monotonic()))]
        try:
            done = processes.run(command, deadline, env=gpu_machine.OWN_ENVIRONMENT)
            out, failed = done.stdout, done.returncode != 0 and done.stderr.strip()[-300:]
        except processes.OutOfTime as error:
            out, failed = error.stdout, str(error)
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{") and line.endswith("}")]
        found = {line["variant"]: line for line in lines if "variant" in line}
        for name in variants.split(","):
            found.setdefault(name, {"variant": name, "error": failed or "not reached"})
        return {"variants": found, "torch": next((line["torch"] for line in lines if "torch" in line), None),
                "notes": next((line["notes"] for line in lines if "notes" in line), [])}

    def best(self, torch):
        """The fastest variant; None if none ran."""
        return fastest(torch["variants"].values())

    # ---- Parts ----

    def measure_ceilings(self, deadline):
        tables, left_out, errors = [], [], []
        for measure, until in ((self.measure_links, share_of_time(deadline, 0.7)), (self.measure_update, deadline)):
            try:
                measured, why = measure(until)
                tables += measured
                left_out += why
            except Failed as error:  # the other is still worth knowing
                errors.append(str(error))
                tables += error.outcome.tables if error.outcome else []
        c = self.ceilings
        said = [f"bf16 products {c.flops / 1e12:.0f} TFLOP/s" if c.flops else "",
                f"in {c.in_alone_bytes / 1e9:.1f} GB/s ({c.in_bytes / 1e9:.1f} beside out {c.out_bytes / 1e9:.1f})"
                if c.in_bytes else "",
                f"update {c.parameters_updated / 1e9:.2f} G parameters/s, {self.update['ratio']:.2f} of its byte floor "
                f"{goal(self.update['ratio'], 0.85)}"
                if c.parameters_updated else "", *left_out]
        outcome = Outcome("; ".join(filter(None, [*errors, *said])), tables,
                          {"links": self.links, "update": self.update},
                          state="partly" if self.links.get("not_measured") else "passed")
        if errors:
            raise Failed(outcome.said, outcome)
        return outcome

    def measure_links(self, deadline):
        """Its tables, and what is left out."""
        if not self.device.startswith("cuda"):
            return [], ["no link and no products: the device is the processor"]
        failed = ""
        try:
            # Less than its own defaults, with which this part took 43 s on an H200.
            done = processes.run([eps_run.BIN / "gpu_ceilings", "--device", self.device.partition(":")[2] or "0",
                                  "--buffer-mib", 256, "--repeats", 3], deadline)
            links = tail_json(done.stdout)
            if done.returncode != 0:
                failed = f"gpu_ceilings ended with {done.returncode}: {done.stderr.strip()[-500:]}"
        except processes.OutOfTime as error:
            links = tail_json(error.stdout)
            if not links:
                raise
            links.setdefault("not_measured", {})["the rest"] = "no time was left"
        if not links:
            raise Failed(failed or "gpu_ceilings says nothing")
        self.links = links
        if failed:
            raise Failed(failed, Outcome("", link_tables(links)))
        return link_tables(links), [f"not measured: {name}: {why}"
                                    for name, why in links.get("not_measured", {}).items()]

    def measure_update(self, deadline):
        program = eps_run.BIN / "update_bench"
        if not program.exists():
            return [], [f"no update: {program} is not there"]
        done = processes.run([program, "--threads", len(os.sched_getaffinity(0)),
                              "--millions", 10 if self.tiny else UPDATED_MILLIONS], deadline)
        update = tail_json(done.stdout)
        if done.returncode != 0 or not update:
            raise Failed(f"update_bench: {done.stderr.strip()[-500:]}")
        self.update = update
        return [update_table(self.update)], []

    def both_ways(self, model, batch, cap, rounds, deadline):
        """By relay and with everything resident, in turn, as a machine may drift: the middle one of each, all, what
        went wrong, and why a GPU that is too small for it has not the whole model."""
        runs, errors, too_small = {"relay": [], "resident": []}, [], []
        for _ in range(rounds):
            for choice, limit in (("relay", cap), ("resident", self.largest_cap(WHOLE_DEVICE)[0])):
                try:
                    until = share_of_time(deadline, OUR_SHARE / rounds)
                    runs[choice].append(self.eps(model, batch, choice, limit, until, measured=COMPARED_STEPS))
                except Failed as error:  # the other sides are still worth knowing
                    is_too_small = isinstance(error, DoesNotFit) and choice == "resident"
                    (too_small if is_too_small else errors).append(f"{choice}: {error}")
        return {name: middle_of(each) for name, each in runs.items() if each}, runs, errors, too_small[:1]

    def forms(self, micro_batches, micro_batch):
        """As many tokens a step in micro-batches of this size, which a relay likes, and of twice the size."""
        batch = self.batch(micro_batches, micro_batch)
        return batch, Batch(batch.micro_batches // 2, 2 * batch.micro_batch)

    def compare(self, model, forms, cap, variants):
        """forms: by which relay and resident are compared; by the second, which is PyTorch's too, where time allows."""
        def run(deadline):
            m, (batch, larger) = self.model(model), forms
            torch_seconds = 0 if self.tiny else TORCH_SECONDS * len(variants.split(","))
            began = time.monotonic()
            self.profile(m, batch, deadline)
            ready = time.monotonic()
            middle, rounds, errors, too_small = self.both_ways(m, batch, self.cap(cap), self.rounds, deadline)
            pairs, not_reached = {batch: middle}, [f"no time was left for {larger.micro_batches} micro-batches"]
            one_pair = (time.monotonic() - ready) / self.rounds

            def add_larger(until):
                if larger not in pairs and until - time.monotonic() > 1.3 * one_pair + ready - began:
                    self.profile(m, larger, until)  # of its own
                    pairs[larger], rounds[f"{larger.micro_batches}_micro_batches"], *left_out = self.both_ways(
                        m, larger, self.cap(cap), 1, until)
                    not_reached[:] = [f"{larger.micro_batches} micro-batches, {why}" for each in left_out for why in each]

            add_larger(deadline - torch_seconds)
            torch = self.torch(m, larger, variants, deadline, measured=COMPARED_STEPS)
            add_larger(deadline)  # if it was faster than that
            errors += filter(None, [eps_side.parting(*pair.values()) for pair in pairs.values() if len(pair) == 2])
            best = self.best(torch)
            relay, resident = (fastest(pair.get(name) for pair in pairs.values()) for name in ("relay", "resident"))
            ratios = {"relay_to_resident": speed_ratio(middle.get("relay"), middle.get("resident")),
                      f"relay_to_resident_with_{larger.micro_batches}_micro_batches": speed_ratio(
                          *(pairs.get(larger, {}).get(name) for name in ("relay", "resident"))),
                      "fastest_relay_to_fastest_resident": speed_ratio(relay, resident),
                      "relay_to_torch": speed_ratio(relay, best)}
            names = {"relay": f"relay, cap {gib(self.cap(cap)):.3g} GiB", "resident": "everything resident"}
            ours = {f"{names[name]}, {each.micro_batches} micro-batches": got
                    for each, pair in pairs.items() for name, got in pair.items()}
            said = compared(m, pairs, best, ratios, torch)
            outcome = Outcome("; ".join([*errors, *said, *too_small, *not_reached]), [speed_table(m, larger, ours, torch)],
                              {**ratios, "rounds": rounds, "torch": torch, "profile_seconds": ready - began},
                              state="partly" if too_small or not is_compared_with_best(torch) else "passed")
            if errors:
                raise Failed(outcome.said, outcome)
            return outcome
        return run

    def curve(self, deadline):
        """7 B under 16 GiB: speed against tokens per step, beside what bounds it."""
        m = self.model(models.GPT_7B)
        points, left_out, wrong, is_wrong = {}, [], [], False
        for micro_batches in CURVE:
            batch = self.batch(micro_batches, 4)
            tokens = batch.tokens(m)
            if self.lacks_time(deadline, 45 + 5 * micro_batches):  # a start, and five steps
                left_out.append(f"{tokens:,} tokens a step: no time was left.")
                continue
            try:
                if why := self.lacks_host_memory(m, batch, deadline):
                    left_out.append(f"{tokens:,} tokens a step: {why}.")
                    continue
                points[tokens] = self.eps(m, batch, "relay", self.cap(16 * GIB), deadline, measured=2,
                                          picture=f"gpt-7b-{tokens}-tokens")
            except Failed as error:  # the others are still worth knowing
                wrong.append(f"{tokens:,} tokens a step: {error}")
                is_wrong |= time.monotonic() < deadline  # else it was cut off
        if not points:
            raise Failed("; ".join([*wrong, *left_out]))
        best = max(points.values(), key=lambda got: got["tokens_per_second"])
        first = self.batch(CURVE[0], 4).tokens(m)
        said = (f"{m.parameters / 1e9:.2f} B parameters in {gib(best['device_cap_bytes']):.3g} GiB, host "
                f"{gib(best['host_planned_bytes']):.0f} GiB planned: at {best['tokens_per_step']:,} tokens a step "
                f"{best['tokens_per_second']:,.0f} tokens/s"
                + (f", {best['utilisation']:.1%} of the bf16 peak {goal(best['utilisation'], 0.45)}"
                   if best["utilisation"] else "")
                + f"; {copies_said(m, best, self.ceilings)}; {waits_said(best)}")
        names = {f"{tokens:,} tokens a step": got for tokens, got in sorted(points.items())}
        left_out = [*left_out, *(f"{each}." for each in wrong)]
        outcome = Outcome("; ".join([*wrong, said]),
                          [limits_table(f"{m.name}: speed against tokens a step", points.values(), left_out),
                           copies_table(names, self.ceilings)], {"points": points, "left_out": left_out},
                          state="passed" if first in points else "partly")
        if is_wrong:
            raise Failed(outcome.said, outcome)
        return outcome

    def lacks_host_memory(self, model, batch, deadline):
        """Why a relay under 16 GiB has no plan, or no memory on the host; "" if it has. Without a profile, which changes
        no byte that is needed."""
        planned, why = eps_side.plan(self.place, model, batch, "relay", self.cap(16 * GIB), deadline)
        if planned is not None and planned["host_total_bytes"] + HOST_SPARE <= self.host_bytes:
            return ""
        return why or (f"needs {gib(planned['host_total_bytes']):.0f} GiB of host memory, and {gib(HOST_SPARE):.0f} for "
                       f"the rest; there are {gib(self.host_bytes):.0f}")

    def kept(self, deadline):
        """7 B under 80 GiB, or what is free: nothing is recomputed, in the way of which the plan thinks the most."""
        m = self.model(models.GPT_7B)
        cap, cap_said = self.largest_cap(80 * GIB)
        ways = self.ways_without_recomputing(m, cap, deadline)
        if not ways:
            raise Failed(f"{cap_said}: not even one micro-batch is kept whole under it")
        predicted = {}  # tokens/s
        for way, (batch, changes) in ways.items():
            planned, _, _ = self.plan(m, batch, "keep", cap, deadline, changes)
            predicted[way] = batch.tokens(m) / planned["step"]["predicted_seconds"]
        way = max(predicted, key=predicted.get)
        batch, changes = ways[way]
        got = self.eps(m, batch, "keep", cap, deadline, measured=2, changes=changes, picture="gpt-7b-80gib")
        plans = "; ".join(f"{name} in {ways[name][0].micro_batches} micro-batches {speed:,.0f}"
                          for name, speed in predicted.items())
        said = (f"{cap_said}: nothing recomputed, {way} (planned tokens/s: {plans}), {got['tokens_per_step']:,} tokens a "
                f"step: {got['tokens_per_second']:,.0f} tokens/s"
                + (f", {got['utilisation']:.1%} of the bf16 peak {goal(got['utilisation'], 0.7)} under "
                   f"{gib(cap):.3g} GiB" if got["utilisation"] else "")
                + f"; {limits_said(got)}; {copies_said(m, got, self.ceilings)}; {waits_said(got)}")
        name = f"relay, {cap_said}, {way}"
        return Outcome(said, [speed_table(m, batch, {name: got}, None),
                              limits_table(f"{m.name}, {way}: what bounds its step", [got], []),
                              copies_table({name: got}, self.ceilings)],
                       {"kept": got, "way": way, "planned_tokens_per_second": predicted})

    def ways_without_recomputing(self, model, cap, deadline):
        """Those that have a plan under the cap: {in words: (as many micro-batches as fit, changes of the RunSpec)}."""
        ways, depth_first = {}, {"relay": {"depth_first_blocks": model.layers}}
        for way, most, changes in (("all kept", MOST_KEPT, {}), ("all blocks depth first", DEPTH_FIRST, depth_first)):
            def fits(micro_batches):
                batch = self.batch(micro_batches, 4)  # without a profile, which changes no byte that is needed
                return eps_side.plan(self.place, model, batch, "keep", cap, deadline, changes=changes)[0] is not None

            if micro_batches := models.largest_that_fits(fits, most):
                ways[way] = self.batch(micro_batches, 4), changes
        return ways

    def in_turn(self, model, batch, choice, cap, changes, deadline, measured):
        """Rounds of runs with each of `changes`, by name, in turn, as a machine may drift: all, the middle one of each
        that ran (of as many of each), what went wrong, and what there was no time for."""
        self.profile(model, batch, deadline)
        rounds, errors, not_reached, took = [], [], [], []
        run_wants = lambda: RUN_MARGIN * max(took) if took else LEAST_RUN_SECONDS  # noqa: E731
        for number in range(1, 1 + max(2, self.rounds)):
            if number > 1 and self.lacks_time(deadline, len(changes) * run_wants()):  # a part of a round is no use
                not_reached.append(f"no time was left for round {number}")
                break
            rounds.append({})
            for name in changes:
                if number == 1 and self.lacks_time(deadline, run_wants()):
                    not_reached.append(f"no time was left for {name}")
                    continue
                began = time.monotonic()
                try:
                    rounds[-1][name] = self.eps(model, batch, choice, cap, deadline, measured, changes[name])
                except Failed as error:  # the others are still worth knowing
                    is_cut = time.monotonic() >= deadline
                    (not_reached if is_cut else errors).append(f"{name}: {error}")
                took.append(time.monotonic() - began)
        by_name = lambda some: {name: [each[name] for each in some if name in each] for name in changes}  # noqa: E731
        middle = {name: middle_of(runs) for name, runs in by_name(comparable(rounds)).items() if runs}
        return by_name(rounds), middle, errors, not_reached

    def lacks_time(self, deadline, seconds):
        return deadline - time.monotonic() < seconds and not self.tiny

    def exact_bits(self, deadline):
        """What it costs that products keep to the library's first algorithm, and not to the fastest of the day; and, as
        attention is deterministic on both sides, what PyTorch's loses by that."""
        m, batch, cap = self.model(models.BERT_LARGE), self.batch(8, 16), self.largest_cap(WHOLE_DEVICE)[0]
        ways = {f"algorithms {rule}": {"precision": {"algorithms": rule}} for rule in ("FIRST", "FASTEST")}
        on_gpu = self.device.startswith("cuda")
        rounds, middle, errors, not_reached = self.in_turn(
            m, batch, "resident", cap, ways, deadline - (ATTENTION_SECONDS if on_gpu else 0), measured=12)
        ratio = speed_ratio(*(middle.get(name) for name in ways))
        attention, why = self.price_of_attention(m, batch, middle, deadline)
        said = [f"the price of fixed products is {1 - ratio:.1%}: the first algorithms reach {ratio:.3f} of the fastest "
                "ones' tokens per second" if ratio else "no two to compare ran"]
        if ratio and attention is not None:
            price = 1 - ratio + attention
            said.append(f"with {attention:.1%} for attention's backward, as by PyTorch's FlashAttention, exact bits cost "
                        f"{price:.1%} {goal(price, below=0.03)}")
        else:
            said.append(f"attention's is not in it: {why}")
        outcome = Outcome("; ".join([*errors, *said, *not_reached]), [speed_table(m, batch, middle, None)],
                          {"first_to_fastest": ratio, "attention": attention, "rounds": rounds},
                          state="partly" if not_reached or (on_gpu and attention is None) else "passed")
        if errors:
            raise Failed(outcome.said, outcome)
        return outcome

    def price_of_attention(self, model, batch, middle, deadline):
        """The share of a step with the first algorithms that attention's backward takes longer by, as PyTorch's does, when it
        is deterministic; or None, and why."""
        first = middle.get("algorithms FIRST")
        if not self.device.startswith("cuda"):
            return None, "the device is the processor"
        if first is None:
            return None, "there is no step to hold it against"
        try:
            done = processes.run([self.python, HERE / "attention_price.py", "--sequences", batch.micro_batch,
                                  "--heads", model.heads, "--tokens", model.context, "--width", model.d // model.heads],
                                 deadline, env=gpu_machine.OWN_ENVIRONMENT)
        except Failed as error:
            return None, str(error)
        got = tail_json(done.stdout)
        if "free_seconds" not in got:
            return None, got.get("error") or done.stderr.strip()[-300:] or "attention_price.py says nothing"
        more = got["deterministic_seconds"] - got["free_seconds"]
        return more * model.layers * batch.micro_batches / first["step_seconds"], ""

    def graphs(self, deadline):
        """What graphs gain where kernels are short: one sequence a micro-batch; and whether AUTO finds it."""
        m, batch, cap = self.model(models.BERT_LARGE), self.batch(8, 1), self.cap(8 * GIB)
        ways = {f"graphs {policy}": {"relay": {"graphs": policy}} for policy in ("NEVER", "AUTO", "ALWAYS")}
        # AUTO captures within the first steps that are measured: medians of many steps have none of that.
        rounds, middle, errors, not_reached = self.in_turn(m, batch, "relay", cap, ways, deadline, measured=60)
        seconds = {name: got["step_seconds"] for name, got in middle.items()}
        never, ratios, said = seconds.get("graphs NEVER"), {}, []
        for policy in ("AUTO", "ALWAYS"):
            ratios[policy] = ratio = share(never, seconds.get(f"graphs {policy}"))
            if ratio:
                least = f" {goal(ratio, max(1, share(never, seconds.get('graphs ALWAYS')) or 0), 0.02)}"
                said.append(f"with graphs {policy} {ratio:.3f} of the steps per second without"
                            + (least if policy == "AUTO" else "")
                            + f", {middle[f'graphs {policy}']['graph_launches']} launched")
        for name, got in middle.items():
            if parts := eps_side.parting(next(iter(middle.values())), got):
                errors.append(f"{name}: {parts}")
        outcome = Outcome(f"{batch.tokens(m):,} tokens a step in {batch.micro_batches} micro-batches: "
                          + "; ".join([*errors, *said, *not_reached]), [speed_table(m, batch, middle, None)],
                          {"to_never": ratios, "rounds": rounds}, state="partly" if not_reached else "passed")
        if errors:
            raise Failed(outcome.said, outcome)
        return outcome

    def kernels(self, deadline):
        """Where the GPU's time goes, by kernel, in a relay and with everything resident."""
        if not self.device.startswith("cuda"):
            return Outcome("no kernels: the device is the processor")
        library = eps_run.BIN / kernel_times.LIBRARY
        if not library.exists():
            raise Failed(f"{library} is not there; ./build --gpu-bundle makes it")
        m, batch = self.model(models.BERT_LARGE), self.batch(4, 32)
        self.profile(m, batch, deadline)  # which is not recorded
        tables, said = [], []
        for choice, cap in (("relay", self.cap(8 * GIB)), ("resident", self.largest_cap(WHOLE_DEVICE)[0])):
            folder = self.place.folder / f"kernels-{choice}"
            with kernel_times.recorded(library, folder):
                got = self.eps(m, batch, choice, cap, deadline)
            # Not the first of them, in which the clocks of the daemon and the GPU might part.
            steps = got["steps"] - 1
            seconds = sum(got["all_step_seconds"][-steps:])
            works = kernel_times.steps_of(kernel_times.read(folder), seconds)
            found, idle = kernel_times.table(f"{m.name}, {choice}, cap {gib(cap):.3g} GiB: {got['step_seconds']:.3f} s "
                                             f"a step of {got['tokens_per_step']:,} tokens", works, steps, seconds)
            tables.append(found)
            said.append(f"{choice}: {idle}")
        return Outcome("; ".join(said), tables)

    def largest(self, deadline):
        """The deepest model of 4,096 wide that the host's memory holds with fp8 moments, a few steps of it under 16 GiB."""
        base, batch, cap = self.model(models.GPT_7B), self.batch(1, 1), self.cap(16 * GIB)
        narrow = {"precision": {"moments": "FP8"}}
        deep = lambda layers: dataclasses.replace(base, layers=layers, name=f"{layers} layers")  # noqa: E731

        def fits(layers):
            planned, _ = eps_side.plan(self.place, deep(layers), batch, "relay", cap, deadline, changes=narrow)
            return planned is not None and planned["host_total_bytes"] + HOST_SPARE <= self.host_bytes

        m = deep(models.largest_that_fits(fits, 8 if self.tiny else 256))
        if m.layers == 0:
            raise Failed("not even one layer fits")
        # Whether it runs at all is the question: its time goes to steps, of which each counts, and to no profile.
        got = self.eps(m, batch, "relay", cap, deadline, measured=LARGEST_STEPS, changes=narrow, nominal=True, warm_up=0)
        said = (f"{m.layers} layers, {m.parameters / 1e9:.2f} B parameters, moments in fp8: host "
                f"{gib(got['host_planned_bytes']):.1f} GiB planned of {gib(self.host_bytes):.1f}, "
                f"{got['steps']} step{'s' if got['steps'] > 1 else ''}, the last in {got['all_step_seconds'][-1]:.1f} s, "
                f"loss {got['loss_first']:.3f} -> {got['loss_last']:.3f}")
        return Outcome(said, [speed_table(m, batch, {f"relay, cap {gib(cap):.3g} GiB": got}, None)], {"largest": got})

    def with_warnings(self, run):
        """`run`, whose outcome begins with what made it slow, if anything did."""
        def told(outcome):
            if not self.slow:
                return outcome
            warning = "NOT AS IT SHOULD BE: " + "; ".join(dict.fromkeys(self.slow))
            tables = [dataclasses.replace(table, notes=[f"**{warning}**", *table.notes]) for table in outcome.tables]
            return dataclasses.replace(outcome, said=f"{warning}; {outcome.said}", tables=tables)

        def run_and_tell(deadline):
            self.slow = []
            try:
                return told(run(deadline))
            except Failed as error:
                outcome = told(dataclasses.replace(error.outcome or Outcome(""), said=str(error)))
                raise Failed(outcome.said, outcome) from None
        return run_and_tell

    def parts(self):
        # The fastest first: what is cut off is not it.
        quick = "compiled+cudnn,compiled,eager,compiled+checkpoint"
        every = ("compiled+cudnn,compiled,eager,whole,compiled+autocast,eager+checkpoint,compiled+checkpoint,eager+offload,"
                 "compiled+offload")
        bert, gpt = self.forms(8, 16), self.forms(8, 4)
        parts = [
            Part("ceilings", self.measure_ceilings, 28),
            Part("bert-large", self.compare(models.BERT_LARGE, bert, 8 * GIB, quick), 95),
            Part("gpt-1.3b", self.compare(models.GPT_1B, gpt, 8 * GIB, quick), 120),
            Part("bert-large-every-way", self.compare(models.BERT_LARGE, bert, 8 * GIB, every), 220, False),
            Part("gpt-1.3b-every-way", self.compare(models.GPT_1B, gpt, 8 * GIB, every), 290, False),
            Part("exact-bits", self.exact_bits, 66, False),
            Part("graphs", self.graphs, 65, False),
            Part("kernels", self.kernels, 60, False),
            Part("memory", lambda deadline: memory_part.memory(self, deadline), 125, False, in_pieces=True),
            Part("gpt-7b", self.curve, 125, False, in_pieces=True),
            Part("gpt-7b-80gib", self.kept, 80, False),
            Part("largest", self.largest, 110, False),
        ]
        return [dataclasses.replace(part, run=self.with_warnings(part.run),
                                    about_seconds=20 if self.tiny else part.about_seconds) for part in parts]
