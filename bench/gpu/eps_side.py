"""Plans and trains by the real programs, and reads what they leave."""

import dataclasses
import json
import math
import re
import shutil
import signal
import statistics
import time
import urllib.request
from pathlib import Path

import eps_run
import processes
from part_report import Failed

CHOICES = {"relay": {}, "resident": {"resident": True}, "keep": {"inner": "KEEP"}}
# The first steps load code, register memory (two versions of each blob), and touch what was only promised.
WARM_UP = 2
MOST_SECONDS = 900  # for one run: what takes longer hangs
PLAN_SECONDS = 60  # for one plan
PROFILE_SECONDS = 60  # for one profile; a GPU takes some ten
AGAIN_WITH = 1.5  # times what a profile had that was out of time: with less it would be again
INTERRUPT_SECONDS = 4  # for a run to end when it is asked to


@dataclasses.dataclass
class Place:
    """Where runs are made, and on what."""
    folder: Path
    device: str
    tokens: Path  # uint16
    log: Path = None  # takes what the programs of all runs logged
    kept: Path = None  # folder of what the report keeps of them: profiles, and pictures of a step; None: `folder`
    earlier: Path = None  # folder of an earlier report of this machine, whose profiles are taken
    number: int = 0
    profiles: dict = dataclasses.field(default_factory=dict)  # by what they are of
    cut_short: dict = dataclasses.field(default_factory=dict)  # those that were out of time, and the seconds they had

    def keep(self, name):
        return (self.kept or self.folder) / name


