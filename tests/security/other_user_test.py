"""Another user of the machine, beside a run: its files, its socket, its memory. Both users are made by root."""

import json
import os
import signal
import subprocess
import unittest
from pathlib import Path

from eps_run import SystemTest, children, endpoints, run, start, wait_for_steps

OWNER, STRANGER = 65532, 65533  # user ids that need not be in /etc/passwd
PYTHON = "/usr/bin/python3"
# No checkpoint comes or goes by itself while the folder is walked through.
LONG = {"steps": 100_000, "transport": "SHARED_MEMORY", "checkpoint": {"every_steps": 0}}

# Says, for each thing tried, "yes" or the error's name. Its arguments: pid, socket, files.
PROBE = r"""
import ctypes, errno, json, os, signal, socket, sys
pid, path, files = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
libc = ctypes.CDLL(None, use_errno=True)

def read(name, num_bytes=1, at=0):
    fd = os.open(name, os.O_RDONLY)
    os.pread(fd, num_bytes, at)
    os.close(fd)

def first_mapping():
    with open(f"/proc/{pid}/maps") as maps:
        return next(line.split("-")[0] for line in maps if "memfd:eps-weights" in line)

def memfd():
    folder = f"/proc/{pid}/fd"
    return next(f"{folder}/{n}" for n in os.listdir(folder) if "memfd:eps" in os.readlink(f"{folder}/{n}"))

def call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result

def connect():
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.connect(path)

def attach():
    call(libc.ptrace(16, pid, None, None))  # PTRACE_ATTACH
    os.waitpid(pid, 0x40000000)             # __WALL
    call(libc.ptrace(17, pid, None, None))

def steal():
    fd = call(libc.syscall(438, call(libc.syscall(434, pid, 0)), 0, 0))  # pidfd_getfd(pidfd_open(pid))
    os.close(fd)

tries = {name: lambda name=name: read(name) for name in files}
tries |= {f"/proc/{name}": lambda name=name: read(f"/proc/{pid}/{name}") for name in ("maps", "environ", "auxv")}
tries |= {f"/proc/{name}": lambda name=name: os.listdir(f"/proc/{pid}/{name}") for name in ("fd", "map_files", "cwd/.")}
tries |= {"a memfd": lambda: read(memfd()), "connect": connect, "ptrace": attach, "pidfd_getfd": steal,
          "write a memfd": lambda: os.close(os.open(memfd(), os.O_RDWR)),
          "/proc/mem": lambda: read(f"/proc/{pid}/mem", 64, int(first_mapping(), 16)),
          "signal": lambda: os.kill(pid, 0)}
# Numbers guessed, as nothing lists them.
tries |= {f"/proc/fd/{n}": lambda n=n: os.readlink(f"/proc/{pid}/fd/{n}") for n in range(3, 16)}
result = {}
for name, one in tries.items():
    try:
        one()
        result[name] = "yes"
    except OSError as error:
        result[name] = errno.errorcode[error.errno]
print(json.dumps(result))
"""


def run_as(uid, command):
    return run([str(word) for word in command], user=uid, group=uid, extra_groups=[], cwd="/")


