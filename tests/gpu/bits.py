"""The same bits by every way to compute a step, on a GPU: a part of tests/gpu/run.

For each setting, the most telling ones first: relay with everything recomputed and no graphs, against which the others
are held; kept; everything resident; the last blocks depth first and the others swapped; graphs wherever work comes again;
two workers; a daemon that is killed, and the run resumed.
"""

import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import eps_run
import eps_side
import processes
from part_report import Failed, Outcome, Table

AT_ONCE = 5  # runs: most of their time is their start
RUN_SECONDS = 60  # a run that takes longer hangs, as it wants a few; but for a machine that is slow:
TIMES_LONGEST = 4  # it does not where another one has taken more than this part of it. None hangs before one has ended
LOOK_SECONDS = 0.5  # how often a run is looked at, as the others' ends may change how long it may take
LEAST_SECONDS = 4  # with less left none is begun

# A model of two chunks a blob and more, in bf16, whose relay changes buffers many times. A step takes some 20 ms, and
# the daemon is to be killed between a checkpoint and the end: hence 40 of them.
RUN = {
    "model": {"layers": 4, "d_model": 256, "heads": 4, "context": 128},
    "batch": {"virtual_nodes": 4, "micro_batches": 2, "micro_batch": 2},
    "steps": 40, "checkpoint": {"every_steps": 8},
}
TINY = {"model": {"layers": 3, "d_model": 32, "context": 16, "heads": 2}, "steps": 12, "checkpoint": {"every_steps": 4}}
MEMORY = "2GiB"  # of a worker, so that several have room; two workers have other plans than one, by less


@dataclass(frozen=True)
class Setting:
    precision: str
    attention: str  # "fused": the library's; "dropping": the same, with dropout's masks; "plain": our own kernel's
    frozen: str = ""  # adapters train, over blocks in that format

    @property
    def name(self):
        return f"{self.precision} {self.attention}" + (f" over {self.frozen}" if self.frozen else "")

    def changes(self):
        form = {"wire": "FP32", "gradients": "FP32", "tf32": True} if self.precision == "TF32" else {
            "wire": self.precision, "gradients": self.precision}
        form["plain_attention"] = self.attention == "plain"
        model = {"embedding_dropout": 0.1, "residual_dropout": 0.1,
                 "attention_dropout": 0 if self.attention == "fused" else 0.1}
        if self.frozen:
            form["frozen"], model["lora"] = self.frozen, {"rank": 8, "dropout": 0.1}
        return {"precision": form, "model": model}

    def refused_by_library(self, why):
        """Whether the plain kernel is right here: cuDNN is not asked for this on this GPU, or was found to compute it
        otherwise."""
        return self.attention == "dropping" and "dropout" in why and (
            "is not for the library's" in why or "computes it otherwise" in why)


SETTINGS = (Setting("BF16", "fused"), Setting("BF16", "dropping"), Setting("BF16", "plain"), Setting("FP32", "plain"),
            Setting("FP16", "fused"), Setting("TF32", "plain"), Setting("BF16", "fused", "MXINT8"),
            Setting("BF16", "fused", "NF4"))


@dataclass(frozen=True)
class Way:
    name: str
    relay: dict
    args: tuple = ()
    killed: bool = False


WAYS = (Way("relay", {"inner": "RECOMPUTE", "graphs": "NEVER"}), Way("kept", {"inner": "KEEP"}),
        Way("resident", {"inner": "KEEP", "resident": True}),
        Way("depth first", {"inner": "SWAP", "depth_first_blocks": 2}),
        Way("graphs", {"inner": "RECOMPUTE", "graphs": "ALWAYS"}),
        Way("two workers", {"inner": "RECOMPUTE"}, ("--workers", 2, "--device-memory", "256MiB")),
        Way("killed and resumed", {"inner": "RECOMPUTE"}, killed=True))


class NotReached(Exception):
    """No time was left, or it was over before it could be killed."""


@dataclass
class Got:
    """Of one run: its bits, or why there are none."""
    model_hash: str = None
    losses: list = None
    failed: str = None
    not_reached: str = None

    def compared_with(self, want):
        """Of its state in the table, and what is wrong with it, if anything."""
        if self.failed:
            return "failed", self.failed
        if self.not_reached:
            return "not reached", ""
        if want.model_hash is None:
            return "nothing to compare with", ""
        if (self.losses, self.model_hash) == (want.losses, want.model_hash):
            return "the same", ""
        steps = [i for i, pair in enumerate(zip(self.losses, want.losses)) if pair[0] != pair[1]]
        where = f"the loss of step {steps[0]} is the first that differs" if steps else "the losses are the same"
        return "OTHER BITS", f"other bits than by relay: {where}"


