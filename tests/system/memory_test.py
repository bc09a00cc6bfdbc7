"""Invariant 3: the arena's high-water mark is the plan's; the smallest cap depends on neither depth nor micro-batches."""

import json

import loading
from eps_run import EPS, SystemTest, measures_the_process, needs_at_least, run, start_train, summary, train
from resident_memory import resident_peaks


class DeviceMemoryTest(SystemTest):
    def smallest_cap(self, spec):
        return needs_at_least(train(spec, self.work.out("refused"), "--device-memory", 1024).stderr)

    def test_smallest_cap_and_peak_are_the_same_for_4_to_384_layers_and_1_to_64_micro_batches(self):
        caps, peaks = {}, {}
        for layers, micro_batches in ((4, 1), (4, 64), (24, 16), (96, 4), (384, 1)):
            changes = {"model": {"layers": layers}, "batch": {"micro_batches": micro_batches}, "steps": 2}
            spec = self.work.spec(changes, name=f"{layers}-{micro_batches}.json")
            key = (layers, micro_batches)
            caps[key] = self.smallest_cap(spec)
            out = self.work.out(f"{layers}-{micro_batches}")
            self.train_ok(spec, out, "--device-memory", caps[key])
            peaks[key] = summary(out)["device_peak_bytes"]
        self.assertEqual(len(set(caps.values())), 1, caps)
        self.assertEqual(peaks, caps)

    def test_one_byte_less_than_the_smallest_cap_is_refused_and_nothing_is_started(self):
        spec = self.work.spec({"steps": 1})
        smallest = self.smallest_cap(spec)
        out = self.work.out("run")
        self.refused(train(spec, out, "--device-memory", smallest - 1), 3, f"needs at least {smallest} bytes")
        self.assertFalse(out.exists(), "a refused run left a folder")

    def test_the_peak_is_the_plan_s_figure_at_any_cap(self):
        spec = self.work.spec({"steps": 2})
        smallest = self.smallest_cap(spec)
        for cap in (smallest, smallest + 100_000, smallest * 2, smallest * 8):
            plan = run([str(EPS), "plan", "--run", str(spec), "--device-memory", str(cap), "--json"])
            self.assertEqual(plan.returncode, 0, plan.stderr)
            planned = json.loads(plan.stdout)["device"]["arena_bytes"]
            out = self.work.out(f"run-{cap}")
            self.train_ok(spec, out, "--device-memory", cap)
            self.assertEqual(summary(out)["device_peak_bytes"], planned)
            self.assertEqual(summary(out)["device_cap_bytes"], cap)
            self.assertLessEqual(planned, cap)

    def test_the_peak_of_a_group_s_members_is_the_plan_s_figure_too(self):
        # Blobs of several chunks, so that each member has a part.
        alone = {"model": {"d_model": 160, "vocab": 5000}, "batch": {"virtual_nodes": 4}, "steps": 2}
        smallest_alone = self.smallest_cap(self.work.spec(alone, name="alone.json"))
        spec = self.work.spec({**alone, "relay": {"group_members": 2}})
        smallest = self.smallest_cap(spec)
        self.assertGreater(smallest, smallest_alone)
        for cap in (smallest, smallest * 2):
            plan = json.loads(run([str(EPS), "plan", "--run", str(spec), "--device-memory", str(cap), "--json"]).stdout)
            self.assertEqual(plan["device"]["smallest_cap_bytes"], smallest)
            self.assertTrue([buffer for buffer in plan["device"]["buffers"] if buffer["what"] == "group"])
            out = self.work.out(f"run-{cap}")
            self.train_ok(spec, out, "--workers", 2, "--device-memory", cap)
            self.assertIn("group_formed", (out / "logs" / "eps_server.log").read_text())
            self.assertEqual(summary(out)["device_peak_bytes"], plan["device"]["arena_bytes"])


