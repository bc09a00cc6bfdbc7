"""Where a GPU's time goes, kernel by kernel: what libkernel_times.so (kernel_times.cc) wrote of a process."""

import collections
import contextlib
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from part_report import Failed, Table

LIBRARY = "libkernel_times.so"
SHOWN = 24  # kernels of a table
BETWEEN_NS = 100_000  # a gap that is longer is a wait; a shorter one lies between two launches


@dataclass(frozen=True)
class Work:
    kind: str
    begin: int  # ns
    end: int
    stream: int
    num_bytes: int
    name: str

    @property
    def ns(self):
        return self.end - self.begin


def of_line(line):
    kind, begin, end, stream, num_bytes, name = line.rstrip("\n").split("\t")
    return Work(kind, int(begin), int(end), int(stream), int(num_bytes), name)


@contextlib.contextmanager
def recorded(library, folder):
    """What is started within it leaves its times in the folder."""
    folder.mkdir(parents=True)
    before = dict(os.environ)
    os.environ.update(CUDA_INJECTION64_PATH=str(library), EPS_KERNEL_TIMES=str(folder))
    try:
        yield
    finally:
        for name in ("CUDA_INJECTION64_PATH", "EPS_KERNEL_TIMES"):
            os.environ.pop(name)
            if name in before:
                os.environ[name] = before[name]


def read(folder):
    """Of the process that did most, in the order of begins. A line that was cut short, as the process was ended, is left
    out."""
    files = sorted(Path(folder).glob("*.tsv"), key=lambda file: file.stat().st_size)
    if not files:
        raise Failed("no process left the times of its kernels: the driver does not load CUDA_INJECTION64_PATH")
    works, said = [], []
    for line in files[-1].read_text(errors="replace").splitlines():
        if line.startswith("#"):
            said.append(line.lstrip("# "))
        elif line.count("\t") == 5:
            works.append(of_line(line))
    if not any(work.kind == "kernel" for work in works):
        raise Failed(f"no kernel was recorded: {'; '.join(said) or 'the file is empty'}")
    return sorted(works, key=lambda work: work.begin)


def demangled(names):
    """By name. Without c++filt they stay as they are."""
    names = sorted(set(names))
    try:
        done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return {name: name for name in names}
    return dict(zip(names, done.stdout.splitlines()))


def short(name):
    """Without namespaces, arguments and types: `LayerNormKernel` of a demangled or a mangled name of ours, else what a
    library calls it."""
    if mangled := re.search(r"\d(\w+?Kernel)I", name):
        return re.sub(r"^.*\d", "", mangled[1])
    if cutlass := re.search(r"Kernel2<(\w+)", name):
        return cutlass[1][:64]
    name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    while (less := re.sub(r"<[^<>]*>", "", name)) != name:
        name = less
    return name.partition("(")[0].rpartition("::")[2][:64]


def steps_of(works, seconds):
    """What began in the last so many seconds before the last kernel's end."""
    end = max(work.end for work in works if work.kind == "kernel")
    return [work for work in works if end - seconds * 1e9 <= work.begin <= end]


def table(title, works, steps, seconds):
    """Of works of so many steps, which took so long. And in words, the shares of that in which no kernel ran."""
    of_streams = collections.Counter()
    for work in works:
        of_streams[work.stream] += work.ns if work.kind == "kernel" else 0
    compute = of_streams.most_common(1)[0][0]
    kernels = [work for work in works if work.stream == compute and work.kind == "kernel"]
    whole = seconds * 1e9
    names = {raw: short(name) for raw, name in demangled(work.name for work in kernels).items()}
    sums = collections.defaultdict(lambda: [0, 0])
    for work in kernels:
        sums[names[work.name]][0] += work.ns
        sums[names[work.name]][1] += 1
    rows = [[name, calls / steps, ns / steps / 1e6, ns / calls / 1e3, ns / whole]
            for name, (ns, calls) in sorted(sums.items(), key=lambda item: -item[1][0])[:SHOWN]]
    gaps = [later.begin - work.end for work, later in zip(kernels, kernels[1:])]
    between = sum(gap for gap in gaps if 0 < gap <= BETWEEN_NS)
    waits = max(0, whole - between - sum(work.ns for work in kernels))
    rows += [["no kernel: between launches", None, between / steps / 1e6, None, between / whole],
             ["no kernel: waits of over 0.1 ms", None, waits / steps / 1e6, None, waits / whole]]
    for kind, label in (("copy_in", "copies in, beside them"), ("copy_out", "copies out, beside them")):
        copies = [work for work in works if work.kind == kind]
        if ns := sum(work.ns for work in copies):
            rows.append([f"{label}: {sum(work.num_bytes for work in copies) / ns:.1f} GB/s while copied",
                         len(copies) / steps, ns / steps / 1e6, ns / len(copies) / 1e3, ns / whole])
    said = f"no kernel runs for {between / whole:.1%} between launches, and {waits / whole:.1%} in waits"
    return Table(title, ["kernel", "calls a step", "ms a step", "us a call", "of the step"], rows), said