def run_spec(place, model, batch, choice, steps, changes=None):
    """Written to a new file, with `changes` of its fields. No clipping, no dropout, and no checkpoint: the others have
    none either."""
    place.number += 1
    path = place.folder / f"run-{place.number}.json"
    path.write_text(json.dumps(eps_run.merged({
        "model": model.spec(),
        "data": {"path": str(place.tokens), "tokenizer": "TOKEN_IDS", "token_bytes": 2, "order": "SEQUENTIAL"},
        "batch": {"virtual_nodes": 1, "micro_batches": batch.micro_batches, "micro_batch": batch.micro_batch},
        "optimizer": {"adamw": {"beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1}, "schedule": {"peak": 1e-4}},
        "precision": {"wire": "BF16", "gradients": "BF16"},
        "relay": CHOICES[choice], "steps": steps,
        "checkpoint": {"last": False, "buffer_bytes": 1}}, changes or {})))
    return path


@dataclasses.dataclass(frozen=True)
class Profile:
    """What `eps profile` measured; else plans are made from nominal figures."""
    file: Path = None  # None: none
    seconds: float = None  # that it took; None: it is an earlier report's
    failed: str = ""  # why there is none

    @property
    def flags(self):
        return ["--profile", self.file or "nominal"]

    def __str__(self):
        if self.file is None:
            return "nominal figures"
        return f"{self.file.name}, " + ("of an earlier report" if self.seconds is None
                                        else f"measured in {self.seconds:.0f} s")


def profile(place, model, batch, deadline):
    """Of this machine with the model's layers in micro-batches of this size, whatever their numbers: measured once, but
    for one that was out of time, which is tried again where there is much more of it."""
    name = (f"profile-{model.d}-wide-{model.heads}-heads-context-{model.context}-vocab-{model.vocab}"
            f"-micro-batch-{batch.micro_batch}")
    if name in place.profiles:
        return place.profiles[name]
    file, began = place.keep(f"{name}.json"), time.monotonic()
    until = min(deadline, began + PROFILE_SECONDS)
    if place.earlier and (place.earlier / file.name).exists():
        if place.earlier.resolve() != file.parent.resolve():
            shutil.copy(place.earlier / file.name, file)
        place.profiles[name] = Profile(file)
        return place.profiles[name]
    cut_short, had = place.cut_short.get(name, (None, 0))
    if cut_short and until - began < AGAIN_WITH * had:
        return cut_short
    file.unlink(missing_ok=True)  # an earlier report's, perhaps of another machine
    spec = run_spec(place, model, batch, "relay", steps=1)
    try:
        done = processes.run([eps_run.EPS, "profile", "--run", spec, "--device", place.device, "--out", file], until)
        failed = done.stderr.strip()[-300:] if done.returncode else ""
    except processes.OutOfTime as error:
        place.cut_short[name] = Profile(failed=f"eps profile: {error}"), until - began
        return place.cut_short[name][0]
    except Failed as error:
        failed = str(error)
    seconds = time.monotonic() - began
    place.profiles[name] = Profile(failed=f"eps profile: {failed}") if failed else Profile(file, seconds)
    return place.profiles[name]


def memory_flags(cap, host_memory):
    return [*(["--device-memory", cap] if cap else []), *(["--host-memory", host_memory] if host_memory else [])]


def plan(place, model, batch, choice="relay", cap=None, deadline=float("inf"), host_memory=0, measured=Profile(),
         changes=None):
    """What `eps plan` says, with `host_total_bytes`, the daemon's and the worker's; None, and why, if nothing fits.
    `host_memory`: for activations; 0: boundaries alone, whatever they take."""
    spec = run_spec(place, model, batch, choice, steps=1, changes=changes)
    done = processes.run([eps_run.EPS, "plan", "--run", spec, "--device", place.device, "--json", *measured.flags,
                          *memory_flags(cap, host_memory)], min(deadline, time.monotonic() + PLAN_SECONDS))
    if done.returncode == 3:
        return None, done.stderr.strip()
    if done.returncode != 0:
        raise Failed(f"eps plan: {done.stderr.strip()}")
    said = json.loads(done.stdout)
    said["host_total_bytes"] = said["host"]["total_bytes"] + said["worker_host"]["total_bytes"]
    return said, ""


def plan_in_short(planned, measured, host_memory):
    """What became of the inner activations of blocks and micro-batches, and what the plan was made from."""
    device, step = planned["device"], planned["step"]
    return {"kept": device["kept_inner"], "swapped": device["swapped_inner"], "recomputed": device["recomputed_inner"],
            "depth_first_blocks": device["depth_first_blocks"],
            "predicted_seconds": step["predicted_seconds"], "bound": step["bound"], "from": str(measured),
            "host_memory_bytes": host_memory}


def recomputed_share(planned, model, batch):
    return planned["device"]["recomputed_inner"] / (model.layers * batch.micro_batches)


def counters(address):
    """Bytes pulled and pushed, and steps, as a daemon's page has them; {} while it has none."""
    try:
        text = urllib.request.urlopen(f"http://{address}/metrics", timeout=2).read().decode()
    except OSError:
        return {}
    found = {}
    for name, value in re.findall(r"^eps_(pulled_bytes|pushed_bytes|steps)_total\S* (\S+)$", text, re.M):
        found[name] = found.get(name, 0) + float(value)
    return found


def interrupt(process):
    """At once, without a checkpoint: the second signal does that."""
    until = time.monotonic() + INTERRUPT_SECONDS
    for _ in range(2):
        process.signal(signal.SIGINT)
        if process.wait(time.monotonic() + 0.5):
            return
    process.wait(until)


def watch(process, out, deadline):
    """Until it ends or the time is over. The daemon's counters, each time that a step was committed, and when the first
    was, time.monotonic()'s."""
    samples, seen, first_at = [], 0, None
    while process.returncode is None and time.monotonic() < deadline:
        steps = eps_run.committed_steps(out)
        if steps > seen:
            seen = steps
            first_at = first_at or time.monotonic()
            try:
                samples.append(counters(json.loads((out / "endpoints.json").read_text())["metrics"]))
            except (OSError, ValueError, KeyError):
                pass  # it is just ending
        time.sleep(0.02)
    return [sample for sample in samples if sample.get("steps")], first_at


def per_step(samples, name, warm_up):
    """Of a counter, between the first sample after the warm-up and the last one: right to a part of a step."""
    later = [sample for sample in samples if sample["steps"] >= warm_up]
    if len(later) < 2 or later[-1]["steps"] == later[0]["steps"]:
        return None
    return (later[-1][name] - later[0][name]) / (later[-1]["steps"] - later[0]["steps"])


def trace_events(out):
    """Of a run with --trace, also of one that was cut short: (process, track, event) of all that took time."""
    if (out / "trace.json").exists():
        files = [json.loads((out / "trace.json").read_text())["traceEvents"]]
    else:
        files = [[json.loads(line.rstrip(",")) for line in path.read_text(errors="replace").splitlines()
                  if line.rstrip(",").startswith("{") and line.rstrip(",").endswith("}")]
                 for path in sorted(out.glob("trace/worker-*.json"))]
    for events in files:
        processes_named = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        tracks_named = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        for event in events:
            if event["ph"] == "X":
                yield processes_named.get(event["pid"], ""), tracks_named[event["tid"]], event


def copies(out):
    """What was copied between host and device in the steps behind the warm-up, by kind (`pull`, `push`, ...): bytes of
    a step, and bytes a second while they were copied: without what a pull waits for its version, or for other copies.
    """
    events = [event for event in trace_events(out) if event[0].startswith("worker ")]
    steps = {event["name"]: event["ts"] for _, track, event in events if track == "steps"}
    late = [ts for name, ts in steps.items() if re.fullmatch(r"step \d+", name) and int(name.split()[1]) >= WARM_UP]
    found = {}
    for _, _, event in events:
        args = event.get("args", {})
        if late and args.get("copied_bytes") and event["ts"] >= min(late):
            kind = found.setdefault(event["name"].partition(" ")[0], [0, 0.0])
            kind[0] += args["copied_bytes"]
            kind[1] += args["copy_seconds"]
    return {kind: {"bytes_per_step": num_bytes / len(late), "bytes_per_second": num_bytes / seconds}
            for kind, (num_bytes, seconds) in found.items() if seconds > 0}


def worker_logs(out):
    """Of each worker of a run."""
    return [path.read_text(errors="replace") for path in sorted(Path(out).glob("logs/gpu_worker-*.log"))]


def keep_logs(log, name, out):
    """Behind those that are there: folders of runs are removed, and a machine may be seen once."""
    if log is not None:
        with open(log, "a") as file:
            for path in sorted(Path(out).glob("logs/*.log")):
                file.write(f"==== {name}: {path.name}\n{path.read_text(errors='replace')}")


def outside_bytes(log):
    """What the device's libraries hold beside the arena, as the worker logged it last: attention's workspace comes with
    the first pass."""
    found = re.findall(r"device_outside_bytes=(\d+)", log)
    return int(found[-1]) if found else None


def not_pinned(log):
    """In words, of memory that copies cannot reach directly; "" if all was pinned."""
    lines = re.findall(r" memory_not_pinned bytes=(\d+)(.*)", log)
    if not lines:
        return ""
    return (f"memory_not_pinned: {len(lines)} times, {sum(int(num_bytes) for num_bytes, _ in lines)} bytes; "
            f"the first:{lines[0][1]}")


def plain_attention(log):
    """In words, of attention that was not the library's, and why; "" if all was."""
    lines = re.findall(r" (attention_by_plain_kernel|attention_is_plain_and_slow) (.*)", log)
    return f"{lines[0][0]}: {lines[0][1]}" if lines else ""


def engines_passed_over(log):
    """In words, of the library's engines that failed where another was taken, or none; "" if none did."""
    lines = re.findall(r" attention_engine_passed_over (.*)", log)
    return f"attention_engine_passed_over: {len(lines)} times; the first: {lines[0]}" if lines else ""


def uses_fused_attention(log):
    """Whether the library planned any; an emulator's device has no library that would say so."""
    return " attention_planned " in log or 'device_model="cuda emulated, fused attention"' in log


def graph_launches(log):
    """What a worker that has ended says of its graphs: how many were launched."""
    found = re.findall(r" graphs_used .*launched=(\d+)", log)
    return sum(map(int, found))


def train(place, model, batch, choice, cap, deadline, measured=6, changes=None, flags=(), picture=None,
          warm_up=WARM_UP):
    """Speed, by the median, waits and memory of so many steps behind the warm-up; of fewer, if the time ends before.
    `picture`: with a trace, of which a picture of one step is kept under this name, and `copies`."""
    spec = run_spec(place, model, batch, choice, warm_up + measured, changes)
    out = place.folder / f"out-{place.number}"
    start = time.monotonic()
    command = eps_run.train_command(spec, out, "--device", place.device, "--device-memory", cap, *flags,
                                    *(["--trace"] if picture else []))
    try:
        with processes.Process(command) as process:
            samples, first_at = watch(process, out, min(deadline, start + MOST_SECONDS))
            if process.returncode is None:
                interrupt(process)
            elif process.returncode != 0:
                raise Failed(f"eps train: {process.stderr().strip()[-500:]}")
    finally:
        keep_logs(place.log, f"{model.name}, {choice}, {batch}", out)
    log = "".join(worker_logs(out))
    text = (out / "metrics.jsonl").read_text() if (out / "metrics.jsonl").exists() else ""
    steps = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    late = steps[warm_up:]
    if not late:
        raise Failed(f"eps train: {len(steps)} steps in {time.monotonic() - start:.0f} s, {warm_up + 1} are needed")
    if picture and (out / "timeline.svg").exists():
        shutil.copy(out / "timeline.svg", place.keep(f"{picture}.svg"))
    seconds = statistics.median(step["step_seconds"] for step in late)
    waits = {cause: statistics.mean(step["waits"].get(cause, 0) for step in late) for cause in late[-1]["waits"]}
    return {"tokens_per_step": batch.tokens(model), "steps": len(late),
            "tokens_per_second": batch.tokens(model) / seconds,
            "step_seconds": seconds, "all_step_seconds": [step["step_seconds"] for step in steps],
            "waits": waits, "wait_fraction": sum(waits.values()),
            "device_cap_bytes": cap, "device_peak_bytes": late[-1]["device_peak_bytes"],
            "device_outside_bytes": outside_bytes(log),
            "not_pinned": not_pinned(log), "plain_attention": plain_attention(log),
            "engines_passed_over": engines_passed_over(log),
            "graph_launches": graph_launches(log),
            "counted_pulled_bytes": per_step(samples, "pulled_bytes", warm_up),
            "counted_pushed_bytes": per_step(samples, "pushed_bytes", warm_up),
            "copies": copies(out) if picture else {},
            "start_seconds": first_at - start - steps[0]["step_seconds"] if first_at else None,
            "loss_first": steps[0]["loss"], "loss_last": steps[-1]["loss"],
            "losses": [step["loss"] for step in steps]}


def parting(one, other):
    """In words, where two runs that are to have the same bits show that they have not: the first step whose losses differ;
    "" if none does of those that both made."""
    for step, (a, b) in enumerate(zip(one["losses"], other["losses"])):
        if a != b and not (math.isnan(a) and math.isnan(b)):
            return f"the bits part: the losses of step {step} are {a!r} and {b!r}"
    return ""
