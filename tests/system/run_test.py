"""What a run leaves, and what one can ask of it while it goes on."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import xml.dom.minidom

from eps_run import (ENDLESS, EPS, TIME_SCALE, SystemTest, children, committed_steps, latest_checkpoint, run, start,
                     start_train, summary, train, train_command, wait_for_steps)


class RunFolderTest(SystemTest):
    def test_a_schedule_that_is_hardly_meant_is_told_when_the_run_begins(self):
        spec = self.work.spec({"optimizer": {"schedule": {"warmup_steps": 12}}})
        out = self.work.out("run")
        self.train_ok(spec, out)
        log = (out / "logs" / "eps_server.log").read_text()
        self.assertEqual(log.count(" WARNING run_spec_is_odd field=optimizer.schedule.warmup_steps why="), 1)

    def test_a_run_leaves_what_the_contract_says(self):
        out = self.work.out("run")
        self.train_ok(self.work.spec(), out, "--workers", 2)
        result = summary(out)
        self.assertEqual(result["steps"], 12)
        self.assertEqual((result["tokens"], result["counted"]), (12 * 4 * 2 * 2 * 32, "tokens"))
        self.assertEqual(len(result["loss"]), 12)
        self.assertEqual((result["loss_first"], result["loss_last"]), (result["loss"][0], result["loss"][-1]))
        self.assertEqual(result["workers"], 2)
        self.assertGreater(result["tokens_per_second"], 0)
        self.assertGreater(result["seconds"], 0)
        self.assertGreater(result["device_cap_bytes"], 0)
        self.assertLessEqual(result["device_peak_bytes"], result["device_cap_bytes"])
        # 3 blocks of 12 d^2 + 13 d, embeddings and the last norm.
        self.assertEqual(result["parameters"], 3 * (12 * 64 * 64 + 13 * 64) + (256 + 32) * 64 + 2 * 64)
        self.assertGreaterEqual(result["model_state_bytes"], 14 * result["parameters"])
        self.assertTrue(all(0 <= share <= 1 for share in result["wait_fraction"].values()), result["wait_fraction"])
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines], list(range(12)))
        self.assertEqual([line["loss"] for line in lines], result["loss"])
        for line in lines:
            for key in ("learning_rate", "gradient_norm", "tokens_per_second"):
                self.assertIn(key, line)
        xml.dom.minidom.parse(str(out / "loss.svg"))
        names = sorted(path.name for path in (out / "checkpoints").iterdir())
        self.assertEqual(names, ["latest", "step-00000005", "step-00000010", "step-00000012"])
        files = {path.name for path in latest_checkpoint(out).iterdir()}
        self.assertEqual(files, {"model.safetensors", "optimizer.safetensors", "config.json", "manifest.json"})
        manifest = json.loads((latest_checkpoint(out) / "manifest.json").read_text())
        self.assertEqual(manifest["step"], 12)

    def test_steps_on_the_command_line_override_the_run_spec(self):
        out = self.work.out("run")
        self.train_ok(self.work.spec(), out, "--steps", 3)
        self.assertEqual(summary(out)["steps"], 3)

    def test_a_textproto_and_a_json_of_the_same_run_give_the_same_loss(self):
        text = self.work.path / "run.textproto"
        text.write_text("""
          model { family: GPT2  layers: 3  d_model: 64  heads: 4  context: 32  vocab: 256  init_seed: 1 }
          data { path: "text.txt"  tokenizer: BYTES  order: SHUFFLED  seed: 7 }
          batch { virtual_nodes: 4  micro_batches: 2  micro_batch: 2 }
          optimizer { adamw { beta1: 0.9  beta2: 0.95  eps: 1e-8  weight_decay: 0.1 }
                      schedule { peak: 1e-3  warmup_steps: 5  decay: COSINE  final: 1e-4 }
                      clip { mode: EXACT  norm: 1.0 } }
          precision { wire: BF16  gradients: BF16  moments: FP32 }
          steps: 12
          checkpoint { every_steps: 5  keep: 3 }""")
        self.train_ok(text, self.work.out("text"))
        self.train_ok(self.work.spec(), self.work.out("json"))
        self.assertEqual(summary(self.work.out("text"))["loss"], summary(self.work.out("json"))["loss"])


class CommandsTest(SystemTest):
    def test_status_checkpoint_and_stop_of_a_run_in_progress(self):
        spec = self.work.spec({"steps": 100000, "checkpoint": {"every_steps": 0}})
        out = self.work.out("run")
        process = start_train(spec, out)
        try:
            wait_for_steps(process, out, 5)
            status = run([str(EPS), "status", "--out", str(out)])
            self.assertEqual(status.returncode, 0, status.stderr)
            self.assertIn("100000", status.stdout)
            self.assertIn(f" on {socket.gethostname()}, over", status.stdout)
            checkpoint = run([str(EPS), "checkpoint", "--out", str(out)])
            self.assertEqual(checkpoint.returncode, 0, checkpoint.stderr)
            name = latest_checkpoint(out).name
            self.assertIn(name, checkpoint.stdout)
            steps = committed_steps(out)
            wait_for_steps(process, out, steps + 3)
            stopped = run([str(EPS), "stop", "--out", str(out)])
            self.assertEqual(stopped.returncode, 0, stopped.stderr)
            stdout, stderr = process.communicate(timeout=60 * TIME_SCALE)
            self.assertEqual(process.returncode, 0, stderr)
        finally:
            process.kill()
            process.communicate()
        self.assertEqual(latest_checkpoint(out).name, f"step-{committed_steps(out):08d}")
        self.assertEqual(summary(out)["steps"], committed_steps(out))
        self.assertEqual(summary(out)["steps_planned"], 100000)
        for command in (["status"], ["checkpoint"], ["drain", "1"], ["stop"]):
            over = run([str(EPS), *command, "--out", str(out)])
            self.assertEqual(over.returncode, 1, over.stdout)
            self.assertIn(f"{latest_checkpoint(out)}; go on with --resume", over.stderr)

    def test_a_folder_whose_name_is_not_utf8_is_answered_for_as_any_other(self):
        out = self.work.path / os.fsdecode(b"run-\xff")
        process = self.start_endless(self.work.spec(ENDLESS), out)
        wait_for_steps(process, out, 3)
        written = subprocess.run([EPS, "checkpoint", "--out", out], capture_output=True, timeout=60 * TIME_SCALE)
        self.assertEqual(written.returncode, 0, written.stderr)
        self.assertTrue(os.path.isdir(written.stdout.rstrip(b"\n")), written.stdout)
        for command in (["status"], ["status", "--json"], ["stop"]):
            done = subprocess.run([EPS, *command, "--out", out], capture_output=True, timeout=60 * TIME_SCALE)
            self.assertEqual(done.returncode, 0, (command, done.stderr))
        self.assertEqual(process.wait(timeout=60 * TIME_SCALE), 0)

    def test_of_a_run_that_is_done_status_and_top_say_where_it_ended(self):
        out = self.work.out("run")
        self.train_ok(self.work.spec(), out)
        for command in (["status"], ["top"], ["top", "--once"]):
            over = run([str(EPS), *command, "--out", str(out)])
            self.assertEqual(over.returncode, 0, over.stderr)
            self.assertIn(f"has ended: 12 of 12 steps were done, loss {summary(out)['loss_last']:.3f}", over.stdout)
            self.assertIn(str(latest_checkpoint(out)), over.stdout)
            self.assertNotIn("--resume", over.stdout)
        status = json.loads(run([str(EPS), "status", "--out", str(out), "--json"]).stdout)
        self.assertEqual((status["state"], status["step"], status["loss"]), ("finished", "12", summary(out)["loss_last"]))
        for command in (["checkpoint"], ["drain", "1"], ["stop"]):
            self.refused(run([str(EPS), *command, "--out", str(out)]), 1, "has ended: 12 of 12 steps were done")

    def test_of_a_run_that_was_killed_status_says_how_far_it_came(self):
        out = self.work.out("run")
        process = start_train(self.work.spec({"steps": 100000, "checkpoint": {"every_steps": 0}}), out)
        wait_for_steps(process, out, 3)
        os.kill(children(process.pid, "eps_server")[0], signal.SIGKILL)
        self.assertEqual(process.wait(timeout=60 * TIME_SCALE), 1)
        last = json.loads([line for line in (out / "metrics.jsonl").read_text().splitlines(True) if line.endswith("\n")][-1])
        status = [str(EPS), "status", "--out", str(out)]
        self.refused(run(status), 1, f"{last['step'] + 1} steps were done, loss {last['loss']:.3f}; there is no checkpoint")
        done = run([*status, "--json"])
        self.refused(done, 1, "no daemon runs for")
        self.assertEqual(json.loads(done.stdout), {"state": "not_running", "step": str(last["step"] + 1),
                                                   "loss": last["loss"], "newest_checkpoint": ""})

    def test_of_a_run_that_failed_status_and_top_say_why(self):
        out = self.work.out("failed")
        spec = self.work.spec({"steps": 100, "optimizer": {"schedule": {"peak": 1e9, "final": 1e9}},
                               "checkpoint": {"every_steps": 0}})
        self.assertEqual(train(spec, out).returncode, 1)
        for command in (["status"], ["status", "--json"], ["top", "--once"]):
            asked = run([str(EPS), *command, "--out", str(out)])
            self.refused(asked, 1, "has failed: step ", "not finite", "steps were done", "there is no checkpoint")
            self.assertNotIn("yet", asked.stderr)
        status = json.loads(run([str(EPS), "status", "--json", "--out", str(out)]).stdout)
        self.assertEqual((status["state"], status["failure"]),
                         ("failed", json.loads((out / "failure.json").read_text())["failure"]))

    def test_of_a_daemon_that_hangs_it_is_said_that_it_lives(self):
        out = self.work.out("run")
        process = start_train(self.work.spec({"steps": 100000, "checkpoint": {"every_steps": 0}}), out)
        self.addCleanup(lambda: (process.kill(), process.wait()))  # its daemon and worker end with it
        wait_for_steps(process, out, 3)
        daemon = children(process.pid, "eps_server")[0]
        address = json.loads((out / "endpoints.json").read_text())["grpc"]
        os.kill(daemon, signal.SIGSTOP)
        self.addCleanup(lambda: os.kill(daemon, signal.SIGCONT))
        self.refused(run([str(EPS), "top", "--once", "--out", str(out)]), 1,
                     f"the daemon of {out} ({address}, pid {daemon}) gave no answer for 5 s: its process lives; see its log")

    def test_while_a_daemon_lingers_its_run_has_ended(self):
        out = self.work.out("run")
        daemon = start([EPS.parent / "eps_server", "--run", self.work.spec(), "--out", out, "--listen", "127.0.0.1:0",
                        "--linger-seconds", "600"], stderr=subprocess.DEVNULL)
        self.addCleanup(lambda: (daemon.kill(), daemon.wait()))
        while not (out / "endpoints.json").exists():
            self.assertIsNone(daemon.poll())
            time.sleep(0.01)
        address = json.loads((out / "endpoints.json").read_text())["grpc"]
        worker = run([str(EPS.parent / "gpu_worker"), "--connect", address, "--device-memory", "64MiB"])
        self.assertEqual(worker.returncode, 0, worker.stderr)
        deadline = time.monotonic() + 30 * TIME_SCALE
        while run([str(EPS), "status", "--out", str(out)]).returncode != 0 and time.monotonic() < deadline:
            time.sleep(0.05)  # its ports go before its folder's lock
        self.assertIsNone(daemon.poll())
        for command in (["status"], ["top", "--once"]):
            done = run([str(EPS), *command, "--out", str(out)])
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("has ended: 12 of 12 steps were done", done.stdout)
        for command in (["checkpoint"], ["stop"]):
            self.refused(run([str(EPS), *command, "--out", str(out)]), 1, "has ended: 12 of 12 steps were done")

    def test_what_is_wrong_with_a_model_is_said_however_quiet(self):
        spec = self.work.spec({"steps": 3, "precision": {"wire": "FP16", "gradients": "FP16",
                                                         "loss_scale": {"initial": 2 ** 24, "growth_interval": 3}}})
        done = self.train_ok(spec, self.work.out("run"))
        skipped = summary(self.work.out("run"))["skipped_steps"]
        self.assertGreater(skipped, 0)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, f"eps: warning: the loss scale of FP16 was too large in {skipped} steps?, which")
        self.assertIn("precision.loss_scale.initial", done.stderr)  # the last step was skipped as well
        done = self.train_ok(spec, self.work.out("longer"), "--set", "steps=30")
        self.assertIn("eps: warning: the loss scale of FP16 was too large", done.stderr)
        self.assertNotIn("lower optimizer.schedule.peak", done.stderr)

    def test_a_run_that_ended_without_a_checkpoint_is_a_run_all_the_same(self):
        spec, out = self.work.spec({"checkpoint": {"every_steps": 0, "last": False}}), self.work.out("run")
        self.train_ok(spec, out)
        log = (out / "metrics.jsonl").read_bytes()
        self.refused(train(spec, out), 2, "holds a run already")
        daemon = run([str(EPS.parent / "eps_server"), "--run", str(spec), "--out", str(out), "--listen", "127.0.0.1:0"])
        self.refused(daemon, 2, "holds a run already, which has ended and left no checkpoint")
        done = train(spec, out, "--resume")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("12 of 12 steps were done", done.stdout)
        self.assertIn("it left no checkpoint", done.stdout)
        for more in (["--steps", 20], ["--set", "checkpoint.last=true", "--export", self.work.out("model")]):
            refused = train(spec, out, "--resume", *more)
            self.assertEqual(refused.returncode, 2, refused.stderr)
        self.assertEqual((out / "metrics.jsonl").read_bytes(), log)

    def test_nothing_to_resume_is_said_whatever_is_to_be_quiet(self):
        done = train(self.work.spec({"steps": 2}), self.work.out("another"), "--resume", "--quiet")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("there is no checkpoint in", done.stderr)

    def test_workers_that_find_their_device_too_small_end_the_run_before_it_begins(self):
        programs = self.work.path / "programs"
        programs.mkdir()
        for program in ("eps", "eps_server"):
            shutil.copy(EPS.parent / program, programs / program)
        worker = programs / "gpu_worker"  # of a device whose size it alone knows
        worker.write_text("#!/bin/sh\necho 'gpu_worker: this run needs at least 4096 bytes' >&2\nexit 3\n")
        worker.chmod(0o755)
        out = self.work.out("run")
        command = train_command(self.work.spec(), out, "--workers", 2)
        done = run([str(programs / "eps"), *command[1:]])
        self.refused(done, 3, "needs at least 4096 bytes")
        self.assertEqual(done.stderr.count("eps: gpu_worker: this run"), 1, done.stderr)
        self.assertFalse(out.exists())

    def test_a_worker_that_ends_so_in_the_middle_costs_no_checkpoint(self):
        programs = self.work.path / "programs"
        programs.mkdir()
        for program in ("eps", "eps_server"):
            shutil.copy(EPS.parent / program, programs / program)
        out, worker = self.work.out("run"), programs / "gpu_worker"
        worker.write_text(f"""#!/bin/sh
            {EPS.parent}/gpu_worker "$@" &
            until [ -e {out}/checkpoints/latest ]; do sleep 0.01; done
            kill -9 $!
            exit 3
            """)
        worker.chmod(0o755)
        command = train_command(self.work.spec({"steps": 100000}), out)
        done = run([str(programs / "eps"), *command[1:]])
        self.assertNotEqual(done.returncode, 0)
        self.assertTrue((out / "checkpoints/latest").exists())

    def test_while_a_stopped_run_goes_on_nothing_says_that_it_has_ended(self):
        spec, out = self.work.spec({"steps": 100000}), self.work.out("run")
        process = start_train(spec, out)
        wait_for_steps(process, out, 3)
        self.assertEqual(run([str(EPS), "stop", "--out", str(out)]).returncode, 0)
        process.communicate(timeout=60 * TIME_SCALE)
        self.assertTrue((out / "summary.json").exists())
        process = start_train(spec, out, "--resume")
        wait_for_steps(process, out, committed_steps(out) + 3)
        self.assertFalse((out / "summary.json").exists())
        for pid in children(process.pid, "eps_server"):
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=60 * TIME_SCALE)
        over = run([str(EPS), "status", "--out", str(out)])
        self.assertEqual(over.returncode, 1, over.stdout)
        self.assertNotIn("has ended", over.stderr)

    def test_what_is_printed_says_what_is_trained_and_how_it_ended(self):
        out = self.work.out("run")
        command = [word for word in train_command(self.work.spec(), out) if word != "--quiet"]
        done = run(command)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("12 steps of", done.stdout)
        self.assertIn(f"in {out}", done.stdout)
        self.assertIn("done: 12 steps in", done.stdout)
        again = run([*command, "--resume"])
        self.assertIn("done: 12 steps in", again.stdout)
        (out / "summary.json").unlink()
        again = run([*command, "--resume"])
        self.assertIn("from step-00000012", again.stdout)
        empty = run([*command[:-1], str(self.work.out("empty")), "--resume"])
        self.assertEqual(empty.returncode, 0, empty.stderr)
        self.assertIn("no checkpoint", empty.stderr)

    def test_a_reader_that_goes_away_does_not_end_the_run(self):
        out = self.work.out("run")
        command = [word for word in train_command(self.work.spec(), out) if word != "--quiet"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.stdout.close()
        self.assertEqual(process.wait(timeout=120 * TIME_SCALE), 0)
        process.stderr.close()
        self.assertEqual(summary(out)["steps"], 12)
        with open("/dev/full", "w") as full:
            lost = subprocess.run([str(EPS), "plan", "--run", str(self.work.spec())], stdout=full,
                                  stderr=subprocess.PIPE, text=True)
            trained = subprocess.run([str(word) for word in train_command(self.work.spec({"steps": 1}), self.work.out("full"))
                                      if word != "--quiet"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(lost.returncode, 1)
        self.assertIn("output", lost.stderr)
        self.assertEqual(trained.returncode, 0, "its model is on disk")
        self.assertIn("cannot write all of the output: No space left on device", trained.stderr)

    def test_without_an_output_no_file_is_written_to_in_its_place(self):
        tokens = self.work.path / "ids.bin"
        command = [str(EPS), "tokenize", "--tokenizer", "bytes", "--in", str(self.work.path / "text.txt"), "--out",
                   str(tokens)]
        done = run(["sh", "-c", '"$@" >&-', "sh", *command])
        self.refused(done, 1, "cannot write all of the output: Bad file descriptor")
        told = tokens.read_bytes()
        tokens.unlink()
        (self.work.path / "ids.bin.docs").unlink()
        self.assertEqual(run(command).returncode, 0)
        self.assertEqual(tokens.read_bytes(), told)

    def test_where_no_checkpoint_is_there_a_resume_says_one_thing_that_is_true(self):
        spec, out = self.work.spec({"steps": 3}), self.work.out("run")
        latest = out / "checkpoints" / "latest"
        latest.parent.mkdir(parents=True)
        latest.write_text("step-00000025\n")
        for args in ((), ("--resume",)):
            done = train(spec, out, *args)
            self.refused(done, 2, "checkpoints/latest names step-00000025, which is not there")
            self.assertNotIn("--resume", done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        latest.unlink()
        done = self.train_ok(spec, out, "--resume")
        self.assertIn("it starts from step 0", done.stderr)
        # A run that has ended, and whose checkpoints somebody removed.
        shutil.rmtree(out / "checkpoints")
        more = train(self.work.spec({"steps": 9}), out, "--resume")
        self.refused(more, 2, "there is nothing to go on from")
        said = json.loads((out / "summary.json").read_text())
        (out / "summary.json").write_text(json.dumps({**said, "steps": 2}))  # as of one that eps stop ended
        stopped = train(spec, out, "--resume")
        self.refused(stopped, 2, "there is nothing to go on from")
        self.assertNotIn("step 0", stopped.stderr)

    def test_a_checkpoints_path_is_one_for_who_asks_wherever_the_daemon_was_started(self):
        spec, out = self.work.spec(ENDLESS), self.work.out("run")
        process = start(train_command(spec, "run"), cwd=self.work.path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(self.end_if_running, process)
        wait_for_steps(process, out, 3)
        folder = self.work.path / "elsewhere"
        folder.mkdir()

        def ask(*command):
            done = run([str(EPS), *command, "--out", "../run"], cwd=folder)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout

        written = ask("checkpoint").strip()
        self.assertRegex(written, r"^\.\./run/checkpoints/step-\d{8}$")
        self.assertTrue((folder / written / "manifest.json").exists(), written)
        for status in (json.loads(ask("status", "--json"))["newest_checkpoint"],
                       ask("status").partition("newest checkpoint")[2].split()[0]):
            self.assertTrue(status.startswith("../run/checkpoints/step-"), status)
        ask("stop")
        self.assertEqual(process.wait(timeout=60 * TIME_SCALE), 0)
        moved = out.rename(self.work.path / "moved")
        self.assertTrue((moved / summary(moved)["newest_checkpoint"] / "manifest.json").exists())

    def test_a_run_that_fails_while_a_checkpoint_is_written_names_one_newest(self):
        spec = self.work.spec({"steps": 100, "checkpoint": {"every_steps": 2},
                               "optimizer": {"schedule": {"peak": 1e30, "final": 1e30, "warmup_steps": 0}}})
        out = self.work.out("run")
        done = train(spec, out)
        self.refused(done, 1, "not finite", "the run failed; its newest checkpoint is ")
        named = set(re.findall(r"newest checkpoint is \S*(step-\d{8})", done.stderr))
        self.assertEqual(named, {latest_checkpoint(out).name}, done.stderr)

    def test_a_diverged_run_fails_and_says_so(self):
        out = self.work.out("diverged")
        done = train(self.work.spec({"steps": 100, "optimizer": {"schedule": {"peak": 1e9, "final": 1e9}}}), out)
        self.refused(done, 1, "not finite", "peak")
        # Its worker was told, and looked for no other daemon.
        self.assertNotIn("worker_lost_daemon", (out / "logs" / "gpu_worker-1.log").read_text())
        self.assertNotIn("worker_lost", (out / "logs" / "eps_server.log").read_text())

    def test_a_run_that_diverges_keeps_a_checkpoint_from_before_and_does_one_step_more_when_it_is_resumed(self):
        out = self.work.out("diverged")
        spec = self.work.spec({"steps": 100, "checkpoint": {"every_steps": 1, "keep": 2},
                               "optimizer": {"schedule": {"peak": 1e9, "final": 1e9}}})

        def updates():  # that the weights of each checkpoint had
            manifests = [json.loads(path.read_text()) for path in out.glob("checkpoints/step-*/manifest.json")]
            return {manifest["step"] - manifest["skipped_steps"] for manifest in manifests}

        self.refused(train(spec, out), 1, "the gradient of the last 20 steps was not finite")
        done, left = committed_steps(out), updates()
        self.assertEqual(left, {max(left) - 1, max(left)})
        self.refused(train(spec, out, "--resume"), 1, "the gradient of the last 2")
        self.assertLessEqual(committed_steps(out), done + 1)
        self.assertEqual(updates(), left)

    def test_why_a_run_failed_stays_until_another_begins_in_its_folder(self):
        out = self.work.out("failed")
        diverges = {"steps": 100, "optimizer": {"schedule": {"peak": 1e9, "final": 1e9}}, "checkpoint": {"every_steps": 0}}
        self.assertEqual(train(self.work.spec(diverges), out).returncode, 1)
        failure = json.loads((out / "failure.json").read_text())
        self.assertEqual((set(failure), failure["diverged"]), ({"step", "failure", "diverged"}, True))
        self.assertRegex(failure["failure"], r"^step \d+: .* not finite")
        self.assertEqual((out / "failure.json").stat().st_mode & 0o777, 0o600)
        self.train_ok(self.work.spec({"steps": 3}), out)
        self.assertFalse((out / "failure.json").exists())

    def test_sample_gives_the_same_text_for_the_same_seed(self):
        out = self.work.out("run")
        self.train_ok(self.work.spec({"steps": 60, "checkpoint": {"every_steps": 0}}), out)
        command = [str(EPS), "sample", "--checkpoint", str(latest_checkpoint(out)), "--prompt", "and the", "--tokens",
                   "40", "--seed", "5"]
        first, again, other = (subprocess.run(words, capture_output=True, timeout=60 * TIME_SCALE)
                               for words in (command, command, command[:-1] + ["6"]))
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertEqual(first.stdout, again.stdout)
        self.assertTrue(first.stdout.startswith(b"and the"))
        self.assertEqual(len(first.stdout), len("and the") + 40 + len("\n"))
        self.assertNotEqual(first.stdout, other.stdout)

    def test_an_exported_folder_trains_on_and_comes_back_the_same(self):
        out = self.work.out("run")
        self.train_ok(self.work.spec(), out)
        exported, imported = self.work.out("exported"), self.work.out("imported")
        done = run([str(EPS), "export", "--checkpoint", str(latest_checkpoint(out)), "--out", str(exported)])
        self.assertEqual(done.returncode, 0, done.stderr)
        config = json.loads((exported / "config.json").read_text())
        self.assertEqual((config["model_type"], config["n_layer"], config["n_embd"]), ("gpt2", 3, 64))
        done = run([str(EPS), "import", "--from", str(exported), "--out", str(imported)])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((imported / "model.safetensors").read_bytes(), (exported / "model.safetensors").read_bytes())

    def test_an_export_into_the_runs_own_folder_is_refused(self):
        out = self.work.out("run")
        self.train_ok(self.work.spec({"steps": 1}), out)
        for checkpoint in (out, latest_checkpoint(out)):
            for place in (out / "model", latest_checkpoint(out) / "model"):
                done = run([str(EPS), "export", "--checkpoint", str(checkpoint), "--out", str(place)])
                self.refused(done, 2, f"{place}: lies in the run's folder, {out}")
                self.assertFalse(place.exists())

    def test_a_new_run_has_no_pictures_of_one_that_was_traced_there_before(self):
        out = self.work.out("run")
        out.mkdir()
        for name in ("trace.json", "timeline.svg"):
            (out / name).write_text("of a run that ended before its first checkpoint")
        self.train_ok(self.work.spec({"steps": 1}), out)
        self.assertTrue((out / "summary.json").exists())
        for name in ("trace.json", "timeline.svg"):
            self.assertFalse((out / name).exists(), name)

    def test_sample_says_so_when_its_worker_cannot_start(self):
        out = self.work.out("run")
        self.train_ok(self.work.spec({"steps": 2}), out)
        command = [str(EPS), "sample", "--checkpoint", str(out), "--prompt", "x", "--tokens", "3"]
        done = run([*command, "--device-memory", "1"], timeout=60)
        self.refused(done, 3, "needs at least")
        self.assertEqual(done.stdout, "")
