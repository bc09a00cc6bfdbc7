"""Invariants 4 and 5 without `eps train`: a daemon that is started again, and workers that come and go by themselves."""

import signal
import time

from eps_run import ENDLESS, TIME_SCALE, ByHandTest, alive, wait_for_steps


class RestartTest(ByHandTest):
    def setUp(self):
        super().setUp()
        self.spec = self.work.spec({**ENDLESS, "checkpoint": {"every_steps": 10}})
        self.out = self.work.out("by-hand")

    def daemon(self, *args):
        return self.start_daemon(self.spec, self.out, "--expect-workers", 1, *args)

    def worker(self, address, *args):
        return self.start_worker(address, "--device-memory", "64MiB", *args)

    def wait_for_attached(self, daemon, times):
        """Until workers have attached to it so often."""
        deadline = time.monotonic() + 30 * TIME_SCALE
        while self.log(daemon).count("worker_attached") < times:
            self.assertIsNone(daemon.poll(), self.log(daemon))
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def test_a_daemon_started_again_is_found_by_its_workers_and_a_worker_may_join(self):
        daemon, address = self.daemon("--listen", "127.0.0.1:0")
        workers = [self.worker(address)]
        wait_for_steps(daemon, self.out, 5)
        workers.append(self.worker(address))
        self.wait_for_attached(daemon, 2)
        wait_for_steps(daemon, self.out, 25)
        daemon.kill()
        daemon.wait()
        time.sleep(0.5)
        self.assertTrue(all(alive(worker.pid) for worker in workers), "a worker did not wait for its daemon")
        daemon, again = self.daemon("--listen", address, "--resume")
        self.assertEqual(again, address)
        self.wait_for_attached(daemon, 2)
        self.ends_like_a_quiet_run(daemon, self.spec, self.out)
        for worker in workers:
            self.ends(worker, 0)

    def test_a_worker_that_wakes_up_after_its_lease_attaches_anew(self):
        daemon, address = self.daemon("--lease-millis", 1000)
        workers = [self.worker(address) for _ in range(2)]
        wait_for_steps(daemon, self.out, 5)
        for lost in range(1, 4):
            workers[0].send_signal(signal.SIGSTOP)
            deadline = time.monotonic() + 30 * TIME_SCALE
            while self.log(daemon).count("worker_lost") < lost:
                self.assertIsNone(daemon.poll(), self.log(daemon))
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
            workers[0].send_signal(signal.SIGCONT)
            self.wait_for_attached(daemon, 2 + lost)
        self.ends_like_a_quiet_run(daemon, self.spec, self.out)
        for worker in workers:
            self.ends(worker, 0)

    def test_a_worker_whose_daemon_does_not_come_back_ends_with_an_error(self):
        daemon, address = self.daemon("--listen", "127.0.0.1:0")
        worker = self.worker(address, "--reconnect-seconds", 1)
        wait_for_steps(daemon, self.out, 5)
        daemon.kill()
        self.ends(worker, 1, timeout=30)
        log = self.log(worker)
        self.assertIn("worker_waits_for_daemon", log)
        self.assertRegex(log, rf"gpu_worker: no daemon was reached at {address} for 1 s: ")
