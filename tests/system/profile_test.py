"""eps profile, and what is made from it: plans, predicted steps, swapped activations that change no bit."""

import json

from eps_run import EPS, SystemTest, run, summary


class ProfileTest(SystemTest):
    def profile(self, spec, *args):
        path = self.work.path / "of this machine" / "profile.json"  # a folder that is not there
        done = run([str(EPS), "profile", "--run", str(spec), "--out", str(path), *map(str, args)])
        self.assertEqual(done.returncode, 0, done.stderr)
        return path, done

    def plan(self, spec, *args):
        done = run([str(EPS), "plan", "--run", str(spec), *map(str, args), "--json"])
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_a_machine_is_measured_and_plans_are_made_from_it(self):
        spec = self.work.spec()
        path, done = self.profile(spec, "--threads", 1)
        for word in ("forward", "recompute", "backward", "update", str(path)):
            self.assertIn(word, done.stdout)
        profile = json.loads(path.read_text())
        self.assertEqual(profile["threads"], 1)
        self.assertEqual([layer["layer"] for layer in profile["layers"]], ["embedding", "block", "head"])
        step = self.plan(spec, "--profile", path)["step"]
        self.assertTrue(step["exact"])
        self.assertIn(step["bound"], ("compute", "in", "out", "update"))
        self.assertGreater(step["predicted_seconds"], 0)
        trace = self.work.path / "trace.json"
        self.plan(spec, "--profile", path, "--timeline", trace)
        events = json.loads(trace.read_text())["traceEvents"]
        names = {event["args"]["name"] for event in events if event["ph"] == "M" and "name" in event["args"]}
        self.assertLessEqual({"worker, predicted", "daemon, predicted", "compute", "in", "out", "updates"}, names)
        forwards = [event for event in events if event["name"] == "forward h.1"]
        self.assertEqual(len(forwards), 4 * 2)
        self.assertTrue(all(event["dur"] > 0 for event in forwards))
        nominal = self.plan(spec)["step"]
        self.assertEqual((nominal["profile"], nominal["exact"]), ("nominal", False))

    def test_what_is_faster_in_a_profile_is_what_a_plan_does(self):
        """The same machine with copies that cost nothing and disturb nobody, then with copies that take for ever."""
        spec = self.work.spec()
        path, _ = self.profile(spec)
        cap = self.plan(spec)["device"]["smallest_cap_bytes"]
        for bytes_per_second, swaps in ((1e15, True), (1e3, False)):
            profile = json.loads(path.read_text())
            profile["work_seconds"] = 0
            profile["sharing"] = {a: {b: 1 for b in row} for a, row in profile["sharing"].items()}
            profile["in_bytes_per_second"] = profile["out_bytes_per_second"] = bytes_per_second
            edited = self.work.path / "edited.json"
            edited.write_text(json.dumps(profile))
            plan = self.plan(spec, "--profile", edited, "--device-memory", cap, "--host-memory", "1GiB")
            self.assertEqual(plan["device"]["swapped_inner"] > 0, swaps)
            self.assertEqual(plan["device"]["recomputed_inner"] == 0, swaps)

    def test_what_is_swapped_changes_no_bit_and_takes_what_the_plan_says(self):
        spec = self.work.spec()
        path, _ = self.profile(spec)
        plain = self.work.out("plain")
        self.train_ok(spec, plain)
        cap = self.plan(spec)["device"]["smallest_cap_bytes"]
        for host_memory in ("1500KiB", "1GiB"):
            flags = ("--profile", path, "--device-memory", cap + 300_000, "--host-memory", host_memory)
            out = self.work.out(f"swapped-{host_memory}")
            self.train_ok(spec, out, *flags)
            self.assertEqual(summary(out)["loss"], summary(plain)["loss"])
            self.assertEqual(summary(out)["device_peak_bytes"], self.plan(spec, *flags)["device"]["arena_bytes"])

    def test_eps_verify_compares_the_plans_that_it_runs(self):
        spec = self.work.spec()
        path, _ = self.profile(spec)
        boundaries = self.plan(spec, "--set", "relay.boundaries=HOST")["worker_host"]["boundary_bytes"]
        done = run([str(EPS), "verify", "--run", str(spec), "--profile", str(path), "--host-memory", str(boundaries // 2),
                    "--only", "relay,swap", "--json"])
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}")
        results = {variant["name"].split(" (")[0]: variant["result"] for variant in json.loads(done.stdout)["variants"]}
        self.assertEqual(results["relayed, smallest cap"], "same")
        self.assertEqual(results["everything swapped"], "same")

    def test_a_profile_that_is_none_is_refused_by_its_field(self):
        spec = self.work.spec()
        path, _ = self.profile(spec)
        profile = json.loads(path.read_text())
        profile["sharing"]["in"]["beside_out"] = -1
        path.write_text(json.dumps(profile))
        for command in ("plan", "train"):
            out = ("--out", str(self.work.out("refused"))) if command == "train" else ()
            done = run([str(EPS), command, "--run", str(spec), "--profile", str(path), *out])
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("sharing.in.beside_out", done.stderr)
            self.assertIn(str(path), done.stderr)
        self.profile(spec)
        done = run([str(EPS), "plan", "--run", str(spec), "--profile", str(path), "--device", "cuda"])
        self.assertEqual(done.returncode, 2)
        self.assertIn("device: \"cpu\"", done.stderr)
        done = run([str(EPS), "plan", "--run", str(spec), "--profile", str(self.work.path / "nowhere.json")])
        self.assertEqual(done.returncode, 2)
        self.assertIn("nowhere.json", done.stderr)
