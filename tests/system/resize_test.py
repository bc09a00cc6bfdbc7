"""eps resize: a run has more and fewer workers while it goes on, and its bits are those of one that had a single one."""

import json
import os
import signal
import subprocess
import time

from eps_run import (ENDLESS, EPS, TIME_SCALE, ByHandTest, SystemTest, children, committed_steps, model_hash, run, start,
                     summary, train_command, wait_for_steps)


def resize(out, *args):
    return run([str(EPS), "resize", "--out", str(out), *map(str, args)])


def ready(out):
    status = json.loads(run([str(EPS), "status", "--json", "--out", str(out)]).stdout)
    return [int(worker["worker_id"]) for worker in status["workers"] if worker["state"] in ("idle", "running")]


class ResizeTest(SystemTest):
    def start(self, spec, out, *args):
        """What eps train notes is on stdout."""
        command = [word for word in train_command(spec, out, *args) if word != "--quiet"]
        process = start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        wait_for_steps(process, out, 5)
        return process

    def end(self, process, returncode=0):
        stdout, stderr = process.communicate(timeout=120 * TIME_SCALE)
        self.assertEqual(process.returncode, returncode, stderr)
        return stdout, stderr

    def stop(self, process, out):
        self.assertEqual(run([str(EPS), "stop", "--out", str(out)]).returncode, 0)
        return self.end(process)[0]

    def test_a_run_grows_and_shrinks_without_losing_a_step_or_changing_a_bit(self):
        spec, out = self.work.spec(ENDLESS), self.work.out("resized")
        process = self.start(spec, out)
        for workers, said, there in ((3, "3 workers compute\n", [1, 2, 3]), (3, "3 workers compute already\n", [1, 2, 3]),
                                     (1, "workers 2, 3 left\n", [1]), (1, "1 worker computes already\n", [1]),
                                     (2, "2 workers compute\n", [1, 4])):
            done = resize(out, workers)
            self.assertEqual((done.returncode, done.stdout), (0, said), done.stderr)
            self.assertEqual(ready(out), there)
        self.refused(resize(out, 5), 1, "workers: 5, must be 1 to 4, as batch.virtual_nodes is")
        stdout = self.stop(process, out)
        for number in (2, 3, 4):
            self.assertIn(f"eps: starting gpu_worker {number}, as eps resize asks for it", stdout)
        self.assertFalse((out / "logs" / "gpu_worker-5.log").exists())
        log = (out / "logs" / "eps_server.log").read_text()
        self.assertNotIn("worker_lost", log)
        self.assertEqual(log.count("workers_asked_for"), 2)

        quiet = self.work.out("quiet")
        self.train_ok(spec, quiet, "--steps", committed_steps(out))
        self.assertEqual(model_hash(out), model_hash(quiet))
        self.assertEqual(summary(out)["loss"], summary(quiet)["loss"])
        self.refused(resize(out, 2), 1, "no daemon runs for")

    def test_orders_that_follow_each_other_start_nobody_twice(self):
        out = self.work.out("twice")
        process = self.start(self.work.spec(ENDLESS), out)
        os.kill(process.pid, signal.SIGSTOP)  # so that none is begun with
        for _ in range(2):
            done = resize(out, 3, "--no-wait")
            self.assertEqual((done.returncode, done.stdout), (0, "3 workers are asked for\n"), done.stderr)
        self.refused(resize(out, 3, "--timeout", 1), 1, "1 worker is ready after 1s", "starts none twice")
        os.kill(process.pid, signal.SIGCONT)
        done = resize(out, 3)
        self.assertEqual((done.returncode, done.stdout), (0, "3 workers compute\n"), done.stderr)
        self.assertEqual(ready(out), [1, 2, 3])
        self.stop(process, out)
        self.assertFalse((out / "logs" / "gpu_worker-4.log").exists())

    def test_a_wrong_number_is_taken_back(self):
        out = self.work.out("taken-back")
        process = self.start(self.work.spec({**ENDLESS, "batch": {"virtual_nodes": 64}}), out)
        self.assertEqual(resize(out, 64, "--no-wait").returncode, 0)
        done = resize(out, 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(ready(out)), 2)
        self.stop(process, out)
        self.assertLess(len(list((out / "logs").glob("gpu_worker-*.log"))), 64)

    def test_a_wrong_number_is_taken_back_without_waiting_too(self):
        out = self.work.out("taken-back-at-once")
        process = self.start(self.work.spec({**ENDLESS, "batch": {"virtual_nodes": 64}}), out)
        os.kill(process.pid, signal.SIGSTOP)  # the order is still carried out when the next one comes
        self.assertEqual(resize(out, 64, "--no-wait").returncode, 0)
        os.kill(process.pid, signal.SIGCONT)
        while len(workers := children(process.pid, "gpu_worker")) < 2:
            self.assertIsNone(process.poll())
            time.sleep(0.001)
        done = resize(out, 1, "--no-wait")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^workers? 2(, \d+)* will leave after the step\n$")
        end = time.monotonic() + 30 * TIME_SCALE
        while ready(out) != [1] and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(ready(out), [1])
        self.stop(process, out)
        self.assertLess(len(list((out / "logs").glob("gpu_worker-*.log"))), 64)

    def test_workers_that_are_still_starting_are_counted(self):
        out = self.work.out("counted")
        command = [word for word in train_command(self.work.spec(ENDLESS), out, "--workers", 2) if word != "--quiet"]
        process = start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        while len(workers := children(process.pid, "gpu_worker")) < 2:
            self.assertIsNone(process.poll())
            time.sleep(0.001)
        for worker in workers:
            os.kill(worker, signal.SIGSTOP)
        resize(out, 2, "--no-wait")  # refused where the daemon has not heard of eps train yet
        time.sleep(0.5 * TIME_SCALE)
        for worker in workers:
            os.kill(worker, signal.SIGCONT)
        done = resize(out, 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(ready(out), [1, 2])
        self.stop(process, out)
        self.assertFalse((out / "logs" / "gpu_worker-3.log").exists())

    def test_a_traced_run_shows_what_the_worker_that_came_later_computed(self):
        out = self.work.out("traced")
        process = self.start(self.work.spec(ENDLESS), out, "--trace")
        self.assertEqual(resize(out, 2).returncode, 0)
        wait_for_steps(process, out, committed_steps(out) + 20)
        self.stop(process, out)
        events = json.loads((out / "trace.json").read_text())["traceEvents"]
        names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        who = {names[event["pid"]] for event in events if event["name"].startswith("forward ")}
        self.assertEqual(len(who), 2, names)

    def test_a_worker_that_ends_before_it_computes_is_said_by_both_and_the_run_goes_on(self):
        out, kept = self.work.out("never-ready"), self.work.path / "token"
        process = self.start(self.work.spec(ENDLESS), out)
        token = (out / "token").read_text()
        kept.write_text(token)
        kept.chmod(0o600)
        (out / "token").write_text("none\n")  # with which no program starts, and those that run keep theirs
        self.refused(resize(out, 3, "--token-file", kept), 1, "not all were started: gpu_worker 2 ended: exit code")
        self.assertIn("workers_not_started", (out / "logs" / "eps_server.log").read_text())
        (out / "token").write_text(token)
        done = resize(out, 2)
        self.assertEqual((done.returncode, done.stdout), (0, "2 workers compute\n"), done.stderr)
        self.assertIn("eps: gpu_worker 2 ended: exit code", self.stop(process, out))

    def test_a_run_that_is_ended_meanwhile_starts_nobody(self):
        out = self.work.out("ended")
        process = self.start(self.work.spec(ENDLESS), out)
        os.kill(process.pid, signal.SIGSTOP)  # it looks for signals before it looks for orders
        self.assertEqual(resize(out, 2, "--no-wait").returncode, 0)
        os.kill(process.pid, signal.SIGTERM)
        os.kill(process.pid, signal.SIGCONT)
        self.end(process, 143)
        self.assertFalse((out / "logs" / "gpu_worker-2.log").exists())

    def test_a_run_that_ends_while_a_worker_starts_ends_as_any_other_and_keeps_its_trace(self):
        out = self.work.out("starting")
        process = self.start(self.work.spec(ENDLESS), out, "--trace")
        self.assertEqual(resize(out, 2, "--no-wait").returncode, 0)
        while len(workers := children(process.pid, "gpu_worker")) < 2:
            self.assertIsNone(process.poll())
            time.sleep(0.001)
        try:
            os.kill(max(workers), signal.SIGSTOP)  # it may have attached: then it is lost when it is not heard of
        except ProcessLookupError:
            self.fail("the worker that was started is gone")
        self.assertEqual(run([str(EPS), "stop", "--out", str(out)]).returncode, 0)
        self.end(process)
        self.assertGreater(len(json.loads((out / "trace.json").read_text())["traceEvents"]), 0)

    def test_what_cannot_be_is_refused(self):
        out = self.work.out("refused")
        self.refused(resize(out, 0), 2, "WORKERS")
        self.refused(resize(out, 4097), 2, "WORKERS")
        self.refused(resize(out, "two"), 2, "WORKERS")
        self.refused(resize(out), 2, "WORKERS")
        self.refused(resize(out, 2), 1, str(out))


class ResizeByHandTest(ByHandTest):
    def test_nobody_starts_workers_for_a_daemon_that_was_started_by_hand_and_some_can_go(self):
        out = self.work.out("by-hand")
        daemon, address = self.start_daemon(self.work.spec(ENDLESS), out, "--expect-workers", 2)
        workers = [self.start_worker(address) for _ in range(2)]
        wait_for_steps(daemon, out, 5)
        self.refused(resize(out, 3), 1, "nobody starts workers for this daemon", "gpu_worker --connect")
        self.assertEqual(resize(out, 1).stdout, "worker 2 left\n")
        self.assertEqual(run([str(EPS), "stop", "--out", str(out)]).returncode, 0)
        self.assertEqual(sorted(worker.wait(timeout=60 * TIME_SCALE) for worker in workers), [0, 0])
        self.assertEqual(daemon.wait(timeout=60 * TIME_SCALE), 0)
