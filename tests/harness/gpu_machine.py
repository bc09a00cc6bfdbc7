"""Where the programs are that tests/gpu/run and bench/gpu/run start, which GPU they find, and which of NVIDIA's
libraries. Imported before eps_run.

A bundle (tests/gpu/make_bundle) lies as the tree does, with the programs in bin/ and libraries that a machine may lack
in lib/; in the tree, ./build --gpu-bundle makes them in out/gpu/bin.
"""

import glob
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

import processes
from part_report import Failed

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("EPS_BIN") or next(
    (folder for folder in (ROOT / "out/gpu/bin", ROOT / "bin") if folder.is_dir()), ROOT / "bin"))
# CUDA's numbers of GPUs are nvidia-smi's then, ours and PyTorch's.
os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
OWN_ENVIRONMENT = dict(os.environ)  # for programs that are not ours, which bring their libraries
os.environ["EPS_BIN"] = str(BIN)
if (ROOT / "lib").is_dir():
    os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, (str(ROOT / "lib"), os.environ.get("LD_LIBRARY_PATH"))))

# What the device loads at run time, and the function that tells its version: major * 10000 + minor * 100 + patch.
LIBRARIES = {"cuBLASLt": ("libcublasLt.so.13", "cublasLtGetVersion"), "cuDNN": ("libcudnn.so.9", "cudnnGetVersion"),
             "NCCL": ("libnccl.so.2", "ncclGetVersion")}
LEAST_CUDNN = (9, 15, 1)  # of gpu_worker/device/cuda/cudnn_api.cc
PROBE_SECONDS = 100  # the first load of the libraries, hundreds of MB each, from a cold disk
ASK_SECONDS = 20
GROWS_BELOW = 0.8  # of what the host is said to have: a MemTotal that is not only what the kernel keeps

# As each library is loaded: "VERSION, FILE", or why it is not.
LOAD_LIBRARIES = """
import ctypes, json, sys
said = {}
for label, (name, function) in json.loads(sys.argv[1]).items():
    try:
        library = ctypes.CDLL(name)
        get = getattr(library, function)
        if label == "NCCL":
            number = ctypes.c_int()
            get(ctypes.byref(number))
            version = number.value
        else:
            get.restype = ctypes.c_size_t
            version = get()
        files = [line.split()[-1] for line in open("/proc/self/maps") if name in line]
        said[label] = f"{version // 10000}.{version // 100 % 100}.{version % 100}, {files[0] if files else name}"
    except Exception as error:
        said[label] = f"not loaded: {error}"
print(json.dumps(said))
"""


class CannotRun(Exception):
    """The machine lacks what is needed; says what."""


def ask(python, program, *args, env=None):
    """What a short Python program prints, as JSON; None if it fails."""
    try:
        done = processes.run([python, "-c", program, *args], time.monotonic() + ASK_SECONDS, env=env)
        return json.loads(done.stdout)
    except (Failed, ValueError):
        return None


