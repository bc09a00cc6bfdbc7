"""eps resize: a run has more and fewer workers while it goes on, and its bits are those of one that had a single one."""

import json
import os
import signal
import subprocess
import time

from eps_run import (EPS, ByHandTest, SystemTest, children, model_hash, run, start_train, summary, train_command,
                     wait_for_steps)

# So many steps that a run goes on while workers come and go.
LONG = {"steps": 800, "checkpoint": {"every_steps": 0}}


def resize(out, *args):
    return run([str(EPS), "resize", "--out", str(out), *map(str, args)])


def ready(out):
    status = json.loads(run([str(EPS), "status", "--json", "--out", str(out)]).stdout)
    return [int(worker["worker_id"]) for worker in status["workers"] if worker["state"] in ("idle", "running")]


def start_talking(spec, out):
    """What eps train notes is on stdout."""
    command = [word for word in train_command(spec, out) if word != "--quiet"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)


class ResizeTest(SystemTest):
    def test_a_run_grows_and_shrinks_without_losing_a_step_or_changing_a_bit(self):
        spec = self.work.spec(LONG)
        out = self.work.out("resized")
        process = start_talking(spec, out)
        wait_for_steps(process, out, 5)
        for workers, said, there in ((3, "2 more workers compute\n", [1, 2, 3]), (3, "there are 3 already\n", [1, 2, 3]),
                                     (1, "workers 2, 3 left\n", [1]), (2, "1 more worker computes\n", [1, 4])):
            done = resize(out, workers)
            self.assertEqual((done.returncode, done.stdout), (0, said), done.stderr)
            self.assertEqual(ready(out), there)
        stdout, stderr = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, stderr)
        for number in (2, 3, 4):
            self.assertIn(f"eps: starting gpu_worker {number}, as eps resize asks for it", stdout)
            self.assertTrue((out / "logs" / f"gpu_worker-{number}.log").exists())
        log = (out / "logs" / "eps_server.log").read_text()
        self.assertNotIn("worker_lost", log)
        self.assertEqual(log.count("workers_asked_for"), 2)

        quiet = self.work.out("quiet")
        self.train_ok(spec, quiet)
        self.assertEqual(model_hash(out), model_hash(quiet))
        self.assertEqual(summary(out)["loss"], summary(quiet)["loss"])
        self.refused(resize(out, 2), 1, "has ended: 800 of 800 steps")

    def test_a_traced_run_shows_the_workers_that_came_later(self):
        out = self.work.out("traced")
        process = start_train(self.work.spec(LONG), out, "--trace")
        wait_for_steps(process, out, 5)
        self.assertEqual(resize(out, 2).returncode, 0)
        stderr = process.communicate(timeout=120)[1]
        self.assertEqual(process.returncode, 0, stderr)
        names = {event["args"]["name"] for event in json.loads((out / "trace.json").read_text())["traceEvents"]
                 if event["name"] == "process_name"}
        self.assertEqual(len([name for name in names if "worker" in name]), 2, names)

    def test_a_worker_that_ends_before_it_computes_is_said_by_both_and_the_run_goes_on(self):
        out, kept = self.work.out("never-ready"), self.work.path / "token"
        process = start_talking(self.work.spec(LONG), out)
        wait_for_steps(process, out, 5)
        token = (out / "token").read_text()
        kept.write_text(token)
        kept.chmod(0o600)
        (out / "token").write_text(token.strip()[::-1] + "\n")  # the new worker has a wrong one
        self.refused(resize(out, 2, "--token-file", kept, "--timeout", 2), 1, "1 of 2 workers are ready after 2s",
                     "logs/gpu_worker-N.log")
        stdout, stderr = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, stderr)
        self.assertIn("eps: gpu_worker 2 ended: exit code", stdout)

    def test_what_cannot_be_is_refused(self):
        out = self.work.out("refused")
        self.refused(resize(out, 0), 2, "WORKERS")
        self.refused(resize(out, 4097), 2, "WORKERS")
        self.refused(resize(out, "two"), 2, "WORKERS")
        self.refused(resize(out), 2, "WORKERS")
        self.refused(resize(out, 2), 1, str(out))

    def test_a_run_that_is_ended_meanwhile_starts_nobody(self):
        out = self.work.out("ended")
        process = start_train(self.work.spec(LONG), out)
        wait_for_steps(process, out, 5)
        worker = children(process.pid, "gpu_worker")[0]
        os.kill(worker, signal.SIGSTOP)  # so that the step is not finished
        os.kill(process.pid, signal.SIGTERM)
        time.sleep(0.5)
        asked = resize(out, 2, "--no-wait")
        os.kill(worker, signal.SIGCONT)
        stderr = process.communicate(timeout=120)[1]
        self.assertEqual(process.returncode, 143, stderr)
        self.assertFalse((out / "logs" / "gpu_worker-2.log").exists(), asked.stdout + asked.stderr)


class ResizeByHandTest(ByHandTest):
    def test_nobody_starts_workers_for_a_daemon_that_was_started_by_hand_and_some_can_go(self):
        out = self.work.out("by-hand")
        daemon, address = self.start_daemon(self.work.spec(LONG), out, "--expect-workers", 2)
        workers = [self.start_worker(address) for _ in range(2)]
        wait_for_steps(daemon, out, 5)
        self.refused(resize(out, 3), 1, "nobody starts workers for this daemon", "gpu_worker --connect")
        self.assertEqual(resize(out, 1).stdout, "worker 2 left\n")
        self.assertEqual(sorted(worker.wait(timeout=60) for worker in workers), [0, 0])
        self.assertEqual(daemon.wait(timeout=60), 0)