class OtherUserTest(SystemTest):
    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("only root can become two other users")
        self.spec = self.work.spec(LONG)
        # Everything above the run's own files is open, so that nothing else keeps the stranger out.
        self.hand_over_to(OWNER)

    def start(self, out):
        self.train = start(
            [self.bin / "eps", "train", "--run", self.spec, "--out", out, "--quiet"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            user=OWNER, group=OWNER, extra_groups=[], cwd="/",
            env={**os.environ, "XDG_RUNTIME_DIR": str(self.work.path)})
        self.addCleanup(self.end)
        wait_for_steps(self.train, out, 1)
        made = run_as(OWNER, [self.bin / "eps", "checkpoint", "--out", out])
        self.assertEqual(made.returncode, 0, made.stderr)
        self.server = children(self.train.pid, "eps_server")[0]
        self.worker = children(self.train.pid, "gpu_worker")[0]

    def end(self):
        if self.train.poll() is None:
            self.train.send_signal(signal.SIGTERM)
        try:
            self.train.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(self.train.pid, signal.SIGKILL)
            self.train.wait()

    def socket(self):
        """The socket of shared memory; its folder is looked up by root."""
        found = list(self.work.path.glob("eps-*/data"))
        self.assertEqual(len(found), 1, found)
        return found[0]

    def probe(self, uid, pid, files):
        done = run_as(uid, [PYTHON, "-c", PROBE, pid, self.socket(), *files])
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_neither_files_nor_socket_nor_memory_are_open_to_another_user(self):
        keys, out = self.work.path / "keys", self.work.out("run")
        self.assertEqual(run_as(OWNER, [self.bin / "eps", "keys", "--out", keys]).returncode, 0)
        out.mkdir(mode=0o755)  # keeps its mode: then each file in it has to keep the stranger out by itself
        os.chown(out, OWNER, OWNER)
        keys.chmod(0o755)
        self.start(out)
        secrets = [keys / "token", keys / "server.key", keys / "client.key"]
        files = [path for path in out.rglob("*") if path.is_file()]
        for name in ("token", "endpoints.json", "metrics.jsonl", "eps_server.log", "model.safetensors"):
            self.assertIn(name, {path.name for path in files})
        files += secrets
        for pid in (self.server, self.worker):
            # The owner gets in, so it is the door that keeps the stranger out, and not the probe. (Left out: ptrace, which
            # some kernels keep to parents, and numbers nobody uses.)
            owner = self.probe(OWNER, pid, files)
            for name in (*map(str, files), "connect", "a memfd", "/proc/fd", "/proc/mem", "signal", "/proc/fd/3"):
                self.assertEqual(owner[name], "yes", name)
            for name, answer in self.probe(STRANGER, pid, files).items():
                self.assertIn(answer, ("EACCES", "EPERM"), name)

    def test_who_comes_past_the_folder_and_the_socket_s_mode_is_refused_by_the_daemon(self):
        out = self.work.out("run")
        self.start(out)
        self.socket().parent.chmod(0o755)
        self.socket().chmod(0o666)
        done = run_as(STRANGER, [PYTHON, "-c", (
            "import json, socket, sys\n"
            "one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
            "one.settimeout(30)\n"
            "one.connect(sys.argv[1])\n"
            "packets = []\n"
            "while packet := one.recvmsg(4096, 4096)[:2]:\n"
            "    if not packet[0]: break\n"
            "    packets.append([packet[0].hex(), len(packet[1])])\n"
            "print(json.dumps(packets))\n"), self.socket()])
        self.assertEqual(done.returncode, 0, done.stderr)
        [(packet, descriptors)] = json.loads(done.stdout)  # one, and then the end
        packet = bytes.fromhex(packet)
        self.assertEqual(descriptors, 0)
        self.assertEqual(packet[5], 23)  # refused
        self.assertEqual(packet[8:16], bytes(8), "a stranger is told the incarnation")
        self.assertIn(f"user id is {STRANGER}, want {OWNER}", packet[64:].decode())

    def test_what_a_run_makes_is_its_owner_s_alone_and_the_command_line_tells_no_secret(self):
        out = self.work.out("run")
        self.start(out)
        token = (out / "token").read_text().strip()
        self.assertEqual(out.stat().st_mode & 0o7777, 0o700)
        for path in (*out.rglob("*"), self.socket(), self.socket().parent):
            self.assertEqual(path.stat().st_mode & 0o077, 0, path)
        for pid in (self.train.pid, self.server, self.worker):
            shown = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
            self.assertNotIn(token.encode(), shown)

    def test_loopback_is_shut_without_the_token(self):
        out = self.work.out("run")
        self.start(out)
        address = endpoints(self.train, out)["grpc"]
        for command in ("status", "stop"):
            done = run_as(STRANGER, [self.bin / "eps", command, "--connect", address])
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn("--token-file", done.stderr)
        with_token = [self.bin / "eps", "status", "--connect", address, "--token-file", out / "token"]
        self.refused(run_as(STRANGER, with_token), 2, "token")
        self.assertIsNone(self.train.poll())


if __name__ == "__main__":
    unittest.main()
