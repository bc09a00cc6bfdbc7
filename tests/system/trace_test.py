"""eps train --trace: what every process did and waited for, on one clock; eps trace; both times in summary.json."""

import json
import xml.dom.minidom

from eps_run import BIN, EPS, SystemTest, model_hash, run, summary, train


class TraceTest(SystemTest):
    def events(self, path):
        """Of each track, by (process, thread): (name, begin, end, detail, copied bytes) in seconds."""
        trace = json.loads(path.read_text())["traceEvents"]
        processes = {e["pid"]: e["args"]["name"] for e in trace if e["name"] == "process_name"}
        threads = {e["tid"]: (processes[e["pid"]], e["args"]["name"]) for e in trace if e["name"] == "thread_name"}
        tracks = {place: [] for place in threads.values()}
        for e in trace:
            if e["ph"] == "X":
                args = e.get("args", {})
                tracks[threads[e["tid"]]].append((e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6,
                                                  args.get("detail", ""), args.get("copied_bytes", 0)))
        return tracks

    def test_a_trace_has_every_micro_batch_every_chunk_and_every_step_on_one_clock(self):
        out = self.work.out("run")
        done = train(self.work.spec({"steps": 4}), out, "--trace", "--workers", 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        tracks = self.events(out / "trace.json")
        self.assertLessEqual({(f"worker {w}", s) for w in (1, 2) for s in ("steps", "compute", "in", "out")} |
                             {("daemon", "steps")}, set(tracks))
        computed = [e for w in (1, 2) for e in tracks[(f"worker {w}", "compute")]]
        # 4 steps of 4 vnodes of 2 micro-batches.
        for title in ("forward h.0", "forward h.2", "backward h.0", "backward h.2"):
            self.assertEqual(len([e for e in computed if e[0] == title]), 4 * 4 * 2, title)
        self.assertTrue(all(e[3] for e in computed))  # vnode and micro-batch, or what a wait was for
        transfers = [e for w in (1, 2) for s in ("in", "out") for e in tracks[(f"worker {w}", s)]]
        for title in ("pull h.0", "push h.0", "store_record head"):
            self.assertTrue([e for e in transfers if e[0] == title], title)
        block = 12 * 64 * 64 + 13 * 64  # parameters; in bf16, and a flag of the one vnode, which is finite
        self.assertEqual({e[4] for e in transfers if e[0] == "push h.0"}, {2 * block + 4})
        self.assertEqual({e[4] for e in transfers if e[0].startswith("wait")}, {0})
        # Of each worker and stream one after the other, but for the version that a pull waits for, and the room that a push does.
        for (_, thread), events in tracks.items():
            if thread in ("compute", "out"):
                events = [event for event in events if event[0] != "wait: room"]
                for before, after in zip(events, events[1:]):
                    self.assertLessEqual(before[2], after[1] + 1e-6, (before, after))
        updates = [e for (process, thread), events in tracks.items() for e in events
                   if process == "daemon" and thread.startswith("optimizer")]
        self.assertEqual(len([e for e in updates if e[0] == "update h.1"]), 4)
        # One clock: an update of a step begins once its gradient has been pushed, and not a whole step later.
        steps = [e for e in tracks[("daemon", "steps")]]
        self.assertEqual([e[0] for e in steps], [f"step {s}" for s in range(4)])
        pushed = sorted(e[2] for e in transfers if e[0] == "push h.1")
        updated = sorted(e[1] for e in updates if e[0] == "update h.1")
        self.assertGreater(updated[0], pushed[0])
        self.assertLess(updated[0], steps[0][2])
        xml.dom.minidom.parse(str(out / "timeline.svg"))
        # The picture can be made again, of what is left.
        done = run([str(EPS), "trace", str(out / "trace.json"), "--out", str(out / "again.svg")])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((out / "again.svg").read_bytes(), (out / "timeline.svg").read_bytes())
        self.assertFalse((out / "trace").exists())
        self.assertIsNone(summary(out)["step_seconds"]["predicted"])  # nothing was measured, and there are two workers
        self.assertGreater(summary(out)["step_seconds"]["median"], 0)

    def test_rows_that_no_token_reads_are_updated_before_the_embeddings_gradient_comes(self):
        out = self.work.out("run")
        done = train(self.work.spec({"steps": 4, "model": {"layers": 24}, "optimizer": {"clip": None},
                                     "batch": {"virtual_nodes": 1, "micro_batches": 4, "micro_batch": 1}}), out, "--trace")
        self.assertEqual(done.returncode, 0, done.stderr)
        tracks = self.events(out / "trace.json")
        events = [e for (process, _), events in tracks.items() if process == "daemon" for e in events]
        early = sorted(e[2] for e in events if e[0] == "update unread rows of wte")
        rest = sorted(e[1] for e in events if e[0] == "update wte")
        pushed = sorted(e[2] for e in tracks[("worker 1", "out")] if e[0] == "push embedding")
        self.assertEqual((len(pushed), len(rest)), (4, 4))
        # Not of each step: what has not begun when the whole gradient comes is updated with it.
        begun = [0, *rest]  # a step's updates come behind those of the step before
        self.assertTrue(any(begin < update < push for begin, push in zip(begun, pushed) for update in early), (early, pushed))

    def test_a_trace_changes_no_bit(self):
        spec = self.work.spec({"steps": 3})
        for out, args in (("traced", ["--trace"]), ("plain", [])):
            self.assertEqual(train(spec, self.work.out(out), *args).returncode, 0)
        self.assertEqual(model_hash(self.work.out("traced")), model_hash(self.work.out("plain")))

    def test_with_a_measured_profile_the_prediction_stands_beside_what_was_measured(self):
        spec, out = self.work.spec({"steps": 4}), self.work.out("run")
        profile = self.work.path / "profile.json"
        done = run([str(EPS), "profile", "--run", str(spec), "--out", str(profile)])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(train(spec, out, "--trace", "--profile", profile).returncode, 0)
        seconds = summary(out)["step_seconds"]
        self.assertGreater(seconds["predicted"], 0)
        tracks = self.events(out / "trace.json")
        predicted = tracks[("worker, predicted", "compute")]
        self.assertEqual(len([e for e in predicted if e[0] == "forward h.0"]), 4 * 2)
        # It begins where a measured step begins.
        first = min(e[1] for e in predicted)
        self.assertLess(min(abs(first - e[1]) for e in tracks[("worker 1", "steps")]), 1.0)
        self.assertIn("predicted below", (out / "timeline.svg").read_text())

    def test_a_long_step_alone_is_drawn_and_no_part_of_one_is_taken_for_its_prediction(self):
        spec = self.work.spec({"steps": 1, "model": {"layers": 1, "context": 8},
                               "batch": {"virtual_nodes": 1, "micro_batches": 3000, "micro_batch": 1}})
        profile, out, planned = self.work.path / "profile.json", self.work.out("run"), self.work.path / "plan.svg"
        done = run([str(EPS), "profile", "--run", str(spec), "--out", str(profile)])
        self.assertEqual(done.returncode, 0, done.stderr)
        done = run([str(EPS), "plan", "--run", str(spec), "--profile", str(profile), "--timeline", str(planned)])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(planned.read_text(), r"; drawn: 1 of 1\.\d+ parts that are alike")
        done = train(spec, out, "--trace", "--profile", profile)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("trace:", done.stderr)
        self.assertGreater(summary(out)["step_seconds"]["predicted"], 0)
        tracks = self.events(out / "trace.json")
        self.assertEqual([e[0] for e in tracks[("worker 1", "steps")]], ["step 0"])
        self.assertFalse([track for track in tracks if "predicted" in track[0]])
        self.assertIn("step 0, which took the median time", (out / "timeline.svg").read_text())

    def test_without_a_whole_step_it_is_said_that_there_is_no_picture(self):
        none = self.work.path / "worker.json"
        none.write_text('[\n{"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"worker 1"}}\n]\n')
        done = run([str(EPS), "trace", str(none), "--out", str(self.work.path / "t.svg")])
        self.assertEqual(done.returncode, 2)
        self.assertIn("has ended no step that could be drawn", done.stderr)

    def test_what_is_no_trace_is_refused_by_file_and_line(self):
        bad = self.work.path / "bad.json"
        bad.write_text("[\n{}\n")
        done = run([str(EPS), "trace", str(bad), "--out", str(self.work.path / "t.json")])
        self.assertEqual(done.returncode, 2)
        self.assertIn("bad.json: line 2", done.stderr)
        self.assertFalse((self.work.path / "t.json").exists())
        done = run([str(BIN / "eps_server"), "--run", str(self.work.spec()), "--out", str(self.work.out("run")),
                    "--trace", "/nowhere/trace.json"])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("/nowhere/trace.json", done.stderr)
