"""Which way weights and gradients travel, and what a worker says that cannot go the way it was told to."""

import json
import os
import re
import shutil
import tempfile
import urllib.request
from pathlib import Path

from eps_run import BIN, ENDLESS, EPS, ByHandTest, endpoints, model_hash, run, wait_for_steps


class TransportTest(ByHandTest):
    def setUp(self):
        # A socket's path must be short.
        self.runtime = Path(tempfile.mkdtemp(prefix="eps-rt-", dir="/tmp"))
        self.addCleanup(shutil.rmtree, self.runtime, ignore_errors=True)  # once the processes are gone
        self.env = {**os.environ, "XDG_RUNTIME_DIR": str(self.runtime)}
        super().setUp()

    def daemon(self, spec, out, *args):
        return self.start_daemon(spec, out, *args, env=self.env)

    def worker(self, address, *args):
        return run([str(BIN / "gpu_worker"), "--connect", address, "--device-memory", "64MiB", *args], timeout=120)

    def sockets(self):
        return sorted(self.runtime.glob(f"eps-{os.getuid()}-*/data"))

    def test_the_socket_is_the_users_alone_and_is_gone_with_the_daemon(self):
        process, address = self.daemon(self.work.spec({"steps": 4}), self.work.out("run"))
        (socket,) = self.sockets()
        self.assertEqual(socket.stat().st_mode & 0o777, 0o600)
        self.assertEqual(socket.parent.stat().st_mode & 0o777, 0o700)
        done = self.worker(address)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("transport=shared_memory", done.stderr)
        self.ends(process, 0, timeout=30)
        self.assertEqual(list(self.runtime.iterdir()), [])

    def test_status_says_which_way_a_worker_goes(self):
        out = self.work.out("run")
        daemon, address = self.daemon(self.work.spec(ENDLESS), out)
        self.start_worker(address, "--device-memory", "64MiB")
        wait_for_steps(daemon, out, 1)
        status = json.loads(run([str(EPS), "status", "--out", str(out), "--json"]).stdout)
        self.assertEqual(status["workers"][0]["transport"], "shared_memory")
        self.assertIn("over shared_memory", run([str(EPS), "status", "--out", str(out)]).stdout)

    def test_where_the_socket_cannot_be_reached_auto_takes_grpc_and_shared_memory_says_why(self):
        spec = self.work.spec({"steps": 6})
        process, address = self.daemon(spec, self.work.out("run"))
        for socket in self.sockets():
            socket.unlink()  # as seen from a container of its own
        refused = self.worker(address, "--transport", "shared_memory")
        self.refused(refused, 1, "transport: SHARED_MEMORY", "No such file or directory")
        self.assertNotIn("worker_lost_daemon", refused.stderr)
        self.assertEqual(refused.stderr.count("worker_attached"), 1)
        done = self.worker(address)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("shared_memory_not_used", done.stderr)
        self.assertIn("transport=grpc", done.stderr)
        self.ends(process, 0, timeout=30)
        self.train_ok(spec, self.work.out("reference"))
        self.assertEqual(model_hash(self.work.out("run")), model_hash(self.work.out("reference")))

    def test_a_run_with_grpc_offers_no_shared_memory(self):
        _, address = self.daemon(self.work.spec({"steps": 4, "transport": "GRPC"}), self.work.out("run"))
        self.assertEqual(self.sockets(), [])
        self.refused(self.worker(address, "--transport", "shared_memory"), 1, "the daemon does not offer it")
        done = self.worker(address, "--transport", "auto")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("transport=grpc", done.stderr)

    def test_a_token_tables_zeros_do_not_travel_over_grpc(self):
        # Of whose 20,000 rows the run's tokens, bytes, read 256.
        table = {"model": {"vocab": 20_000, "layers": 1}, "batch": {"virtual_nodes": 2}}
        leaf_bytes = 20_000 * 64 * 2  # bf16
        hashes, per_step = {}, {}
        for transport in ("GRPC", "SHARED_MEMORY"):
            spec = self.work.spec({**table, "steps": 4, "transport": transport}, name=f"{transport}.json")
            self.train_ok(spec, self.work.out(f"bits-{transport}"))
            hashes[transport] = model_hash(self.work.out(f"bits-{transport}"))
            endless = self.work.spec({**ENDLESS, **table, "transport": transport}, name=f"{transport}-endless.json")
            out = self.work.out(transport)
            daemon, address = self.daemon(endless, out)
            self.start_worker(address, "--device-memory", "64MiB")
            wait_for_steps(daemon, out, 20)
            with urllib.request.urlopen(f"http://{endpoints(daemon, out)['metrics']}/metrics", timeout=30) as page:
                said = page.read().decode()
            (pushed,) = re.findall(rf'^eps_pushed_bytes_total{{transport="{transport.lower()}"}} (\S+)', said, re.MULTILINE)
            (steps,) = re.findall(r"^eps_steps_total (\S+)", said, re.MULTILINE)
            per_step[transport] = float(pushed) / float(steps) / (2 * leaf_bytes)
        self.assertEqual(hashes["GRPC"], hashes["SHARED_MEMORY"])
        # Of the table the embedding pushes as much as the head. (A step that is under way has pushed, too.)
        self.assertGreater(per_step["SHARED_MEMORY"], 2)
        self.assertLess(per_step["GRPC"], 1.3)

    def test_where_no_socket_can_be_made_auto_warns_and_shared_memory_is_refused(self):
        long = self.runtime / ("x" * 100)
        long.mkdir()
        self.env = {**self.env, "XDG_RUNTIME_DIR": str(long)}
        process, address = self.daemon(self.work.spec({"steps": 2}), self.work.out("auto"))
        self.assertEqual(self.worker(address).returncode, 0)
        self.assertIn("shared_memory_not_offered", self.ends(process, 0, timeout=30))
        spec = self.work.spec({"steps": 2, "transport": "SHARED_MEMORY"}, name="shared.json")
        done = run([str(BIN / "eps_server"), "--run", str(spec), "--out", str(self.work.out("shared"))], env=self.env)
        self.refused(done, 1, "transport: SHARED_MEMORY", "socket path")

    def test_an_unknown_transport_is_bad_usage(self):
        self.refused(self.worker("127.0.0.1:1", "--transport", "pigeon"), 2, "auto, grpc or shared_memory")
