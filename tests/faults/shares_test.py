"""Vnodes follow measured speed: a worker that is held up again and again is given fewer, and no bit changes."""

import re
import signal
import threading

from eps_run import ByHandTest, model_hash, summary, wait_for_steps

STEPS = 60
SPEC = {"model": {"layers": 4, "d_model": 128}, "batch": {"virtual_nodes": 8}, "steps": STEPS}
STOPPED_SECONDS, RUNNING_SECONDS = 0.12, 0.03


class Hindrance:
    """Lets a process run a fifth of the time."""

    def __init__(self, process):
        self.process, self.over = process, threading.Event()
        self.thread = threading.Thread(target=self.hold_up, daemon=True)

    def hold_up(self):
        while not self.over.is_set():
            self.process.send_signal(signal.SIGSTOP)
            self.over.wait(STOPPED_SECONDS)
            self.process.send_signal(signal.SIGCONT)
            self.over.wait(RUNNING_SECONDS)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


class SharesTest(ByHandTest):
    def run_hindered(self, name, *args):
        """Returns the run's folder, what the daemon logged, and the worker's number in it."""
        out = self.work.out(name)
        daemon, address = self.start_daemon(self.work.spec(SPEC), out, "--expect-workers", 2, *args)
        workers = [self.start_worker(address, "--device-memory", "64MiB", "--threads", 1) for _ in range(2)]
        wait_for_steps(daemon, out, 1)
        with Hindrance(workers[0]):
            wait_for_steps(daemon, out, STEPS * 2 // 3)
        for process in (*workers, daemon):
            self.assertEqual(process.wait(120), 0, self.log(process))
        log = self.log(daemon)
        return out, log, int(re.search(rf"worker_attached worker=(\d+) .* process={workers[0].pid}\b", log).group(1))

    def test_a_worker_that_is_held_up_has_fewer_vnodes_and_no_bit_changes(self):
        out, log, hindered = self.run_hindered("hindered")
        tried = re.search(r"vnode_shares_tried .*worker_vnodes=(\S+) ", log)
        self.assertIsNotNone(tried, log)
        counts = {int(worker): int(count) for worker, count in (pair.split(":") for pair in tried.group(1).split(","))}
        self.assertEqual(sum(counts.values()), 8)
        self.assertIn(counts[hindered], (1, 2, 3), log)
        quiet = self.work.out("quiet")
        self.train_ok(self.work.spec(SPEC), quiet)
        self.assertEqual(model_hash(out), model_hash(quiet))
        self.assertEqual(summary(out)["loss"], summary(quiet)["loss"])

    def test_or_as_many_as_the_others_where_the_run_says_so(self):
        _, log, _ = self.run_hindered("even", "--set", "relay.vnode_shares=EVEN")
        self.assertNotIn("vnode_shares", log)
