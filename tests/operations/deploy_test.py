"""deploy/systemd and deploy/container: the lines that they run are run here, and what they promise holds."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import unittest
from pathlib import Path

from eps_run import BIN, TIME_SCALE, ByHandTest, SystemTest, run, summary, wait_for_steps
from prometheus import free_port

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNITS = {name: DEPLOY / "systemd" / f"{name}@.service" for name in ("eps_server", "gpu_worker")}


def settings(unit):
    """The values of each key of a unit, in their order."""
    values = {}
    for line in unit.read_text().replace("\\\n", "").splitlines():
        if "=" in line and not line.startswith("#"):
            key, value = line.split("=", 1)
            values.setdefault(key, []).append(value)
    return values


class ServiceTest(ByHandTest):
    """The units' command lines and environments, in folders of the test's own."""

    def here(self, text):
        for place in ("/etc/eps", "/var/lib/eps", "/run/eps", "/var/cache/eps"):
            text = text.replace(place, str(self.work.path) + place)
        return text.replace("/usr/local/bin", str(BIN)).replace("%i", "bible")

    def serve(self, unit):
        """Runs what comes before it, and starts it."""
        values = settings(UNITS[unit])
        environment = {}
        for text in values["Environment"]:
            for assignment in shlex.split(self.here(text)):
                environment.update([assignment.split("=", 1)])
        for path in values["EnvironmentFile"]:
            self.assertTrue(path.startswith("-"), "must not be required")
            for line in Path(self.here(path[1:])).read_text().splitlines():
                environment.update([line.split("=", 1)])
        for before in values.get("ExecStartPre", []):
            done = subprocess.run(self.words(before, environment), umask=int(values["UMask"][0], 8), check=False)
            self.assertEqual(done.returncode, 0)
        os.environ.update((name, environment[name]) for name in environment if name.startswith("XDG_"))
        return self.start(*self.words(values["ExecStart"][0], environment))

    def words(self, line, environment):
        """As systemd has them: ${NAME} anywhere is its value, $NAME as many words as that has, also none."""
        found = []
        for word in shlex.split(self.here(line)):
            if re.fullmatch(r"\$\w+", word):
                found += shlex.split(environment.get(word[1:], ""))
            else:
                found.append(re.sub(r"\$\{(\w+)\}", lambda name: environment[name[1]], word))
        return found

    def setUp(self):
        super().setUp()
        before = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
        self.etc, self.out = self.work.path / "etc/eps", self.work.path / "var/lib/eps/bible"
        for folder in (self.etc, self.out, self.work.path / "run/eps"):
            folder.mkdir(parents=True)
        port = free_port()
        (self.etc / "bible.env").write_text(f"EPS_ADDRESS=127.0.0.1:{port}\nEPS_METRICS_ADDRESS=127.0.0.1:0\nEPS_LINGER_SECONDS=1\n"
                                            "GPU_WORKER_FLAGS=--threads 2\n")

    def write_run(self, steps):
        (self.etc / "bible.textproto").write_text(f"""
            model {{ layers: 2  d_model: 32  heads: 4  context: 32  vocab: 256  init_seed: 1 }}
            data {{ path: "{self.work.path}/text.txt"  tokenizer: BYTES }}
            batch {{ virtual_nodes: 2  micro_batches: 1  micro_batch: 2 }}
            optimizer {{ schedule {{ peak: 1e-3 }} }}
            steps: {steps}
            checkpoint {{ every_steps: 5 }}
            """)

    def test_a_run_survives_its_daemon_and_ends_both_services_with_0(self):
        self.write_run(600)
        daemon, worker = self.serve("eps_server"), self.serve("gpu_worker")
        wait_for_steps(daemon, self.out, 7)
        daemon.kill()
        self.assertEqual(daemon.wait(), -signal.SIGKILL, "it was done before it could be killed")
        again = self.serve("eps_server")  # Restart=on-abnormal, and of a lost step
        self.assertEqual(settings(UNITS["eps_server"])["RestartForceExitStatus"], ["75"])
        self.assertEqual(again.wait(timeout=120 * TIME_SCALE), 0, self.log(again))
        self.assertEqual(worker.wait(timeout=60 * TIME_SCALE), 0, self.log(worker))
        self.assertEqual(summary(self.out)["steps"], 600)
        self.assertIn("transport=shared_memory", self.log(worker))
        self.assertEqual(self.serve("eps_server").wait(timeout=60 * TIME_SCALE), 0)  # of a run that is done

    def test_who_cannot_read_the_run_s_token_is_kept_out(self):
        self.write_run(1_000_000)
        daemon, worker = self.serve("eps_server"), self.serve("gpu_worker")
        wait_for_steps(daemon, self.out, 1)  # so the worker is let in
        token = self.out / "token"
        self.assertEqual(token.stat().st_mode & 0o7777, 0o600)
        self.assertRegex(made := token.read_text(), r"^[0-9a-f]{64}$")
        self.assertNotIn("door_without_token", self.log(daemon))
        status = [BIN / "eps", "status"]
        self.refused(run([*status, "--connect", json.loads((self.out / "endpoints.json").read_text())["grpc"]]), 1, "token")
        self.assertEqual(run([*status, "--out", self.out]).returncode, 0)
        for process in (daemon, worker):
            process.kill()
            process.wait()
        self.serve("eps_server")
        self.assertEqual(token.read_text(), made, "a worker that is still there would be kept out")

    def test_a_service_that_is_stopped_has_succeeded_and_goes_on_when_it_is_started(self):
        self.write_run(1_000_000)
        daemon, worker = self.serve("eps_server"), self.serve("gpu_worker")
        wait_for_steps(daemon, self.out, 3)
        for unit, process in (("gpu_worker", worker), ("eps_server", daemon)):
            process.send_signal(signal.SIGTERM)
            code = process.wait(timeout=60 * TIME_SCALE)
            self.assertIn(str(code), settings(UNITS[unit])["SuccessExitStatus"][0].split(), self.log(process))
        steps = summary(self.out)["steps"]
        daemon, worker = self.serve("eps_server"), self.serve("gpu_worker")
        wait_for_steps(daemon, self.out, steps + 3)

    def test_a_worker_whose_daemon_is_stopped_has_ended_well_and_is_started_with_it(self):
        self.write_run(1_000_000)
        daemon, worker = self.serve("eps_server"), self.serve("gpu_worker")
        wait_for_steps(daemon, self.out, 3)
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(timeout=60 * TIME_SCALE), 143, self.log(daemon))
        self.assertEqual(worker.wait(timeout=60 * TIME_SCALE), 0, self.log(worker))  # so that Restart= leaves it alone
        values = settings(UNITS["gpu_worker"])
        for key in ("PartOf", "WantedBy", "After"):
            self.assertIn("eps_server@%i.service", values[key][0].split())

    def test_a_worker_that_is_refused_for_good_is_not_started_again(self):
        self.write_run(1_000_000)
        with open(self.etc / "bible.env", "a") as env:
            env.write("GPU_WORKER_FLAGS=--threads 2 --device-memory 4KiB\n")
        self.serve("eps_server")
        worker = self.serve("gpu_worker")
        self.assertEqual(worker.wait(timeout=60 * TIME_SCALE), 3, self.log(worker))
        self.assertEqual(settings(UNITS["gpu_worker"])["RestartPreventExitStatus"], ["2 3"])

    @unittest.skipIf(shutil.which("systemd-analyze") is None, "no systemd-analyze")
    def test_systemd_knows_every_key(self):
        for name, unit in UNITS.items():
            folder = self.work.path / "units"
            folder.mkdir(exist_ok=True)
            text = unit.read_text().replace("/usr/local/bin", str(BIN)).replace("User=eps", "User=root")
            (folder / unit.name).write_text(text)
        done = run(["systemd-analyze", "verify", "--man=no", *(folder / unit.name for unit in UNITS.values())])
        ours = [line for line in done.stderr.splitlines() if re.search(r"(eps_server|gpu_worker)@", line)]
        self.assertEqual(ours, [], done.stderr)


class ContainerTest(SystemTest):
    PACKAGES = DEPLOY / "container" / "runtime-packages"

    def test_an_image_has_the_packages_of_every_library(self):
        programs = [BIN / name for name in ("eps", "eps_server", "gpu_worker")]
        done = run([self.PACKAGES, *programs])
        self.assertEqual(done.returncode, 0, done.stderr)
        packages = done.stdout.split()
        self.assertIn("libc6", packages)
        self.assertTrue(any(name.startswith("libgrpc++") for name in packages), packages)
        self.assertEqual(packages, sorted(set(packages)))
        needed = {line.split()[0] for program in programs
                  for line in run(["ldd", program]).stdout.splitlines() if "=>" in line}
        held = set(run(["dpkg-query", "--listfiles", *packages]).stdout.split("\n"))
        names = {Path(path).name for path in held}
        self.assertEqual({library for library in needed if library not in names}, set())

    def test_a_library_that_is_not_there_or_of_no_package_ends_it(self):
        done = run([self.PACKAGES])
        self.refused(done, 2, "usage")
        broken = self.work.path / "broken"
        shutil.copy(BIN / "eps", broken)
        data = broken.read_bytes()
        broken.write_bytes(data.replace(b"libgrpc++.so", b"libgrpc--.so"))
        self.refused(run([self.PACKAGES, broken]), 1, "libgrpc--.so", "not found")
        own = self.work.path / "libz.so.1"
        library = subprocess.run(["sh", "-c", f"ldd {shlex.quote(str(BIN / 'eps'))} | awk '/libz.so.1/ {{print $3}}'"],
                                 stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        shutil.copy(library, own)
        done = run([self.PACKAGES, BIN / "eps"], env={**os.environ, "LD_LIBRARY_PATH": str(self.work.path)})
        self.refused(done, 1, str(own), "of no Debian package")
