"""Vnodes follow measured speed: a worker that is held up in each step is given fewer, and no bit changes."""

import re
import signal
import threading
import time

from eps_run import ENDLESS, TIME_SCALE, ByHandTest, alone, committed_steps, wait_for_steps

SPEC = {**ENDLESS, "model": {"layers": 4, "d_model": 128}, "batch": {"virtual_nodes": 8}}
HELD_UP_SECONDS = 0.3  # of each step; a pass takes some 50 ms


class Hindrance:
    """Stops a process for a while, once in each step."""

    def __init__(self, process, out):
        self.process, self.out, self.over = process, out, threading.Event()
        self.thread = threading.Thread(target=self.hold_up, daemon=True)

    def hold_up(self):
        last = -1
        while not self.over.wait(0.002):
            steps = committed_steps(self.out)
            if steps == last:
                continue
            last = steps
            self.process.send_signal(signal.SIGSTOP)
            time.sleep(HELD_UP_SECONDS * TIME_SCALE)
            self.process.send_signal(signal.SIGCONT)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


@alone
class SharesTest(ByHandTest):
    def test_a_worker_that_is_held_up_has_fewer_vnodes_and_no_bit_changes(self):
        out = self.work.out("hindered")
        spec = self.work.spec(SPEC)
        daemon, address = self.start_daemon(spec, out, "--expect-workers", 2)
        workers = [self.start_worker(address, "--device-memory", "64MiB", "--threads", 1) for _ in range(2)]
        wait_for_steps(daemon, out, 1)
        with Hindrance(workers[0], out):
            wait_for_steps(daemon, out, 30)
        self.ends_like_a_quiet_run(daemon, spec, out)
        for worker in workers:
            self.ends(worker, 0)
        log = self.log(daemon)
        hindered = re.search(rf"worker_attached worker=(\d+) .* process={workers[0].pid}\b", log).group(1)
        trials = [dict(pair.split(":") for pair in counts.split(","))
                  for counts in re.findall(r"vnode_shares_tried .* vnode_counts=(\S+) ", log)]
        self.assertTrue(all(sum(map(int, counts.values())) == 8 for counts in trials), log)
        self.assertLess(min((int(counts[hindered]) for counts in trials), default=4), 4, log)
