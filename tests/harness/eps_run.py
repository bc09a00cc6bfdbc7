"""Whole-system tests: starts the real programs and looks at what they leave. Python's standard library only.

From the environment: EPS_BIN, EPS_DEVICE, EPS_SANITIZER, EPS_TIME_SCALE (docs/operations.md#tests).
"""

import ctypes
import dataclasses
import fnmatch
import functools
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("EPS_BIN", ROOT / "bin"))
EPS = BIN / "eps"
DEVICE = ["--device", os.environ["EPS_DEVICE"]] if "EPS_DEVICE" in os.environ else []  # of workers
SANITIZER = os.environ.get("EPS_SANITIZER", "")
TIME_SCALE = float(os.environ.get("EPS_TIME_SCALE", 1))
LIBC = ctypes.CDLL(None)

# Plans are made from nominal figures, whatever profile this machine keeps.
os.environ["XDG_CACHE_HOME"] = "/dev/null"

CANNOT_RUN_HERE = 77  # exit code, as ./test understands it

# Cases that run at the same time. One alone leaves cores idle, as processes start, end and wait for each other; more would
# take each other's time.
AT_ONCE = min(4, len(os.sched_getaffinity(0)))
WAITING_AT_ONCE = 3 * AT_ONCE // 2  # of cases that wait, for leases and deadlines, about as long as they compute


def long(case):
    """A case that takes much of the time of all: it begins first, so that the others run beside it."""
    case.is_long = True
    return case


def alone(case):
    """A case that no other runs beside, as it measures, has deadlines that no EPS_TIME_SCALE makes longer, or acts at a
    moment of a run of seconds, which others would make it miss."""
    case.runs_alone = True
    return case


def measures_the_process(case):
    """A case that measures a process: its memory, or how fast it is."""
    return alone(unittest.skipIf(SANITIZER, f"{SANITIZER} takes memory and time of its own")(case))


# A model that trains in milliseconds a step, with several chunks, vnodes and micro-batches all the same.
TINY = {
    "model": {"family": "GPT2", "layers": 3, "d_model": 64, "heads": 4, "context": 32, "vocab": 256, "init_seed": 1},
    "data": {"path": "text.txt", "tokenizer": "BYTES", "order": "SHUFFLED", "seed": 7},
    "batch": {"virtual_nodes": 4, "micro_batches": 2, "micro_batch": 2},
    "optimizer": {
        "adamw": {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1},
        "schedule": {"peak": 1e-3, "warmup_steps": 5, "decay": "COSINE", "final": 1e-4},
        "clip": {"mode": "EXACT", "norm": 1.0},
    },
    "precision": {"wire": "BF16", "gradients": "BF16", "moments": "FP32"},
    "steps": 12,
    "checkpoint": {"every_steps": 5, "keep": 3},
}

# Changes of a run that its case ends, however long what the case does meanwhile takes: how many steps were still to come
# changes nothing in those that were done.
ENDLESS = {"steps": 1_000_000, "checkpoint": {"every_steps": 0},
           "optimizer": {"schedule": {"decay": "CONSTANT", "final": None}}}


def merged(base, changes):
    """`base` with the nested dictionary `changes` laid over it; a value of None removes the key."""
    result = dict(base)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


def sample_text(num_bytes=200_000):
    """Text with structure to learn, the same every time."""
    words = ("and the lord said unto moses let there be light in the beginning god created heaven earth "
             "waters day night of to a that he shall not for all they his").split()
    state, out, length = 12345, [], 0
    while length < num_bytes:
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        word = words[(state >> 16) % len(words)]
        out.append(word)
        length += len(word) + 1
    return " ".join(out)[:num_bytes].encode()


class Workspace:
    """A folder for one test case, with a text and RunSpecs."""

    def __init__(self):
        self.path = Path(tempfile.mkdtemp(prefix="eps-test-"))
        (self.path / "text.txt").write_bytes(sample_text())

    def remove(self):
        shutil.rmtree(self.path, ignore_errors=True)

    def spec(self, changes=None, name="run.json", base=TINY):
        path = self.path / name
        path.write_text(json.dumps(merged(base, changes or {})))
        return path

    def out(self, name):
        return self.path / name


def train_command(spec, out, *args):
    return [str(EPS), "train", "--run", str(spec), "--out", str(out), "--quiet", *DEVICE, *map(str, args)]


