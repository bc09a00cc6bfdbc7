"""Where the programs are that tests/gpu/run and bench/gpu/run start, and which GPU they find. Imported before eps_run.

A bundle (tests/gpu/make_bundle) lies as the tree does, with the programs in bin/ and libraries that a machine may lack
in lib/; in the tree, ./build --gpu-bundle makes them in out/gpu/bin.
"""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("EPS_BIN") or next(
    (folder for folder in (ROOT / "out/gpu/bin", ROOT / "bin") if folder.is_dir()), ROOT / "bin"))
OWN_ENVIRONMENT = dict(os.environ)  # for programs that are not ours, which bring their libraries
os.environ["EPS_BIN"] = str(BIN)
if (ROOT / "lib").is_dir():
    os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, (str(ROOT / "lib"), os.environ.get("LD_LIBRARY_PATH"))))


class CannotRun(Exception):
    """The machine lacks what is needed; says what."""


def probe(device):
    """What the device is, as a worker names it."""
    try:
        done = subprocess.run([str(BIN / "gpu_worker"), "--probe", "--device", device], capture_output=True, text=True,
                              timeout=120)
    except FileNotFoundError:
        raise CannotRun(f"{BIN}/gpu_worker is not there; ./build --gpu-bundle makes it") from None
    if done.returncode != 0:
        raise CannotRun(done.stderr.strip())
    return done.stdout.strip()


def machine():
    """Of the host, and what nvidia-smi says of its GPUs."""
    said = {"cores": os.cpu_count(), "dram_gib": round(host_bytes() / 2**30, 1)}
    if shutil.which("nvidia-smi") is None:
        return {**said, "nvidia-smi": "not found"}
    fields = "name,driver_version,memory.total,pcie.link.gen.current,pcie.link.width.current"
    done = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], capture_output=True,
                          text=True, timeout=60)
    values = [value.strip() for value in done.stdout.partition("\n")[0].split(",")]
    return {**said, **dict(zip(fields.split(","), values))}


def host_bytes():
    """The machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
