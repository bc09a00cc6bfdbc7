"""A checkpoint that somebody waits for is written promptly; and who does not want to wait for it ends it at once."""

import os
import signal
import sys
import time

from checkpoint_disk import verify
from eps_run import EPS, TIME_SCALE, ByHandTest, alone, committed_steps, latest_checkpoint, run, wait_for_steps

BYTES_PER_PARAMETER = 14  # of the state with AdamW and bf16 on the wire


@alone
class AwaitedCheckpointTest(ByHandTest):
    def setUp(self):
        super().setUp()
        self.out = self.work.out("run")

    def start_run(self, state_mb, steps):
        """A run with a state of about `state_mb`, little to compute in a step, and no checkpoint that is not asked for."""
        d_model = 512
        layers = max(1, round(state_mb * 1e6 / BYTES_PER_PARAMETER / (12 * d_model * d_model)))
        spec = self.work.spec({
            "model": {"layers": layers, "d_model": d_model, "heads": 8, "context": 16},
            "batch": {"virtual_nodes": 1, "micro_batches": 1, "micro_batch": 1},
            "steps": steps, "checkpoint": {"every_steps": 0, "keep": 2}})
        daemon, address = self.start_daemon(spec, self.out)
        self.start_worker(address, "--device-memory", "128MiB")
        return daemon

    def checkpoint(self, timeout=60):
        done = run([str(EPS), "checkpoint", "--out", str(self.out)], timeout=timeout)
        self.assertEqual(done.returncode, 0, done.stderr)

    def bytes_under_way(self):
        """Of the checkpoint that is being written; None when none is."""
        for folder in (self.out / "checkpoints").glob(".tmp-step-*"):
            try:
                return sum(path.stat().st_size for path in folder.iterdir())
            except FileNotFoundError:
                pass  # it was renamed meanwhile
        return None

    def wait_for_writing(self, daemon):
        deadline = time.monotonic() + 60 * TIME_SCALE
        while not self.bytes_under_way():
            self.assertIsNone(daemon.poll(), self.log(daemon))
            self.assertLess(time.monotonic(), deadline, "no checkpoint is begun")
            time.sleep(0.001)

    def test_a_second_signal_ends_a_daemon_that_writes_a_checkpoint_and_the_one_before_stands(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number.name):
                self.out = self.work.out(number.name)
                daemon = self.start_run(300, 1_000_000)
                wait_for_steps(daemon, self.out, 1)
                self.checkpoint()
                stands = latest_checkpoint(self.out)
                wait_for_steps(daemon, self.out, committed_steps(self.out) + 1)
                daemon.send_signal(number)
                self.wait_for_writing(daemon)
                daemon.send_signal(signal.SIGSTOP)
                time.sleep(1.1)  # sooner, it would be the same signal once more
                daemon.send_signal(number)
                daemon.send_signal(signal.SIGCONT)
                start = time.monotonic()
                self.assertEqual(daemon.wait(timeout=300 * TIME_SCALE), 1, self.log(daemon))
                took = time.monotonic() - start
                self.assertIn("second signal", self.log(daemon))
                self.assertEqual(latest_checkpoint(self.out), stands, "the signal came too late to be of use")
                self.assertEqual(list((self.out / "checkpoints").glob("step-*")), [stands])
                verify(stands)
                self.assertLess(took, 5 * TIME_SCALE)
                self.end_all()

    def keep_every_core_busy(self):
        for _ in range(2 * len(os.sched_getaffinity(0))):
            self.start(sys.executable, "-c", "while True: pass")

    def test_beside_busy_cores_a_checkpoint_that_is_asked_for_and_one_before_an_end_are_prompt(self):
        daemon = self.start_run(100, 1_000_000)
        wait_for_steps(daemon, self.out, 1)
        self.keep_every_core_busy()
        start = time.monotonic()
        self.checkpoint(timeout=300)
        asked = time.monotonic() - start
        start = time.monotonic()
        daemon.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(timeout=300 * TIME_SCALE), 143, self.log(daemon))
        stopped = time.monotonic() - start
        verify(latest_checkpoint(self.out))
        print(f"{asked:.1f} s when asked for, {stopped:.1f} s after SIGTERM", flush=True)
        self.assertLess(asked, 20 * TIME_SCALE)
        self.assertLess(stopped, 20 * TIME_SCALE)

    def test_beside_busy_cores_the_last_checkpoint_of_a_run_is_prompt(self):
        steps = 20
        daemon = self.start_run(100, steps)
        wait_for_steps(daemon, self.out, 1)
        self.keep_every_core_busy()
        wait_for_steps(daemon, self.out, steps)
        start = time.monotonic()
        self.assertEqual(daemon.wait(timeout=300 * TIME_SCALE), 0, self.log(daemon))
        took = time.monotonic() - start
        verify(latest_checkpoint(self.out))
        print(f"{took:.1f} s", flush=True)
        self.assertLess(took, 20 * TIME_SCALE)
