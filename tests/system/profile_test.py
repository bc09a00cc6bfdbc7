"""eps profile, and what is made from it: plans, predicted steps, swapped activations that change no bit."""

import json
import os
import signal
import subprocess
import xml.dom.minidom

from eps_run import BIN, EPS, TIME_SCALE, SystemTest, long, run, summary, train_command, wait_for_steps


class ProfileTest(SystemTest):
    def profile(self, spec, *args):
        path = self.work.path / "of this machine" / "profile.json"  # a folder that is not there
        done = run([str(EPS), "profile", "--run", str(spec), "--out", str(path), *map(str, args)])
        self.assertEqual(done.returncode, 0, done.stderr)
        return path, done

    def test_a_machine_is_measured_and_plans_are_made_from_it(self):
        spec = self.work.spec()
        path, done = self.profile(spec, "--threads", 1)
        for word in ("forward", "recompute", "backward", "update", str(path)):
            self.assertIn(word, done.stdout)
        self.assertRegex(done.stderr, r"\] +\d+% measuring \w+")
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
        # A worker takes none of another kind of device, as eps plan does not.
        other = self.work.path / "gpu.json"
        other.write_text(json.dumps({**profile, "device": "cuda:0"}))
        worker = [str(BIN / "gpu_worker"), "--connect", "127.0.0.1:1", "--reconnect-seconds", "0", "--profile"]
        self.refused(run([*worker, str(other)]), 2, f'{other}: device: "cuda:0"', "cpu")
        self.refused(run([*worker, str(path)]), 1, "no daemon was reached at 127.0.0.1:1")

    def test_what_is_kept_of_a_machine_is_found(self):
        spec = self.work.spec()
        env = {**os.environ, "XDG_CACHE_HOME": str(self.work.path / "cache")}

        def step(*args):
            done = run([str(EPS), "plan", "--run", str(spec), "--json", *args], env=env)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["step"]

        done = run([str(EPS), "profile", "--run", str(spec), "--threads", "1"], env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        kept = list((self.work.path / "cache" / "eps" / "profiles").iterdir())
        self.assertEqual(len(kept), 1)
        self.assertIn(f"kept in {kept[0]}", done.stdout)
        found = step("--threads", "1")
        self.assertEqual((found["profile_file"], found["exact"]), (str(kept[0]), True))
        of_one = ("--threads", "1")
        for other in ((*of_one, "--profile", "nominal"), (*of_one, "--device", "cuda"), ("--threads", "3")):
            self.assertEqual(step(*other)["profile"], "nominal")
        for profile, predicts in (((), True), (("--profile", "nominal"), False)):
            out = self.work.out("predicted" if predicts else "not-predicted")
            done = run(train_command(spec, out, "--threads", "1", *profile), env=env)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(summary(out)["step_seconds"]["predicted"] is not None, predicts)
        homeless = {name: value for name, value in env.items() if name not in ("XDG_CACHE_HOME", "HOME")}
        done = run([str(EPS), "profile", "--run", str(spec)], env=homeless)
        self.assertEqual(done.returncode, 2)
        self.assertIn("give --out FILE", done.stderr)

    def test_what_is_to_be_measured_or_written_and_cannot_be_is_bad_input(self):
        spec = self.work.spec()
        measure = [str(BIN / "gpu_worker"), "--threads", "1", "--measure"]
        self.refused(run([*measure, "none.json", "--profile", str(self.work.path / "p.json")]), 2, "none.json")
        self.refused(run([*measure, str(spec), "--set", "model.layer=1", "--profile", "p.json"]), 2, "model.layer")
        for place in (self.work.path / "no" / "folder.json", self.work.path):
            done = run([*measure, str(spec), "--profile", str(place)])
            self.refused(done, 2, "--profile: ", str(place.parent if place.suffix else place))
            self.assertNotIn("measuring", done.stderr)

    @long
    def test_a_long_run_on_a_gpu_is_measured_before_it_is_planned(self):
        spec, out = self.work.spec(), self.work.out("run")
        cache = self.work.path / "cache"
        env = {**os.environ, "XDG_CACHE_HOME": str(cache)}
        command = [str(self.emulated_eps()), "train", "--run", str(spec), "--quiet"]

        def begin(out, steps, *args, device="cuda"):
            return subprocess.Popen([*command, "--out", str(out), "--steps", str(steps), "--device", device, *args], env=env,
                                    text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)

        def end(process, code=130):
            _, told = process.communicate(timeout=60 * TIME_SCALE)
            self.assertEqual(process.returncode, code, told)
            return told

        def trained(out, *args, **kwargs):
            process = begin(out, 10**12, *args, **kwargs)
            wait_for_steps(process, out, 1)
            process.send_signal(signal.SIGINT)
            return end(process), (out / "logs" / "gpu_worker-1.log").read_text()

        def layers():
            kept, = (cache / "eps" / "profiles").iterdir()
            return [(layer["layer"], layer["shape"]["B"]) for layer in json.loads(kept.read_text())["layers"]]

        measuring = "measuring cuda with the layers of"
        self.assertNotIn(measuring, end(begin(self.work.out("short"), 2), code=0))
        for told, log in (trained(self.work.out("nominal"), "--profile", "nominal"),
                          trained(self.work.out("cpu"), device="cpu")):
            self.assertNotIn(measuring, told)
            self.assertIn("profile=nominal", log)
        self.assertFalse(cache.exists())

        # A signal meanwhile leaves nothing.
        process = begin(out, 10**12)
        self.assertIn(measuring, process.stderr.readline())
        process.send_signal(signal.SIGTERM)
        self.assertIn("before anything was started", end(process, code=143))
        self.assertFalse(out.exists())
        self.assertEqual(list((cache / "eps" / "profiles").iterdir()), [])

        told, log = trained(out)
        self.assertIn(measuring, told)
        self.assertNotIn("profile=nominal", log)
        first = layers()
        self.assertEqual(first, [("embedding", 2), ("block", 2), ("head", 2)])
        self.assertNotIn(measuring, trained(self.work.out("again"))[0])
        self.assertIn(measuring, trained(self.work.out("other"), "--set", "batch.micro_batch=3")[0])
        self.assertEqual(layers(), [("embedding", 3), ("block", 3), ("head", 3), *first])

        # What cannot be kept is not measured.
        env["XDG_CACHE_HOME"] = "/dev/null"
        self.assertNotIn(measuring, trained(self.work.out("unkept"))[0])

    def test_a_plan_is_explained_and_drawn(self):
        spec = self.work.spec()
        cap = self.plan(spec)["device"]["smallest_cap_bytes"]
        explained = self.plan(spec, "--device-memory", cap, "--explain")["explanation"]
        places = [b["kept"] + b["swapped"] + b["recomputed"] for b in explained["blocks"] if not b["depth_first"]]
        self.assertEqual(set(places), {4 * 2})
        self.assertEqual((explained["blocks"][0]["first"], explained["blocks"][-1]["last"]), ("h.0", "h.2"))
        self.assertLess(explained["seconds_with_one_more_gib_of_device_memory"], self.plan(
            spec, "--device-memory", cap)["step"]["predicted_seconds"])
        of_two = self.plan(spec, "--device-memory", cap, "--workers", 2)["step"]
        self.assertEqual(of_two["workers"], 2)
        self.assertLess(of_two["predicted_seconds"], self.plan(spec, "--device-memory", cap)["step"]["predicted_seconds"])
        self.assertEqual(of_two["group_members"], 0)
        grouped = ("--set", "relay.group_members=2", "--workers", 2)
        of_group = self.plan(spec, *grouped)["step"]
        self.assertEqual((of_group["workers"], of_group["group_members"]), (2, 2))
        timeline = self.work.path / "group.json"
        done = run([str(EPS), "plan", "--run", str(spec), *map(str, grouped), "--timeline", str(timeline)])
        self.assertIn("a step of 2 workers with a device each in a group of 2, by nominal figures: ", done.stdout)
        self.assertIn("exchange h.0", timeline.read_text())
        for flag in ("--timeline", "--cap-curve"):
            picture = self.work.path / "picture.svg"
            done = run([str(EPS), "plan", "--run", str(spec), "--device-memory", str(cap), flag, str(picture), "--explain"])
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("what would make a step shorter", done.stdout)
            xml.dom.minidom.parse(str(picture))

    def test_what_cannot_be_planned_or_written_is_said_before(self):
        spec = self.work.spec()
        folder = str(self.work.path)
        (self.work.path / "x.svg").mkdir()
        for command, args, word in (
                ("plan", ("--timeline", folder), f'--timeline: cannot replace "{folder}": it is a folder'),
                ("plan", ("--cap-curve", f"{folder}/x.svg"), f'--cap-curve: cannot replace "{folder}/x.svg": it is a folder'),
                ("plan", ("--cap-curve", "x.png"), "--cap-curve: must end in .svg"),
                ("plan", ("--timeline", ""), "--timeline"),
                ("plan", ("--cap-curve", ""), "--cap-curve"),
                ("plan", ("--workers", "5"), "--workers: 5, must be at most 4, as batch.virtual_nodes is"),
                ("profile", ("--out", folder), f'--out: cannot replace "{folder}": it is a folder')):
            done = run([str(EPS), command, "--run", str(spec), *args])
            self.assertEqual((done.returncode, done.stdout), (2, ""), args)
            self.assertIn(word, done.stderr)
            self.assertNotIn("measuring", done.stderr)

    def test_a_config_json_is_enough_for_a_plan(self):
        config = self.work.path / "config.json"
        config.write_text(json.dumps({
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
            "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
            "tie_word_embeddings": False}))
        done = run([str(EPS), "plan", "--model", str(config), "--set", "batch.micro_batch=2", "--json"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["tokens_per_step"], 2 * 4096)  # a longer context is cut
        done = run([str(EPS), "plan", "--model", str(config.parent), "--set", "model.context=128", "--json"])
        self.assertEqual(json.loads(done.stdout)["tokens_per_step"], 128)
        for args, word in ((["--model", str(self.work.path / "nothing")], "nothing/config.json"), ([], "--run"),
                           (["--model", str(config), "--run", str(self.work.spec())], "not both")):
            done = run([str(EPS), "plan", *args])
            self.assertEqual(done.returncode, 2, args)
            self.assertIn(word, done.stderr)

    def test_what_is_faster_in_a_profile_is_what_a_plan_does(self):
        """The same machine with copies that cost nothing and disturb nobody, then with copies that take for ever."""
        spec = self.work.spec()
        path, _ = self.profile(spec)
        cap = self.plan(spec)["device"]["smallest_cap_bytes"]
        for bytes_per_second, swaps in ((1e15, True), (1e3, False)):
            profile = json.loads(path.read_text())
            profile["handover_seconds"] = 0
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
        measured = path.read_text()
        profile = json.loads(measured)
        profile["sharing"]["in"]["beside_out"] = -1
        path.write_text(json.dumps(profile))
        for command in ("plan", "train"):
            out = ("--out", str(self.work.out("refused"))) if command == "train" else ()
            done = run([str(EPS), command, "--run", str(spec), "--profile", str(path), *out])
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("sharing.in.beside_out", done.stderr)
            self.assertIn(str(path), done.stderr)
        path.write_text(measured)
        done = run([str(EPS), "plan", "--run", str(spec), "--profile", str(path), "--device", "cuda"])
        self.assertEqual(done.returncode, 2)
        self.assertIn("device: \"cpu\"", done.stderr)
        done = run([str(EPS), "plan", "--run", str(spec), "--profile", str(self.work.path / "nowhere.json")])
        self.assertEqual(done.returncode, 2)
        self.assertIn("nowhere.json", done.stderr)