class Runs:
    def __init__(self, device, tiny, log, deadline):
        self.device, self.log, self.deadline = device, log, deadline
        self.base = eps_run.merged(RUN, TINY) if tiny else RUN
        self.work = eps_run.Workspace()
        self.longest = None  # seconds of a run that has ended as it should; one that several threads lose is no loss

    def carry_out(self, setting, way):
        """A Got; raises nothing but what ends everything."""
        try:
            if self.deadline - time.monotonic() < LEAST_SECONDS:
                raise NotReached("no time was left")
            return self.trained(setting, way)
        except NotReached as error:
            return Got(not_reached=str(error))
        except Exception as error:
            return Got(failed=str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}")

    def trained(self, setting, way):
        name = f"{setting.name} {way.name}".replace(" ", "-")
        out = self.work.out(name)
        spec = self.work.spec(eps_run.merged(self.base, eps_run.merged(setting.changes(), {"relay": way.relay})),
                              name=f"{name}.json")
        memory = () if "--device-memory" in way.args else ("--device-memory", MEMORY)
        command = eps_run.train_command(spec, out, "--device", self.device, *memory, *way.args)
        try:
            if way.killed:
                self.kill_daemon(command, out)
                self.run([*command, "--resume"])
                if not re.search(r" run_resumed .*step=[1-9]", (out / "logs/eps_server.log").read_text()):
                    raise Failed("it did not resume from a checkpoint")
            else:
                self.run(command)
            for log in eps_side.worker_logs(out):
                self.check_log(setting, way, log)
            return Got(eps_run.model_hash(out), eps_run.summary(out)["loss"])
        finally:
            eps_side.keep_logs(self.log, name, out)

    def has_ended(self, seconds):
        self.longest = max(self.longest or 0.0, seconds)

    def hangs_after(self):
        """Seconds of a run; None while there is nothing to tell by."""
        return None if self.longest is None else max(RUN_SECONDS, TIMES_LONGEST * self.longest)

    def check_time(self, process):
        """A run that had its time hangs; one that the part's end cuts off says nothing."""
        now, most = time.monotonic(), self.hangs_after()
        if most is not None and now - process.began >= most:
            raise Failed(f"it hangs: ended after {now - process.began:.0f} s")
        if now >= self.deadline:
            raise NotReached("no time was left")

    def wait(self, process):
        while not process.wait(min(self.deadline, time.monotonic() + LOOK_SECONDS)):
            self.check_time(process)

    def run(self, command):
        with processes.Process(command) as process:
            self.wait(process)
            if process.returncode != 0:
                raise Failed(f"ended with {process.returncode}: ...{process.stderr().strip()[-500:]}")
            self.has_ended(time.monotonic() - process.began)

    def kill_daemon(self, command, out):
        """Between the first checkpoint and the end; all that belongs to the run ends with it."""
        with processes.Process(command) as process:
            daemons = []
            while process.returncode is None:
                daemons = daemons or eps_run.children(process.pid, "eps_server")
                if daemons and (out / "checkpoints/latest").exists():
                    for daemon in daemons:
                        os.kill(daemon, signal.SIGKILL)
                    break
                self.check_time(process)
                time.sleep(0.002)
            self.wait(process)
            if process.returncode == 0 or eps_run.committed_steps(out) >= self.base["steps"]:
                raise NotReached("it was over before it could be killed")
            if eps_run.committed_steps(out) == 0:
                raise Failed(f"ended with {process.returncode}: ...{process.stderr().strip()[-500:]}")

    def check_log(self, setting, way, log):
        """A worker's: what the bits do not show."""
        if why := eps_side.not_pinned(log):
            raise Failed(why)
        why = eps_side.plain_attention(log)
        # Of several shapes, as evaluation has none of training's dropout, each is to be the library's.
        is_fused = eps_side.uses_fused_attention(log) and not why
        if setting.attention != "plain" and not is_fused and not setting.refused_by_library(why):
            raise Failed(f"attention was not fused: {why or 'the log does not say why'}")
        if setting.attention == "plain" and " attention_planned " in log:
            raise Failed("attention was fused, though precision.plain_attention is true, or the precision FP32")
        if why := re.search(r" graphs_not_used why=(.*)", log):
            raise Failed(f"no graph was captured: {why[1]}")
        if way.relay.get("graphs") == "ALWAYS" and not eps_side.graph_launches(log):
            raise Failed("no graph was launched")


def told(settings, got):
    """An Outcome: the table, and in words what is the same, what is wrong and what was not reached; whether any is
    wrong."""
    rows, same, wrong, missed = [], [], [], []
    for setting in settings:
        results = {way.name: got.get((setting, way.name), Got(not_reached="no time was left")) for way in WAYS}
        states, late = {}, []
        for name, mine in results.items():
            states[name], why = mine.compared_with(results[WAYS[0].name])
            if why:
                wrong.append(f"{setting.name} {name}: {why}")
            elif states[name] in ("not reached", "nothing to compare with"):
                late.append(name + (f" ({mine.not_reached})" if mine.not_reached not in (None, "no time was left")
                                    else ""))
        if states[WAYS[0].name] == "the same":
            states[WAYS[0].name] = "ran"
        if names := [name for name, state in states.items() if state == "the same"]:
            same.append(f"{setting.name} {', '.join(names)}")
        if late:
            missed.append(setting.name + (f" {', '.join(late)}" if len(late) < len(WAYS) else ""))
        rows.append([setting.name, *states.values()])
    said = [f"{label}: {'; '.join(words)}" for label, words in
            (("WRONG", wrong), ("the same bits as by relay", same), ("not reached", missed)) if words]
    table = Table("The same bits", ["", *(way.name for way in WAYS)], rows)
    outcome = Outcome(". ".join(said), [table], {"same": same, "wrong": wrong, "not_reached": missed},
                      state="partly" if missed else "passed")
    return outcome, bool(wrong)


def bits(device, tiny, log, progress, deadline, settings=SETTINGS, at_once=AT_ONCE):
    """`log`: a file for what the programs log. Fails when bits differ or a run fails, not when time is up."""
    runs, got = Runs(device, tiny, log, deadline), {}
    with ThreadPoolExecutor(at_once) as pool:
        try:
            # In this order: a setting's first run is what its others are held against.
            waiting = {pool.submit(runs.carry_out, setting, way): (setting, way.name)
                       for setting in settings for way in WAYS}
            for future in as_completed(waiting):
                got[waiting[future]] = future.result()
                progress.say(told(settings, got)[0].said)
        except BaseException:
            processes.end_all()  # or the pool would wait for its threads, and these for their processes
            raise
        finally:
            runs.work.remove()
    outcome, wrong = told(settings, got)
    if wrong:
        raise Failed(outcome.said, outcome)
    return outcome
