"""Invariants 4 and 5 without `eps train`: a daemon that is started again, and workers that come and go by themselves."""

import signal
import time

from eps_run import TIME_SCALE, ByHandTest, alive, model_hash, summary, wait_for_steps

LONG = {"steps": 300, "checkpoint": {"every_steps": 10, "keep": 3}}


class RestartTest(ByHandTest):
    def setUp(self):
        super().setUp()
        self.spec = self.work.spec(LONG)
        self.out = self.work.out("by-hand")

    def daemon(self, *args, spec=None):
        return self.start_daemon(spec or self.spec, self.out, "--expect-workers", 1, *args)

    def worker(self, address, *args):
        return self.start_worker(address, "--device-memory", "64MiB", *args)

    def ends_with(self, process, code, timeout=120):
        self.assertEqual(process.wait(timeout * TIME_SCALE), code, f"{process.args}\n{self.log(process)}")

    def quiet_run(self):
        out = self.work.out("quiet")
        self.train_ok(self.spec, out, "--set", "checkpoint.every_steps=0")
        return model_hash(out), summary(out)["loss"]

    def test_a_daemon_started_again_is_found_by_its_workers_and_a_worker_may_join(self):
        daemon, address = self.daemon("--listen", "127.0.0.1:0")
        workers = [self.worker(address)]
        wait_for_steps(daemon, self.out, 5)
        workers.append(self.worker(address))
        wait_for_steps(daemon, self.out, 25)
        daemon.kill()
        daemon.wait()
        time.sleep(0.5)
        self.assertTrue(all(alive(worker.pid) for worker in workers), "a worker did not wait for its daemon")
        daemon, again = self.daemon("--listen", address, "--resume")
        self.assertEqual(again, address)
        for process in (*workers, daemon):
            self.ends_with(process, 0)
        bits, losses = self.quiet_run()
        self.assertEqual(model_hash(self.out), bits)
        self.assertEqual(summary(self.out)["loss"], losses)

    def test_a_worker_that_wakes_up_after_its_lease_attaches_anew(self):
        endless = self.work.spec({**LONG, "steps": 1_000_000, "optimizer": {"schedule": {"decay": "CONSTANT", "final": None}}},
                                 name="endless.json")
        daemon, address = self.daemon("--lease-millis", 1000, spec=endless)
        workers = [self.worker(address) for _ in range(2)]
        wait_for_steps(daemon, self.out, 5)
        for lost in range(1, 4):
            workers[0].send_signal(signal.SIGSTOP)
            deadline = time.monotonic() + 30 * TIME_SCALE
            while self.log(daemon).count("worker_lost") < lost:
                self.assertIsNone(daemon.poll(), "it was done before its worker was lost")
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
            workers[0].send_signal(signal.SIGCONT)
            while self.log(daemon).count("worker_attached") < 2 + lost:
                self.assertIsNone(workers[0].poll(), self.log(workers[0]))
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
        daemon.send_signal(signal.SIGTERM)
        self.ends_with(daemon, 143)
        for worker in workers:
            self.ends_with(worker, 0)
        losses, quiet = summary(self.out)["loss"], self.work.out("quiet")
        self.train_ok(endless, quiet, "--set", f"steps={len(losses)}", "--set", "checkpoint.every_steps=0")
        self.assertEqual(losses, summary(quiet)["loss"])
        self.assertEqual(model_hash(self.out), model_hash(quiet))

    def test_a_worker_whose_daemon_does_not_come_back_ends_with_an_error(self):
        daemon, address = self.daemon("--listen", "127.0.0.1:0")
        worker = self.worker(address, "--reconnect-seconds", 1)
        wait_for_steps(daemon, self.out, 5)
        daemon.kill()
        self.ends_with(worker, 1, timeout=30)
        log = self.log(worker)
        self.assertIn("worker_waits_for_daemon", log)
        self.assertRegex(log, rf"gpu_worker: no daemon was reached at {address} for 1 s: ")
