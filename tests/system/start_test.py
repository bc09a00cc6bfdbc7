"""A daemon's first moments, which are minutes where the model or the data are large: it answers, workers wait for it, and a
signal ends it."""

import json
import signal
import subprocess
import time
import urllib.request

from eps_run import BIN, EPS, TIME_SCALE, ByHandTest, alive, children, run, start

# Seconds of loading, most of it a table of weights that no token uses.
SLOW = {"model": {"vocab": 200_000, "d_model": 256, "layers": 1}, "batch": {"virtual_nodes": 1, "micro_batches": 1},
        "steps": 2, "checkpoint": {"every_steps": 0, "last": False}}
WORK = "making the initial weights"


class StartTest(ByHandTest):
    def setUp(self):
        super().setUp()
        self.spec = self.work.spec(SLOW)
        self.out = self.work.out("slow")

    def daemon(self):
        """A daemon that starts, and what it says of where it listens."""
        process = self.start(BIN / "eps_server", "--run", self.spec, "--out", self.out, "--threads", 1)
        deadline = time.monotonic() + 60 * TIME_SCALE
        while time.monotonic() < deadline:
            self.assertIsNone(process.poll(), "it ended before it said anything")
            try:
                said = json.loads((self.out / "starting.json").read_text())
            except FileNotFoundError:
                said = {}
            if said.get("pid") == process.pid:
                return process, said
            time.sleep(0.002)
        return self.fail("it does not say that it starts")

    def status(self):
        return run([EPS, "status", "--out", self.out, "--json"])

    def wait_for_the_weights(self):
        """The daemon's answer while it makes them."""
        deadline = time.monotonic() + 60 * TIME_SCALE
        while time.monotonic() < deadline:
            asked = self.status()
            self.assertEqual(asked.returncode, 0, asked.stderr)
            said = json.loads(asked.stdout)
            self.assertEqual(said["state"], "starting", "it was faster than this case expects")
            if said["start_work"]["what"] == WORK and int(said["start_work"]["done_bytes"]) > 0:
                return said
        self.fail("it does not make its weights")

    def test_it_says_how_far_it_is_and_workers_wait_for_it(self):
        daemon, said = self.daemon()
        # It has less patience than the daemon needs; what it is told is what lets it wait.
        worker = self.start_worker(said["grpc"], "--reconnect-seconds", 0.5)
        work = self.wait_for_the_weights()["start_work"]
        self.assertGreater(int(work["total_bytes"]), 200_000 * 256 * 4)
        self.assertFalse((self.out / "endpoints.json").exists())
        with urllib.request.urlopen(f"http://{said['metrics']}/metrics") as page:
            self.assertRegex(page.read().decode(), r"(?m)^eps_start_total_bytes [1-9]")
        for command, words in ((["status"], WORK), (["top", "--once"], WORK)):
            asked = run([EPS, *command, "--out", self.out])
            self.assertEqual(asked.returncode, 0, asked.stderr)
            self.assertIn(words, asked.stdout)
        refused = run([EPS, "checkpoint", "--out", self.out])
        self.assertEqual(refused.returncode, 1)
        self.assertIn("the daemon is starting", refused.stderr)
        self.assertEqual(daemon.wait(300 * TIME_SCALE), 0, self.log(daemon))
        self.assertEqual(worker.wait(60 * TIME_SCALE), 0, self.log(worker))
        self.assertIn("starting=", self.log(worker))
        self.assertFalse((self.out / "starting.json").exists())
        self.assertTrue((self.out / "endpoints.json").exists())

    def test_a_signal_ends_it_and_leaves_nothing(self):
        daemon, _ = self.daemon()
        self.wait_for_the_weights()
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(60 * TIME_SCALE), 128 + signal.SIGTERM, self.log(daemon))
        self.assertIn("ended by a signal before the run had begun", self.log(daemon))
        self.assertFalse(self.out.exists())

    def test_one_that_was_killed_is_not_taken_for_one_that_starts(self):
        daemon, _ = self.daemon()
        daemon.kill()
        daemon.wait()
        self.assertTrue((self.out / "starting.json").exists())
        asked = self.status()
        self.assertEqual(asked.returncode, 1)
        self.assertIn("no daemon runs for", asked.stderr)
        again, _ = self.daemon()
        again.send_signal(signal.SIGTERM)
        self.assertEqual(again.wait(60 * TIME_SCALE), 128 + signal.SIGTERM, self.log(again))

    def test_eps_train_shows_it_and_a_signal_ends_it(self):
        train = start([EPS, "train", "--run", self.spec, "--out", self.out], stdout=subprocess.PIPE,
                      stderr=subprocess.PIPE)
        lines = []
        for line in train.stdout:
            lines.append(line)
            if line.startswith("starting: "):
                break
        self.assertTrue(lines and lines[-1].startswith("starting: "), lines)
        daemons = children(train.pid, "eps_server")
        train.send_signal(signal.SIGINT)
        _, errors = train.communicate(timeout=60 * TIME_SCALE)
        self.assertEqual(train.returncode, 128 + signal.SIGINT, errors)
        self.assertIn("before the run had begun", errors)
        self.assertFalse(any(alive(pid) for pid in daemons))