def die_with(parent):
    """In a child of `parent`: it would go on, or wait for its next task, for ever when its parent is killed."""
    LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def dying_with_us(command):
    """The command, whose process is killed when the thread that started it has ended, as a suite that is ended cleans up
    nothing. A preexec_fn would fork, which may hang beside the threads of gRPC."""
    setpriv = shutil.which("setpriv")  # of util-linux; a machine of others need not have it
    return [*([setpriv, "--pdeathsig", "KILL"] if setpriv else []), *map(str, command)]


def run(command, timeout=300, **kwargs):
    return subprocess.run(dying_with_us(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          stdin=subprocess.DEVNULL, text=True, timeout=timeout * TIME_SCALE, **kwargs)


def train(spec, out, *args, timeout=300):
    return run(train_command(spec, out, *args), timeout=timeout)


def start(command, **kwargs):
    return subprocess.Popen(dying_with_us(command), **{"stdin": subprocess.DEVNULL, "text": True, **kwargs})


def start_train(spec, out, *args, **kwargs):
    return start(train_command(spec, out, *args), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                 **kwargs)


def summary(out):
    return json.loads((Path(out) / "summary.json").read_text())


def latest_checkpoint(out):
    folder = Path(out) / "checkpoints"
    return folder / (folder / "latest").read_text().strip()


def weight_files(folder):
    """Those that a model's folder keeps its tensors in: one, or those that its index names."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return [folder / "model.safetensors"]
    return [folder / name for name in sorted(set(json.loads(index.read_text())["weight_map"].values()))]


def model_hash(out):
    files = weight_files(latest_checkpoint(out))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def metrics(out):
    """What metrics.jsonl says of each step."""
    return [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]


def committed_steps(out):
    try:
        lines = (Path(out) / "metrics.jsonl").read_text().splitlines()
        return sum(1 for line in lines if '"loss":' in line and line.endswith("}"))  # evaluations have no "loss"
    except FileNotFoundError:
        return 0


def endpoints(process, out, timeout=60, log=None):
    """What `process`, a daemon or who starts one, says in endpoints.json of where it listens, once it does.

    A file that an older daemon left there is not taken for it. `log` is shown when it ends before."""
    deadline = time.monotonic() + timeout * TIME_SCALE
    while True:
        ended = process.poll() is not None
        try:
            said = json.loads((Path(out) / "endpoints.json").read_text())
        except FileNotFoundError:
            said = {}
        if said and (said["pid"] == process.pid or said["pid"] in children(process.pid, "eps_server")):
            return said
        if ended:
            why = Path(log).read_text() if log else process.communicate()
            raise AssertionError(f"ended with {process.returncode} before it listened: {why}")
        if time.monotonic() > deadline:
            raise AssertionError(f"it does not say in {timeout} s where it listens")
        time.sleep(0.01)


def wait_for_steps(process, out, steps, timeout=120):
    """Until `steps` steps are committed. Fails when the process ends first."""
    deadline = time.monotonic() + timeout * TIME_SCALE
    while committed_steps(out) < steps:
        if process.poll() is not None:
            raise AssertionError(f"ended with {process.returncode} before step {steps}: {process.communicate()}")
        if time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"step {steps} not reached in {timeout} s")
        time.sleep(0.005)


def children(pid, name):
    """Direct children of `pid` whose process name is `name`, oldest first."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        command, rest = re.match(r"\d+ \((.*)\) (.*)", stat, re.S).groups()
        fields = rest.split()
        if command == name and int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(entry.name))
    return sorted(found)