class HostGrowthTest(SystemTest):
    @measures_the_process
    def test_each_layer_takes_as_much_of_the_host_as_the_plan_says(self):
        # So much that what differs from process to process, a huge page or a stack, some 2 MiB, does not count.
        depths = (4, 28)
        planned, measured = [], []
        for layers in depths:
            spec = self.work.spec({
                "model": {"layers": layers, "d_model": 256, "heads": 4, "context": 64},
                "batch": {"virtual_nodes": 1, "micro_batches": 8, "micro_batch": 8},
                "relay": {"inner": "RECOMPUTE", "boundaries": "HOST"}, "steps": 2}, name=f"{layers}.json")
            plan = json.loads(run([str(EPS), "plan", "--run", str(spec), "--json"]).stdout)
            planned.append({"daemon": plan["host"]["total_bytes"],
                            "worker": plan["worker_host"]["boundary_bytes"] + plan["worker_host"]["pass_bytes"]})
            cap = plan["device"]["smallest_cap_bytes"]
            process = start_train(spec, self.work.out(str(layers)), "--device-memory", cap)
            peaks = resident_peaks(process, ("eps_server", "gpu_worker"))
            self.assertEqual(process.returncode, 0, process.communicate())
            # Shared pages, the weights and the inbox, are the daemon's; what is a worker's own is the arena and the host's stash.
            measured.append({"daemon": peaks["eps_server"]["RssAnon"] + peaks["eps_server"]["RssShmem"],
                             "worker": peaks["gpu_worker"]["RssAnon"]})
        for who in ("daemon", "worker"):
            a_layer = [(deep[who] - shallow[who]) / (depths[1] - depths[0]) for shallow, deep in (planned, measured)]
            self.assertAlmostEqual(a_layer[1] / a_layer[0], 1, delta=0.05, msg=f"{who}: {a_layer} bytes a layer")

    @measures_the_process
    def test_the_steps_of_a_pass_take_no_more_than_the_plan_says(self):
        planned, measured = [], []
        for layers in (32, 128):
            spec = self.work.spec({"model": {"layers": layers},
                                   "batch": {"virtual_nodes": 1, "micro_batches": 16, "micro_batch": 1},
                                   "relay": {"inner": "RECOMPUTE", "boundaries": "HOST"}, "steps": 2},
                                  name=f"{layers}.json")
            plan = json.loads(run([str(EPS), "plan", "--run", str(spec), "--json"]).stdout)
            planned.append(plan["worker_host"])
            cap = plan["device"]["smallest_cap_bytes"]
            process = start_train(spec, self.work.out(str(layers)), "--device-memory", cap)
            measured.append(resident_peaks(process, ("gpu_worker",))["gpu_worker"]["RssAnon"])
            self.assertEqual(process.returncode, 0, process.communicate())
        steps = planned[1]["pass_bytes"] - planned[0]["pass_bytes"]
        boundaries = planned[1]["boundary_bytes"] - planned[0]["boundary_bytes"]
        self.assertGreater(steps, boundaries)
        grown = measured[1] - measured[0] - boundaries
        self.assertLessEqual(grown, 1.05 * steps)
        self.assertGreater(grown, 0.7 * steps)


class DaemonMemoryTest(SystemTest):
    @measures_the_process
    def test_resident_memory_is_the_state_the_window_and_a_constant(self):
        spec = self.work.spec({
            "model": {"layers": 10, "d_model": 640, "heads": 10, "context": 16},
            "batch": {"virtual_nodes": 2, "micro_batches": 1, "micro_batch": 1},
            "optimizer": {"clip": None}, "steps": 8, "checkpoint": {"every_steps": 4}})
        plan = json.loads(run([str(EPS), "plan", "--run", str(spec), "--json"]).stdout)["host"]
        at_rest = 1.05 * (plan["model_state_bytes"] + plan["contribution_window_bytes"] + plan["daemon_constant_bytes"])
        bound = at_rest + plan["checkpoint_buffer_bytes"]
        out = self.work.out("run")
        process = start_train(spec, out, "--workers", 2)
        peak = resident_peaks(process, ("eps_server",))["eps_server"]["VmHWM"]
        self.assertEqual(process.returncode, 0, process.communicate())
        self.assertEqual(summary(out)["model_state_bytes"], plan["model_state_bytes"])
        self.assertGreater(peak, 0.9 * plan["model_state_bytes"])
        self.assertLessEqual(peak, bound, plan)


class LoadingTest(SystemTest):
    @measures_the_process
    def test_a_folder_is_loaded_within_the_planned_state(self):
        # `bench/run load` does the same with 2 GB.
        work = self.work.out("load")
        work.mkdir()
        loading.make_folder(self.work.out("hf"), 300_000_000)
        loaded = loading.load(self.work.out("hf"), work)
        state, parameters = loaded.planned["model_state_bytes"], loaded.tensor_bytes // 2
        self.assertLessEqual(loaded.peak_bytes, 1.03 * state, loaded)
        # Of the state it touches one version of the wire form, and the rest of the masters: no second copy beside them.
        self.assertGreaterEqual(loaded.peak_bytes, 4 * parameters, loaded)
        self.assertLessEqual(loaded.peak_bytes, 1.03 * 4 * parameters + loaded.planned["daemon_constant_bytes"], loaded)
        # The files' pages do not stay: of 300 MB there are a few MiB at a time, beside the program.
        self.assertLessEqual(loaded.peak_file_bytes, 64 << 20, loaded)
