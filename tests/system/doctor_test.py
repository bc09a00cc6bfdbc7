"""eps doctor: what it says of this machine and of a run, and how it ends."""

import json

from eps_run import EPS, SystemTest, run


class DoctorTest(SystemTest):
    def doctor(self, *args):
        return run([str(EPS), "doctor", "--out", str(self.work.out("run")), *map(str, args)])

    def findings(self, done):
        return {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}

    def test_every_check_is_there_and_says_what_to_do(self):
        done = self.doctor("--run", self.work.spec(), "--json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = self.findings(done)
        for check in ("cpu", "cores", "numa", "memory", "memory limit", "thp", "memlock", "threads", "open files",
                      "disk", "disk speed", "memory speed", "nvidia driver", "cublas", "cudnn", "nccl", "cuda device",
                      "run: data", "run: memory", "run: disk"):
            self.assertIn(check, found)
            self.assertIn(found[check]["verdict"], ("OK", "NOTE"))
        if found["cuda device"]["verdict"] == "NOTE":
            self.assertRegex(found["cuda device"]["found"], "NVIDIA driver|CUDA toolkit|cuda:0")
        self.assertFalse(self.work.out("run").exists(), "it made the folder")

    def test_a_run_that_does_not_fit_is_a_problem(self):
        spec = self.work.spec({"model": {"layers": 4096, "d_model": 16384, "heads": 64}})
        done = self.doctor("--run", spec, "--no-measuring", "--json")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        for check in ("run: memory", "run: disk"):
            self.assertEqual(self.findings(done)[check]["verdict"], "PROBLEM")
        text = self.doctor("--run", spec, "--no-measuring")
        self.assertEqual(text.returncode, 1)
        self.assertRegex(text.stdout, "[23] of these would stop a run")  # the third: half of the memory is no cap for it

    def test_a_run_without_its_data_is_a_problem(self):
        done = self.doctor("--run", self.work.spec({"data": {"path": "no-such-text"}}), "--json", "--no-measuring")
        self.assertEqual(done.returncode, 1)
        found = self.findings(done)["run: data"]
        self.assertEqual(found["verdict"], "PROBLEM")
        self.assertIn("no-such-text", found["found"])
        self.assertIn("data.path", found["mend"])

    def test_a_cap_that_is_too_small_is_a_problem(self):
        done = self.doctor("--run", self.work.spec(), "--device-memory", "1KiB", "--no-measuring", "--json")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("needs at least", self.findings(done)["run: device"]["found"])

    def test_of_a_gpu_it_counts_what_its_worker_would_take(self):
        args = ("--run", self.work.spec(), "--no-measuring", "--json", "--device", "cuda:0")
        unknown = self.findings(self.doctor(*args))["run: device"]
        self.assertEqual(unknown["verdict"], "NOTE")
        self.assertIn("--device-memory", unknown["mend"])
        self.assertNotIn("run: device", self.findings(self.doctor(*args, "--device-memory", "64MiB")))
        self.refused(self.doctor("--device-memory", "1KiB", "--no-measuring"), 2, "--run")

    def test_a_gpu_that_is_asked_for_and_does_not_start_is_a_problem(self):
        args = ("--run", self.work.spec(), "--no-measuring", "--json", "--device-memory", "64MiB", "--device")
        done = self.doctor(*args, "cuda:4095")  # no machine has so many
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(self.findings(done)["cuda device"]["verdict"], "PROBLEM")
        done = self.doctor(*args, "cpu")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def small_disk(self, megabytes):
        disk = self.work.path / "disk"
        disk.mkdir()
        made = run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "eps-test", str(disk)])
        if made.returncode != 0:
            self.skipTest(f"mounting is not allowed here: {made.stderr.strip()}")
        self.addCleanup(run, ["umount", "--lazy", str(disk)])
        return disk

    def test_a_small_disk_is_not_filled_to_be_measured(self):
        disk = self.small_disk(100)
        done = run([str(EPS), "doctor", "--out", str(disk / "run"), "--json"])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = self.findings(done)["disk speed"]
        self.assertEqual(found["verdict"], "NOTE")
        self.assertIn("not measured", found["found"])
        self.assertNotIn("--out", found["mend"])
        self.assertEqual(list(disk.iterdir()), [])

    def test_a_disk_that_is_read_only_is_a_problem_measured_or_not(self):
        disk = self.small_disk(1)
        self.assertEqual(run(["mount", "-o", "remount,ro", str(disk)]).returncode, 0)
        for args in ((), ("--no-measuring",)):
            done = run([str(EPS), "doctor", "--out", str(disk / "run"), "--json", *args])
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            found = self.findings(done)["disk"]
            self.assertEqual(found["verdict"], "PROBLEM")
            self.assertIn("Read-only file system", found["found"])
            self.assertIn("--out DIR", found["mend"])

    def test_a_run_spec_that_is_wrong_is_bad_input(self):
        self.refused(self.doctor("--run", self.work.spec({"steps": -1}), "--no-measuring"), 2, "steps")
        self.refused(self.doctor("--run", self.work.out("none.json"), "--no-measuring"), 2, "none.json")