def alive(pid):
    """Whether a process is there and more than a zombie, whoever its parent is by now."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def needs_at_least(message):
    """The smallest cap that a refusal names."""
    match = re.search(r"needs at least (\d+) bytes", message)
    if not match:
        raise AssertionError(f"no smallest cap is named in: {message}")
    return int(match.group(1))


class SystemTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.work = Workspace()
        self.failed_before = self.count_failed()
        self.addCleanup(self.remove_files)  # the first to be added is the last to be done

    def count_failed(self):
        return len(self._outcome.result.failures) + len(self._outcome.result.errors)

    def remove_files(self):
        """Of a case that passed, or was skipped anywhere in it."""
        if self.count_failed() == self.failed_before:
            self.work.remove()
        else:
            print(f"its files are left in {self.work.path}")

    def emulated_eps(self):
        """Where `eps` lies beside a gpu_worker whose cuda devices are emulated."""
        if not (BIN / "gpu_worker_emulated").exists():
            self.skipTest(f"{BIN}/gpu_worker_emulated is not built (./build --test-programs)")
        programs = self.work.path / "bin"
        programs.mkdir()
        for program, place in {"eps": "eps", "eps_server": "eps_server", "gpu_worker_emulated": "gpu_worker"}.items():
            shutil.copy(BIN / program, programs / place)
        return programs / "eps"

    def library(self, source):
        """What LD_PRELOAD takes: a C file of tests/faults, built for this test."""
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            self.skipTest("no C compiler here")
        library = self.work.path / f"{source}.so"
        built = run([compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(ROOT / "tests" / "faults" / source), "-ldl"])
        self.assertEqual(built.returncode, 0, built.stderr)
        return library

    def gone(self, pids, timeout=30):
        deadline = time.monotonic() + timeout * TIME_SCALE
        while left := [pid for pid in pids if alive(pid)]:
            self.assertLess(time.monotonic(), deadline, f"still alive after {timeout} s: {left}")
            time.sleep(0.05)

    def start_endless(self, spec, out, *args, **kwargs):
        """A run that the case ends itself, or, where it comes to no end, whoever cleans up."""
        process = start_train(spec, out, *args, **kwargs)
        self.addCleanup(self.end_if_running, process)
        return process

    def wait_for_first_checkpoint(self, out):
        """One that is due is written while training goes on; on a slow disk it takes longer than some of these steps."""
        deadline = time.monotonic() + 60 * TIME_SCALE
        while not (out / "checkpoints" / "latest").exists():
            self.assertLess(time.monotonic(), deadline, "no checkpoint was written")
            time.sleep(0.001)

    def end_if_running(self, process):
        if process.poll() is None:
            process.kill()  # its daemon and workers end with it
            process.communicate()

    def ends(self, process, code, timeout=120):
        """Returns what it said on stderr."""
        stdout, stderr = process.communicate(timeout=timeout * TIME_SCALE)
        self.assertEqual(process.returncode, code, f"{process.args}\n{stdout}\n{stderr}")
        return stderr

    def like_a_quiet_run(self, spec, out):
        """An endless run that was ended has the bits of one of as many steps that nobody disturbs."""
        losses, quiet = summary(out)["loss"], Path(f"{out}-quiet")
        self.train_ok(spec, quiet, "--set", f"steps={len(losses)}", "--set", "checkpoint.every_steps=0", timeout=600)
        self.assertEqual(losses, summary(quiet)["loss"])
        self.assertEqual(model_hash(out), model_hash(quiet))

    def ends_like_a_quiet_run(self, process, spec, out):
        """An endless run goes on for some steps, whatever became of it before, and is ended."""
        wait_for_steps(process, out, committed_steps(out) + 5)
        process.send_signal(signal.SIGINT)
        stderr = self.ends(process, 130)
        self.like_a_quiet_run(spec, out)
        return stderr

    def has_the_same_bits(self, changes, name):
        """A run has the bits of an undisturbed one of its own when it is recomputed over gRPC, resident with two workers, in
        a group, and through a worker's death, a signal and a resume."""
        spec, quiet = self.work.spec(changes, name=f"{name}.json"), self.work.out(f"{name}-quiet")
        self.train_ok(spec, quiet)
        def seen(out):
            return model_hash(out), summary(out)["loss"], [line.get("experts") for line in metrics(out)]

        expected = seen(quiet)
        for way, args in {"recompute": ("--set", "relay.inner=RECOMPUTE", "--set", "transport=GRPC"),
                          "resident": ("--set", "relay.resident=true", "--workers", 2),
                          "group": ("--set", "relay.group_members=2", "--workers", 2)}.items():
            out = self.work.out(f"{name}-{way}")
            self.train_ok(spec, out, *args)
            self.assertEqual(seen(out), expected, f"{name}, {way}")
        self.assertIn("group_formed", (out / "logs" / "eps_server.log").read_text())

        out, endless = self.work.out(f"{name}-killed"), self.work.spec(merged(changes, ENDLESS), name=f"{name}-endless.json")
        process = self.start_endless(endless, out, "--workers", 2)
        wait_for_steps(process, out, 5)
        os.kill(children(process.pid, "gpu_worker")[0], signal.SIGKILL)
        wait_for_steps(process, out, 11)
        process.send_signal(signal.SIGINT)
        self.ends(process, 130)
        self.ends_like_a_quiet_run(self.start_endless(endless, out, "--resume"), endless, out)

    def eps(self, *args, code=0):
        """A command that ends with that code; returns it with what it said."""
        done = run([str(EPS), *map(str, args)], timeout=600, errors="replace")  # a token may be half a character
        self.assertEqual(done.returncode, code, f"{' '.join(map(str, done.args))}\n{done.stdout}\n{done.stderr}")
        return done

    def plan(self, spec, *args):
        return json.loads(self.eps("plan", "--run", spec, "--json", *args).stdout)

    def train_ok(self, spec, out, *args, **kwargs):
        done = train(spec, out, *args, **kwargs)
        self.assertEqual(done.returncode, 0, f"{' '.join(map(str, done.args))}\n{done.stdout}\n{done.stderr}")
        return done

    def begin(self, spec, out, steps, *args, worker_args=()):
        """The first `steps` steps of a run, and their checkpoint, as a stop just then would leave them: eps train --resume
        goes on from there, however fast the machine is. `args` are the daemon's."""
        path = self.work.path / f"{out.name}-begun.log"
        with open(path, "w") as log:  # a pipe that nobody reads would fill up
            processes = []

            def add(program, *args):
                processes.append(start([BIN / program, *args], stdout=log, stderr=log))
                self.addCleanup(self.end_if_running, processes[-1])
                return processes[-1]

            daemon = add("eps_server", "--run", spec, "--out", out, "--most-steps", steps, *args)
            add("gpu_worker", "--connect", endpoints(daemon, out, log=path)["grpc"], *DEVICE, *worker_args)
        for process in processes:
            self.assertEqual(process.wait(timeout=120 * TIME_SCALE), 0, path.read_text())
        self.assertEqual(committed_steps(out), steps)

    def interrupt(self, spec, out, steps, *args):
        """Starts a run, and ends it by a signal when so many steps are committed; it must have many more to go."""
        process = start_train(spec, out, *args)
        wait_for_steps(process, out, steps)
        process.send_signal(signal.SIGINT)
        self.ends(process, 130)

    def refused(self, done, code, *words):
        self.assertEqual(done.returncode, code, f"{' '.join(map(str, done.args))}\n{done.stdout}\n{done.stderr}")
        for word in words:
            self.assertIn(word, done.stderr)

    def hand_over_to(self, user):
        """Gives all files, and a copy of the programs in `self.bin`, to `user`, with every folder open to others."""
        self.bin = self.work.path / "bin"
        self.bin.mkdir()
        for program in ("eps", "eps_server", "gpu_worker"):
            shutil.copy(BIN / program, self.bin)
        for path in (self.work.path, *self.work.path.rglob("*")):
            os.chown(path, user, user)
            path.chmod(0o755)