def python_with_torch():
    """The first of this Python, others of PATH, and environments in their usual places that has PyTorch; else this."""
    environments = [os.environ.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    pythons = [sys.executable, shutil.which("python3"), shutil.which("python"),
               *(f"{folder}/bin/python3" for folder in environments if folder),
               *sorted(glob.glob("/opt/*/.venv/bin/python3") + glob.glob("/opt/*/bin/python3")), "/usr/bin/python3"]
    has_torch = "import importlib.util, json; print(json.dumps(importlib.util.find_spec('torch') is not None))"
    for python in dict.fromkeys(filter(None, pythons)):
        if os.access(python, os.X_OK) and ask(python, has_torch, env=OWN_ENVIRONMENT):
            return python
    return sys.executable


def wheel_folders(pythons):
    """Where wheels of NVIDIA's have put libraries: nvidia/*/lib beside these Pythons' packages."""
    found = []
    for python in dict.fromkeys(pythons):
        paths = ask(python, "import json, sys; print(json.dumps(sys.path))", env=OWN_ENVIRONMENT) or []
        for path in filter(None, paths):
            found += sorted(glob.glob(f"{glob.escape(path)}/nvidia/*/lib"))
    return list(dict.fromkeys(found))


def system_folders():
    """Where the machine has any of the libraries outside of Python: as ldconfig knows, and in the toolkit, in the order
    in which the device looks there."""
    names = [name for name, _ in LIBRARIES.values()]
    folders = []
    if ldconfig := shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin"):
        try:
            known = processes.run([ldconfig, "-p"], time.monotonic() + ASK_SECONDS, env=OWN_ENVIRONMENT).stdout
            folders = [str(Path(file).parent) for name, file in re.findall(r"^\s+(\S+) .*=> (\S+)$", known, re.M)
                       if name in names]
        except Failed:
            pass
    toolkits = [f"{root}/lib64" for root in (os.environ.get("CUDA_PATH"), "/usr/local/cuda") if root]
    folders += [folder for folder in toolkits if any(Path(folder, name).exists() for name in names)]
    return list(dict.fromkeys(folders))


def library_versions(folders, label):
    """{folder: version} of those that have the library, and from which it can be loaded."""
    name, function = LIBRARIES[label]
    found = {}
    for folder in folders:
        if (file := Path(folder, name)).exists():
            env = {**os.environ, "LD_LIBRARY_PATH": f"{folder}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
            said = ask(sys.executable, LOAD_LIBRARIES, json.dumps({label: (str(file), function)}), env=env) or {}
            if version := re.match(r"(\d+)\.(\d+)\.(\d+), ", said.get(label, "")):
                found[folder] = tuple(map(int, version.groups()))
    return found


def use_libraries_of(python):
    """All that is started from now on finds NVIDIA's libraries also where only a Python has them: the one with PyTorch,
    or python3. LD_LIBRARY_PATH comes before the system's folders; these are named in it, so that theirs are taken where
    both have them. But where the cuDNN that would be taken is one that the device refuses, the newest is."""
    wheels = wheel_folders([python, shutil.which("python3") or sys.executable])
    if wheels:
        given = os.environ.get("LD_LIBRARY_PATH", "").split(":")
        folders = list(dict.fromkeys(filter(None, [*given, *system_folders(), *wheels])))
        if versions := library_versions(folders, "cuDNN"):
            newest, first = max(versions, key=versions.get), min(map(folders.index, versions))
            if versions[folders[first]] < LEAST_CUDNN:
                folders.remove(newest)
                folders.insert(first, newest)
        os.environ["LD_LIBRARY_PATH"] = ":".join(folders)


def libraries():
    """Of each of LIBRARIES, which one is loaded, by name."""
    return ask(sys.executable, LOAD_LIBRARIES, json.dumps(LIBRARIES)) or {"libraries": "not known"}


def probe(device):
    """What the device is, as a worker names it, and what it warns of."""
    worker = BIN / "gpu_worker"
    if not worker.exists():
        raise CannotRun(f"{worker} is not there; ./build --gpu-bundle makes it")
    try:
        done = processes.run([worker, "--probe", "--device", device], time.monotonic() + PROBE_SECONDS)
    except Failed as error:
        raise CannotRun(str(error)) from None
    if done.returncode != 0:
        raise CannotRun(done.stderr.strip())
    return done.stdout.strip(), re.findall(r" WARNING (.*)", done.stderr)


def ask_nvidia_smi(fields, *args):
    """{field: value} of the first GPU that it names; {} if it cannot be asked."""
    if (program := shutil.which("nvidia-smi")) is None:
        return {}
    try:
        done = processes.run([program, f"--query-gpu={fields}", "--format=csv,noheader,nounits", *args],
                             time.monotonic() + ASK_SECONDS, env=OWN_ENVIRONMENT)
    except Failed:
        return {}
    values = [value.strip() for value in done.stdout.partition("\n")[0].split(",")]
    names = fields.split(",")
    return dict(zip(names, values)) if done.returncode == 0 and len(values) == len(names) else {}


def setting(path):
    """A file of the system's: of "a [b] c" it is b; None if it is not there."""
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return None
    chosen = re.search(r"\[(\S+)\]", text)
    return chosen[1] if chosen else text


def memory(host_bytes, root=Path("/")):
    """Of the host, in words; what the system does not say is left out. `host_bytes`: what it is said to have."""
    text = setting(root / "proc/meminfo") or ""
    known = {name: int(kib) * 1024 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.M)}
    said = {name: f"{known[name] / 2**30:.1f} GiB" for name in ("MemTotal", "MemFree", "MemAvailable") if name in known}
    if "MemTotal" in known:
        grows = known["MemTotal"] < GROWS_BELOW * host_bytes
        said["memory grows on demand"] = (f"it seems: MemTotal is far below --host-memory, {host_bytes / 2**30:.1f} GiB"
                                          if grows else "not seen")
    files = {"vm.overcommit_memory": "proc/sys/vm/overcommit_memory",
             "transparent_hugepage": "sys/kernel/mm/transparent_hugepage/enabled",
             "transparent_hugepage of shared memory": "sys/kernel/mm/transparent_hugepage/shmem_enabled",
             "memory.max of the cgroup": "sys/fs/cgroup/memory.max"}
    return {**said, **{name: value for name, file in files.items() if (value := setting(root / file)) is not None}}


def machine(host_bytes):
    """Of the host, and what nvidia-smi says of the first GPU that is seen. The link of an idle one may be slower than it
    can be."""
    fields = ("name,driver_version,memory.total,pcie.link.gen.current,pcie.link.width.current,pcie.link.gen.max,"
              "pcie.link.width.max")
    said = ask_nvidia_smi(fields, f"--id={name_of_gpu(0)}") or ask_nvidia_smi(fields)  # a part of one has no name there
    return {"cores": len(os.sched_getaffinity(0)), "host_gib": round(host_bytes / 2**30, 1), **memory(host_bytes),
            "python": ".".join(map(str, sys.version_info[:3])), **(said or {"nvidia-smi": "not there"})}


def name_of_gpu(index):
    """That of CUDA's GPU `index` with nvidia-smi: a number or a UUID, as CUDA_VISIBLE_DEVICES has them; "" where that has
    none of this index."""
    seen = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if not seen:
        return str(index)
    return seen[index] if index < len(seen) else ""


def free_device_bytes(device):
    """What nobody holds of a GPU's memory; None where that is not known."""
    kind, _, index = device.partition(":")
    gpu = name_of_gpu(int(index or 0))
    said = ask_nvidia_smi("memory.free", f"--id={gpu}").get("memory.free", "") if kind == "cuda" else ""
    return int(said) * 2**20 if said.isdigit() else None


def host_bytes():
    """What the system says that the machine has: MemTotal. Where memory is added on demand, that may start small."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
