"""Invariants 4 and 5: processes are killed, runs are interrupted, and the final bits are those of a quiet run."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time

from eps_run import (ENDLESS, EPS, TIME_SCALE, SystemTest, children, committed_steps, latest_checkpoint, long, model_hash,
                     run, start, summary, train, train_command, wait_for_steps)

CHECKPOINTS = ("--set", "checkpoint.every_steps=10")  # they change no bit


class KillTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.specs = {
            "bf16": self.work.spec({**ENDLESS, "transport": "SHARED_MEMORY"}, name="bf16.json"),
            "fp32": self.work.spec({**ENDLESS, "precision": {"wire": "FP32", "gradients": "FP32"}, "transport": "GRPC"},
                                   name="fp32.json"),
        }

    def resume(self, name, out, *args):
        process = self.start_endless(self.specs[name], out, "--resume", *args)
        self.ends_like_a_quiet_run(process, self.specs[name], out)

    def wait_for_log(self, process, out, words):
        """Until they stand in the daemon's log."""
        deadline = time.monotonic() + 60 * TIME_SCALE
        while words not in (out / "logs" / "eps_server.log").read_text():
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), deadline, f"{words} is not said")
            time.sleep(0.01)

    def wait_until_one_worker_is_left(self, process):
        deadline = time.monotonic() + 60 * TIME_SCALE
        while len(children(process.pid, "gpu_worker")) > 1:
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), deadline, "a worker that was drained did not leave")
            time.sleep(0.01)

    def test_interrupted_by_signal_the_step_is_finished_and_a_resume_gives_the_same_bits(self):
        for name, number, code in (("bf16", signal.SIGINT, 130), ("fp32", signal.SIGTERM, 143)):
            out = self.work.out(f"{name}-interrupted")
            process = self.start_endless(self.specs[name], out, "--workers", 2, *CHECKPOINTS)
            wait_for_steps(process, out, 13)
            process.send_signal(number)
            self.ends(process, code)
            self.assertEqual(latest_checkpoint(out).name, f"step-{committed_steps(out):08d}")
            self.resume(name, out)

    def test_interrupted_and_then_without_a_worker_to_finish_the_step_the_newest_checkpoint_stands(self):
        out = self.work.out("interrupted-and-alone")
        process = self.start_endless(self.specs["bf16"], out)
        wait_for_steps(process, out, 7)
        worker = children(process.pid, "gpu_worker")[0]
        os.kill(worker, signal.SIGSTOP)  # so that it cannot finish before
        process.send_signal(signal.SIGINT)
        self.wait_for_log(process, out, "stop_requested")
        os.kill(worker, signal.SIGKILL)
        self.assertIn("no worker is left to finish step", self.ends(process, 1))
        self.resume("bf16", out)

    def test_daemon_killed_the_newest_checkpoint_is_named_and_a_resume_gives_the_same_bits(self):
        for name, steps in (("bf16", 14), ("fp32", 27)):
            out = self.work.out(f"{name}-daemon-killed")
            process = self.start_endless(self.specs[name], out, "--workers", 2, *CHECKPOINTS)
            wait_for_steps(process, out, steps)
            self.wait_for_first_checkpoint(out)
            workers = children(process.pid, "gpu_worker")
            self.assertEqual(len(workers), 2)
            os.kill(children(process.pid, "eps_server")[0], signal.SIGKILL)
            stderr = self.ends(process, 1)
            self.assertIn(latest_checkpoint(out).name, stderr)
            self.gone(workers, timeout=5)
            self.resume(name, out, "--workers", 1)

    def test_a_worker_killed_in_mid_run_changes_no_bit(self):
        for name, kill_at in (("bf16", (7,)), ("fp32", (5, 20))):
            out = self.work.out(f"{name}-worker-killed")
            process = self.start_endless(self.specs[name], out, "--workers", len(kill_at) + 1)
            for steps in kill_at:
                wait_for_steps(process, out, steps)
                os.kill(children(process.pid, "gpu_worker")[0], signal.SIGKILL)
            self.ends_like_a_quiet_run(process, self.specs[name], out)

    def test_a_worker_that_is_asked_to_leave_finishes_its_part(self):
        for name, number in (("bf16", signal.SIGTERM), ("fp32", signal.SIGINT)):
            out = self.work.out(f"{name}-worker-leaves")
            process = self.start_endless(self.specs[name], out, "--workers", 2)
            wait_for_steps(process, out, 7)
            os.kill(children(process.pid, "gpu_worker")[0], number)
            self.wait_until_one_worker_is_left(process)
            self.ends_like_a_quiet_run(process, self.specs[name], out)
            log = (out / "logs" / "eps_server.log").read_text()
            self.assertIn("worker_left", log)
            self.assertNotIn("worker_lost", log)

    def test_a_drained_worker_finishes_its_part_and_the_last_one_cannot_be(self):
        out = self.work.out("drained")
        drain = [str(EPS), "drain", "--out", str(out)]
        process = self.start_endless(self.specs["bf16"], out, "--workers", 3)
        wait_for_steps(process, out, 7)
        for given, said in ((["99"], "worker 99: none of that number is attached"),
                            (["1", "2", "3"], "no other worker is ready"),
                            (["--host", "elsewhere"], "--host elsewhere: no worker of that host is attached"),
                            (["--host", socket.gethostname()], "no other worker is ready")):
            refused = run([*drain, *given])
            self.assertEqual(refused.returncode, 1, refused.stderr)
            self.assertIn(said, refused.stderr)
        self.assertEqual(run(drain).returncode, 2)
        first = run([*drain, "2"])
        self.assertEqual((first.returncode, first.stdout), (0, "worker 2 left\n"), first.stderr)
        status = json.loads(run([str(EPS), "status", "--json", "--out", str(out)]).stdout)
        self.assertEqual([worker["worker_id"] for worker in status["workers"]], ["1", "3"])
        self.assertEqual(run([*drain, "1", "--no-wait"]).returncode, 0)
        self.wait_until_one_worker_is_left(process)
        self.assertNotIn("gpu_worker", self.ends_like_a_quiet_run(process, self.specs["bf16"], out))
        log = (out / "logs" / "eps_server.log").read_text()
        self.assertEqual(log.count("worker_drained"), 2)
        self.assertNotIn("worker_lost", log)

    def test_drain_says_so_when_its_worker_or_the_daemon_dies_meanwhile(self):
        for victim, said in (("gpu_worker", "worker 1 was lost while leaving"), ("eps_server", "is not known: ")):
            with self.subTest(victim):
                out = self.work.out(f"drain-{victim}-killed")
                process = self.start_endless(self.specs["bf16"], out, "--workers", 2)
                wait_for_steps(process, out, 7)
                status = json.loads(run([str(EPS), "status", "--json", "--out", str(out)]).stdout)
                pid = int(next(worker["process_id"] for worker in status["workers"] if worker["worker_id"] == "1"))
                os.kill(pid, signal.SIGSTOP)  # so that it cannot leave before
                drain = start([EPS, "drain", "--out", out, "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                self.wait_for_log(drain, out, "worker_drained")
                os.kill(pid if victim == "gpu_worker" else children(process.pid, victim)[0], signal.SIGKILL)
                stdout, stderr = drain.communicate(timeout=60 * TIME_SCALE)
                self.assertEqual((drain.returncode, stdout), (1, ""), stderr)
                self.assertIn(said, stderr)
                if victim == "gpu_worker":
                    wait_for_steps(process, out, committed_steps(out) + 5)
                    process.send_signal(signal.SIGINT)
                self.ends(process, 130 if victim == "gpu_worker" else 1)

    def test_a_run_whose_last_worker_dies_after_others_were_drained_ends(self):
        out = self.work.out("drained-then-killed")
        process = self.start_endless(self.specs["bf16"], out, "--workers", 2)
        wait_for_steps(process, out, 7)
        self.assertEqual(run([str(EPS), "drain", "--out", str(out), "1"]).returncode, 0)
        self.wait_until_one_worker_is_left(process)
        os.kill(children(process.pid, "gpu_worker")[0], signal.SIGKILL)
        self.ends(process, 1)
        self.resume("bf16", out)

    def test_a_worker_that_leaves_finishes_the_step_when_the_others_die_in_it(self):
        out = self.work.out("leaving-alone")
        process = self.start_endless(self.specs["bf16"], out, "--workers", 2)
        wait_for_steps(process, out, 7)
        leaving, other = children(process.pid, "gpu_worker")
        os.kill(other, signal.SIGSTOP)
        os.kill(leaving, signal.SIGTERM)
        time.sleep(0.5)
        os.kill(other, signal.SIGKILL)
        self.ends(process, 1)
        self.assertEqual(latest_checkpoint(out).name, f"step-{committed_steps(out):08d}")
        self.resume("bf16", out)

    def test_the_last_worker_that_leaves_costs_no_step(self):
        out = self.work.out("last-leaves")
        process = self.start_endless(self.specs["bf16"], out)
        wait_for_steps(process, out, 7)
        os.kill(children(process.pid, "gpu_worker")[0], signal.SIGTERM)
        stderr = self.ends(process, 1)
        self.assertGreaterEqual(committed_steps(out), 7)
        self.assertEqual(latest_checkpoint(out).name, f"step-{committed_steps(out):08d}")
        self.assertIn(latest_checkpoint(out).name, stderr)
        self.resume("bf16", out)

    def test_a_worker_killed_before_it_attached_is_not_waited_for(self):
        out = self.work.out("killed-at-start")
        process = self.start_endless(self.specs["bf16"], out, "--workers", 2)
        while not (workers := children(process.pid, "gpu_worker")):
            self.assertIsNone(process.poll())
        os.kill(workers[0], signal.SIGKILL)
        # A daemon that waits for it does so for a minute, however slow this machine is.
        wait_for_steps(process, out, 1, timeout=50 / TIME_SCALE)
        self.ends_like_a_quiet_run(process, self.specs["bf16"], out)

    def test_a_second_signal_ends_at_once_and_a_resume_gives_the_same_bits(self):
        out = self.work.out("asked-twice")
        process = self.start_endless(self.specs["bf16"], out, "--workers", 2, *CHECKPOINTS)
        wait_for_steps(process, out, 13)
        self.wait_for_first_checkpoint(out)
        os.kill(children(process.pid, "gpu_worker")[0], signal.SIGSTOP)  # the step cannot be finished now
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)  # the same one, come in two ways: as yet it waits for the step
        self.wait_for_log(process, out, "stop_requested")  # it has seen the first
        time.sleep(1.2)  # within a second it is the same signal
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        stderr = self.ends(process, 1)
        self.assertIn("second signal", stderr)
        self.assertIn(latest_checkpoint(out).name, stderr)
        self.resume("bf16", out)

    def test_a_signal_that_comes_to_several_processes_is_one(self):
        """As a service manager sends it to all of a group, and `timeout` to a process and then its group."""
        for order in (("eps", "daemon"), ("daemon", "eps"), ("eps", "eps"), ("workers", "daemon", "eps"),
                      ("daemon", "eps", "workers")):
            with self.subTest(order):
                out = self.work.out("-".join(order))
                process = self.start_endless(self.specs["bf16"], out, "--workers", 2, *CHECKPOINTS)
                wait_for_steps(process, out, 13)
                pids = {"eps": [process.pid], "daemon": children(process.pid, "eps_server"),
                        "workers": children(process.pid, "gpu_worker")}
                for name in order:
                    for pid in pids[name]:
                        os.kill(pid, signal.SIGTERM)
                self.ends(process, 143)
                self.assertEqual(latest_checkpoint(out).name, f"step-{committed_steps(out):08d}")

    def test_processes_that_stood_still_lose_nobody(self):
        """As where a container is paused, or a machine suspended, for longer than the lease of ten seconds."""
        out = self.work.out("paused")
        process = self.start_endless(self.specs["bf16"], out, "--workers", 2, *CHECKPOINTS)
        wait_for_steps(process, out, 13)
        pids = children(process.pid, "gpu_worker") + children(process.pid, "eps_server")
        self.assertEqual(len(pids), 3)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(11)
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)
        self.ends_like_a_quiet_run(process, self.specs["bf16"], out)
        self.assertNotIn("not heard of", (out / "logs" / "eps_server.log").read_text())

    def test_a_starter_that_ignores_its_children_does_not_keep_them_from_being_seen(self):
        command = train_command(self.work.spec({"steps": 6}, name="short.json"), self.work.out("ignored"))
        done = subprocess.run(command, capture_output=True, text=True, timeout=60 * TIME_SCALE,
                              preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_sample_ended_by_a_signal_leaves_nothing_behind(self):
        out, folder = self.work.out("short"), self.work.out("temporary")
        self.train_ok(self.work.spec({"steps": 2}), out)
        folder.mkdir()
        process = start([EPS, "sample", "--checkpoint", out, "--tokens", 1_000_000], stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE, text=False, env={**os.environ, "TMPDIR": str(folder)})
        self.assertTrue(process.stdout.read(40))  # it is under way
        self.assertEqual(len(list(folder.iterdir())), 1)
        pids = children(process.pid, "gpu_worker") + children(process.pid, "eps_server")
        self.assertEqual(len(pids), 2)
        process.terminate()
        self.ends(process, 143, timeout=30)
        self.assertEqual(list(folder.iterdir()), [])
        self.assertFalse(any(os.path.exists(f"/proc/{pid}") for pid in pids))

    def test_a_worker_killed_at_any_moment_of_a_step_changes_no_bit(self):
        for delays_ms in ((0, 7, 18), (3, 12, 25)):
            out = self.work.out(f"moments-{delays_ms[0]}")
            process = self.start_endless(self.specs["bf16"], out, "--workers", 4)
            wait_for_steps(process, out, 10)
            for delay_ms in delays_ms:
                wait_for_steps(process, out, committed_steps(out) + 5)  # what the kill before cost is over
                time.sleep(delay_ms / 1000)
                os.kill(children(process.pid, "gpu_worker")[1], signal.SIGKILL)
            self.ends_like_a_quiet_run(process, self.specs["bf16"], out)

    @long
    def test_a_worker_that_stops_answering_loses_its_lease_and_the_run_goes_on(self):
        out = self.work.out("stopped")
        process = self.start_endless(self.specs["bf16"], out, "--workers", 2)
        wait_for_steps(process, out, 10)
        worker = children(process.pid, "gpu_worker")[0]
        os.kill(worker, signal.SIGSTOP)
        self.wait_for_log(process, out, "worker_lost")
        self.ends_like_a_quiet_run(process, self.specs["bf16"], out)

    def test_when_the_last_worker_dies_the_newest_checkpoint_is_named(self):
        out = self.work.out("none-left")
        process = self.start_endless(self.specs["bf16"], out, "--workers", 2, *CHECKPOINTS)
        wait_for_steps(process, out, 14)
        self.wait_for_first_checkpoint(out)
        daemon = children(process.pid, "eps_server")
        self.assertEqual(len(daemon), 1)
        for pid in children(process.pid, "gpu_worker"):
            os.kill(pid, signal.SIGKILL)
        stderr = self.ends(process, 1)
        self.assertIn(latest_checkpoint(out).name, stderr)
        self.gone(daemon, timeout=5)
        self.resume("bf16", out)

    def test_a_killed_eps_train_leaves_no_process_behind(self):
        out = self.work.out("parent-killed")
        process = self.start_endless(self.specs["bf16"], out, "--workers", 2, *CHECKPOINTS)
        wait_for_steps(process, out, 12)
        pids = children(process.pid, "gpu_worker") + children(process.pid, "eps_server")
        self.assertEqual(len(pids), 3)
        process.kill()
        process.communicate()
        self.gone(pids)
        self.resume("bf16", out)

    def test_a_run_is_resumed_at_once_when_eps_train_was_killed(self):
        out = self.work.out("at-once")
        process = self.start_endless(self.specs["bf16"], out, "--workers", 2, *CHECKPOINTS)
        wait_for_steps(process, out, 12)
        process.kill()
        process.communicate()
        self.resume("bf16", out)  # its daemon is still at the last step

    def test_an_eps_train_that_dies_leaves_the_checkpoint_of_its_last_step(self):
        # The daemon may be told several times that its starter is gone: once for each of the starter's threads.
        for number in (signal.SIGKILL, signal.SIGHUP, signal.SIGKILL, signal.SIGHUP, signal.SIGKILL, signal.SIGHUP):
            out = self.work.out("starter-died")
            process = self.start_endless(self.specs["bf16"], out, "--workers", 2, "--set", "checkpoint.every_steps=1000")
            wait_for_steps(process, out, 5)
            pids = children(process.pid, "gpu_worker") + children(process.pid, "eps_server")
            process.send_signal(number)
            process.communicate()
            self.gone(pids, timeout=20)
            self.assertEqual(latest_checkpoint(out).name, f"step-{committed_steps(out):08d}")
            shutil.rmtree(out)

    def test_a_signal_before_the_run_has_begun_ends_it(self):
        process = self.start_endless(self.specs["bf16"], self.work.out("early"))
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=30 * TIME_SCALE)
        self.assertIn(process.returncode, (143, -signal.SIGTERM), stderr)

    def test_reports_of_a_finished_run_are_made_again(self):
        spec = self.work.spec({"steps": 6}, name="short.json")
        out = self.work.out("no-reports")
        self.train_ok(spec, out)
        before = summary(out)
        for name in ("summary.json", "loss.svg"):
            (out / name).unlink()
        self.train_ok(spec, out, "--resume", timeout=30)
        self.assertEqual(summary(out)["loss"], before["loss"])
        self.assertEqual(summary(out)["steps"], 6)
        self.assertTrue((out / "loss.svg").exists())

    def test_resuming_a_finished_run_ends_at_once_and_changes_nothing(self):
        spec = self.work.spec({"steps": 6}, name="short.json")
        out = self.work.out("finished")
        self.train_ok(spec, out)
        before = model_hash(out)
        self.train_ok(spec, out, "--resume", timeout=30)
        self.assertEqual(model_hash(out), before)
        # What it took to train is needed no more.
        (self.work.path / "text.txt").rename(self.work.path / "elsewhere.txt")
        self.train_ok(spec, out, "--resume", "--device-memory", "1KiB", timeout=30)
        done = train(spec, out, "--resume", "--export", self.work.out("exported"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((self.work.out("exported") / "model.safetensors").exists())
        self.refused(train(spec, out, "--resume", "--set", "optimizer.schedule.peak=0.5"), 2)
        self.assertEqual(model_hash(out), before)

    def test_a_run_is_not_resumed_with_another_run_spec(self):
        spec = self.work.spec({"steps": 6}, name="short.json")
        out = self.work.out("other")
        self.train_ok(spec, out)
        self.refused(train(spec, out, "--resume", "--set", "optimizer.schedule.peak=0.5"), 2, "peak")

    def test_a_folder_that_holds_a_run_is_not_overwritten_without_resume(self):
        spec = self.work.spec({"steps": 6}, name="short.json")
        out = self.work.out("twice")
        self.train_ok(spec, out)
        before = model_hash(out)
        self.refused(train(spec, out), 2, "--resume")
        self.assertEqual(model_hash(out), before)

    def test_a_folder_with_a_run_in_progress_is_left_to_it(self):
        out = self.work.out("busy")
        process = self.start_endless(self.specs["bf16"], out)
        wait_for_steps(process, out, 12)
        self.refused(train(self.specs["bf16"], out, "--resume"), 2, "in use")
        self.ends_like_a_quiet_run(process, self.specs["bf16"], out)