class ByHandTest(SystemTest):
    """Daemon and workers started by hand: nobody stands between them and the signals."""

    def setUp(self):
        super().setUp()
        self.logs = {}  # by process
        self.addCleanup(self.end_all)

    def end_all(self):
        for process in self.logs:
            process.kill()
            process.wait()

    def log(self, process):
        return self.logs[process].read_text()

    def ends(self, process, code, timeout=120):
        """Returns what it said."""
        if process not in self.logs:
            return super().ends(process, code, timeout)
        self.assertEqual(process.wait(timeout * TIME_SCALE), code, f"{process.args}\n{self.logs[process].read_text()}")
        return self.logs[process].read_text()

    def start(self, program, *args, **kwargs):
        path = self.work.path / f"by-hand-{len(self.logs)}.log"
        with open(path, "w") as log:  # a pipe that nobody reads would fill up
            process = start([program, *args], stdout=log, stderr=subprocess.STDOUT, **kwargs)
        self.logs[process] = path
        return process

    def start_daemon(self, spec, out, *args, **kwargs):
        """A daemon of the run, and its address."""
        daemon = self.start(BIN / "eps_server", "--run", spec, "--out", out, *args, **kwargs)
        return daemon, endpoints(daemon, out, log=self.logs[daemon])["grpc"]

    def start_worker(self, address, *args):
        return self.start(BIN / "gpu_worker", "--connect", address, *DEVICE, *args)


class WholeLines:
    """A stream that writes line by line, so that those of several processes do not mix."""

    def __init__(self, out):
        self.out, self.begun = out, ""

    def write(self, text):
        *lines, self.begun = (self.begun + text).split("\n")
        if lines:
            self.out.write("\n".join(lines) + "\n")
            self.out.flush()

    def writeln(self, text=""):
        self.write(text + "\n")

    def flush(self):
        pass


class TimedResult(unittest.TextTestResult):
    """Times each case."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seconds = {}

    def startTest(self, test):
        self.seconds[test.id()] = -time.monotonic()
        super().startTest(test)

    def stopTest(self, test):
        super().stopTest(test)
        self.seconds[test.id()] += time.monotonic()


@dataclasses.dataclass
class Ran:
    """What became of cases: their names, those that failed or were skipped, how long each took, what went wrong."""
    ran: set
    failed: set
    skipped: set
    seconds: dict
    errors: list

    @classmethod
    def nothing(cls):
        return cls(set(), set(), set(), {}, [])

    @classmethod
    def of(cls, result):
        # A case may fail in several of its subtests, and is counted once.
        case_of = lambda test: getattr(test, "test_case", test).id()  # noqa: E731
        wrong = result.failures + result.errors
        failed = {case_of(test) for test, _ in wrong}
        skipped = {case_of(test) for test, _ in result.skipped} - failed
        return cls({*result.seconds, *failed, *skipped}, failed, skipped, result.seconds,
                   [f"FAILED: {test}\n{trace}" for test, trace in wrong])

    def __add__(self, other):
        return Ran(self.ran | other.ran, self.failed | other.failed, self.skipped | other.skipped,
                   self.seconds | other.seconds, self.errors + other.errors)

    def print_slowest(self, seconds, count=10):
        """Where the time goes, for those who wait for it."""
        print(f"{seconds:.0f} s, of which the slowest cases took:")
        for test in sorted(self.seconds, key=self.seconds.get, reverse=True)[:count]:
            print(f"  {self.seconds[test]:5.1f} s  {test}")


def cases_of(suite):
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from cases_of(part)
        else:
            yield part


def is_marked(case, mark):
    return hasattr(case, mark) or hasattr(getattr(case, case._testMethodName, None), mark)


@functools.cache
def cases_that_match(folders, patterns):
    """By their names."""
    loader = unittest.TestLoader()
    loader.testNamePatterns = list(patterns)
    return {case.id(): case for folder in folders
            for case in cases_of(loader.discover(str(folder), pattern="*_test.py", top_level_dir=str(folder)))}


def run_case(folders, patterns, name):
    result = TimedResult(WholeLines(sys.stdout), descriptions=True, verbosity=2)
    unittest.TestSuite([cases_that_match(folders, patterns)[name]]).run(result)
    return Ran.of(result)


def main(*folders, patterns=("*",), at_once=1):
    """Runs the cases of every *_test.py in the folders that a pattern matches, or all, if words are given, whose name
    holds one; its last line counts the cases. `at_once`: processes that each take one case after another, but for cases
    that run alone, which come last.

    Returns 77 when none of them could run here, 1 when one failed or there was none, or none that a pattern matches."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends it at once, as SIGTERM does, and all that was started with it
    patterns = tuple(f"*{word}*" for word in sys.argv[1:]) or tuple(patterns)
    cases = cases_that_match(folders, patterns)
    missing = [pattern for pattern in patterns if not fnmatch.filter(cases, pattern)]
    if missing:
        print(f"no case is called {' or '.join(missing)}\n0 passed, 1 failed")
        return 1
    start = time.monotonic()
    run_one = functools.partial(run_case, folders, patterns)
    apart = [name for name, case in cases.items() if is_marked(case, "runs_alone")]
    beside = sorted(cases.keys() - set(apart), key=lambda name: (not is_marked(cases[name], "is_long"), name))
    # A process that dies ends this with an error.
    with ProcessPoolExecutor(at_once, multiprocessing.get_context("fork"), die_with, (os.getpid(),)) as pool:
        ran = functools.reduce(Ran.__add__, pool.map(run_one, beside), Ran.nothing())
    ran = functools.reduce(Ran.__add__, map(run_one, apart), ran)
    print("\n".join(ran.errors), end="\n" if ran.errors else "")
    ran.print_slowest(time.monotonic() - start)
    failed, skipped = len(ran.failed), len(ran.skipped)
    passed = len(ran.ran) - failed - skipped
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    if failed or not ran.ran:
        return 1
    return 0 if passed else CANNOT_RUN_HERE
