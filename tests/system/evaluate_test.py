"""eps evaluate: how a checkpoint's model does, the very values that its run has found or would have, and no trace of it."""

import json
import os
import signal
import time

import byte_level_tokenizer
from eps_run import (BIN, EPS, TIME_SCALE, ByHandTest, alive, children, endpoints, latest_checkpoint, needs_at_least, run,
                     sample_text, start)

HELD_OUT = {"evaluation": {"held_out": 0.1, "every_steps": 6, "at_start": True}, "checkpoint": {"every_steps": 6}}


def evaluations(out):
    return [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]


def without_time(evaluation):
    return {key: evaluation[key] for key in ("step", "loss", "perplexity", "accuracy", "tokens") if key in evaluation}


class EvaluateTest(ByHandTest):
    def setUp(self):
        super().setUp()
        self.temporary = self.work.path / "tmp"
        self.temporary.mkdir()
        self.environment = {**os.environ, "TMPDIR": str(self.temporary)}
        (self.work.path / "held.txt").write_bytes(sample_text(3000)[::-1])

    def command(self, checkpoint, *args):
        return [str(EPS), "evaluate", "--checkpoint", str(checkpoint), *map(str, args)]

    def ask(self, checkpoint, *args, **kwargs):
        return run(self.command(checkpoint, *args), env=self.environment, **kwargs)

    def evaluate(self, checkpoint, *args, **kwargs):
        done = self.ask(checkpoint, "--json", *args, **kwargs)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(list(self.temporary.iterdir()), [])
        return json.loads(done.stdout)

    def trained(self, changes=None, name="run"):
        out = self.work.out(name)
        self.train_ok(self.work.spec({**HELD_OUT, **(changes or {})}, name=f"{name}.json"), out)
        return out

    def exported(self, out, name="exported"):
        folder = self.work.out(name)
        done = run([str(EPS), "export", "--checkpoint", str(out), "--out", str(folder)])
        self.assertEqual(done.returncode, 0, done.stderr)
        return folder

    def test_it_finds_what_the_run_found_for_any_checkpoint_workers_and_plan(self):
        out = self.trained({"model": {"dropout": 0.1}})
        first, middle, last = evaluations(out)
        self.assertEqual([line["step"] for line in (first, middle, last)], [0, 6, 12])
        self.assertGreater(first["loss"], middle["loss"])
        found = self.evaluate(out)
        self.assertEqual(without_time(found), without_time(last))
        self.assertEqual(found["checkpoint"], str(latest_checkpoint(out)))
        self.assertEqual((found["data"], found["held_out"]), ([str(self.work.path / "text.txt")], 0.1))
        step_6 = out / "checkpoints" / "step-00000006"
        for args in ((), ("--workers", 2), ("--set", "transport=GRPC"), ("--set", "relay.weight_slots=1"),
                     ("--workers", 2, "--set", "relay.group_members=2"), ("--set", "relay.resident=true")):
            self.assertEqual(without_time(self.evaluate(step_6, *args)), without_time(middle), args)
        told = self.ask(step_6)
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertIn(f"loss        {middle['loss']:.6g} nats a token", told.stdout)
        self.assertIn(f"accuracy    {100 * middle['accuracy']:.2f}% of {middle['tokens']} tokens", told.stdout)

    def test_another_file_and_a_part_of_it_without_the_data_of_the_training(self):
        out, kept_back = self.trained({"evaluation": None}), self.trained(name="kept-back")
        reference = self.trained({"evaluation": {"path": "held.txt", "every_steps": 12}}, "reference")
        (self.work.path / "text.txt").unlink()
        found = self.evaluate(out, "--data", "held.txt", cwd=self.work.path)
        self.assertEqual(without_time(found), without_time(evaluations(reference)[0]))
        self.assertEqual(found["data"], [str(self.work.path / "held.txt")])
        part = self.evaluate(out, "--data", self.work.path / "held.txt", "--samples", 5)
        self.assertEqual(part["tokens"], 5 * 32)
        self.refused(self.ask(kept_back), 2, "data.path", "text.txt")
        moved = self.work.path / "moved.txt"
        moved.write_bytes(sample_text())
        at = ("--set", f"data.path={moved.name}")
        self.assertEqual(without_time(self.evaluate(kept_back, *at, cwd=self.work.path)),
                         without_time(evaluations(kept_back)[-1]))
        moved.write_bytes(sample_text()[:-1])
        self.refused(self.ask(kept_back, *at, cwd=self.work.path), 2, f"{moved} is not the file that", "say where it is")

    def test_of_several_sources_all_are_named_and_lines_that_are_left_out_are_told(self):
        lines = "".join(json.dumps({"text": f"line {i} " * 9}) + "\n" for i in range(60))
        (self.work.path / "a.jsonl").write_text(lines + "no JSON\n" * 3)
        out = self.trained({"data": {"path": None, "tokenizer": "BYTES", "bad_lines": "SKIP",
                                     "sources": [{"path": "a.jsonl"}, {"path": "text.txt"}]}})
        done = self.ask(out, "--json")
        found = json.loads(done.stdout)
        self.assertEqual(without_time(found), without_time(evaluations(out)[-1]))
        self.assertEqual(found["data"], [str(self.work.path / name) for name in ("a.jsonl", "text.txt")])
        self.assertEqual(done.stderr.count(" WARNING data_line_skipped "), 3)
        for name in ("a.jsonl", "held.txt"):
            self.assertEqual(self.evaluate(out, "--data", self.work.path / name)["data"], [str(self.work.path / name)])

    def test_a_folder_of_the_same_weights_does_as_well(self):
        """In the run's own precision and micro-batches: else within rounding."""
        vocab = byte_level_tokenizer.write(self.work.path)
        changes = {"model": {"vocab": vocab}, "data": {"tokenizer": "MODEL", "tokenizer_path": "."},
                   "evaluation": {"path": "held.txt", "every_steps": 12}}
        out = self.trained(changes)
        expected = without_time(evaluations(out)[0])
        self.assertEqual(without_time(self.evaluate(out)), expected)
        folder, held = self.exported(out), ("--data", self.work.path / "held.txt")
        batch = json.loads((self.work.path / "run.json").read_text())["batch"]
        same = [word for field, value in batch.items() for word in ("--set", f"batch.{field}={value}")]
        self.assertEqual(without_time(self.evaluate(folder, *held, *same)), {**expected, "step": 0})
        exact = self.evaluate(folder, *held, "--set", "precision.wire=FP32")
        self.assertAlmostEqual(exact["loss"], expected["loss"], delta=0.02)
        self.assertEqual(exact["tokens"], expected["tokens"])

    def test_a_model_that_trained_a_part_of_itself_is_evaluated_as_it_is(self):
        out = self.trained({"model": {"freeze": ["*", "!transformer.h.1.*"]}, "depth": {"drop": {"share": 0.5}}})
        self.assertEqual(without_time(self.evaluate(out)), without_time(evaluations(out)[-1]))

    def test_bert_predicts_masked_tokens_and_tells_classes_apart(self):
        model = {"family": "BERT", "layers": 2, "d_model": 32, "heads": 2, "d_ff": 64, "context": 32}
        masked = self.trained({"model": {**model, "vocab": 257}, "data": {"mask": {"token": 256}}}, "masked")
        self.assertEqual(without_time(self.evaluate(masked)), without_time(evaluations(masked)[-1]))
        rows = [f"{'many' if i % 3 else 'few'}\t{'word ' * (3 if i % 3 else 1)}{i}\n" for i in range(60)]
        (self.work.path / "rows.tsv").write_text("label\tsentence\n" + "".join(rows))
        classes = self.trained({"model": {**model, "vocab": 256, "classes": 2}, "data": {"path": "rows.tsv"}}, "classes")
        found = self.evaluate(classes, "--workers", 2)
        self.assertEqual(without_time(found), without_time(evaluations(classes)[-1]))
        self.assertNotIn("perplexity", found)
        # Other rows, of which the first label is the second class: names count, and not their order.
        (self.work.path / "more.tsv").write_text("label\tsentence\n" + "".join(rows[1:30]))
        of_run, of_folder = (self.evaluate(folder, "--data", self.work.path / "more.tsv", "--set", "data.tokenizer=BYTES")
                             for folder in (classes, self.exported(classes)))
        self.assertEqual((of_run["tokens"], of_folder["tokens"]), (29, 29))
        self.assertAlmostEqual(of_run["loss"], of_folder["loss"], delta=0.02)
        (self.work.path / "other.tsv").write_text("label\tsentence\nnone\ta\nfew\tb\n")
        self.refused(self.ask(classes, "--data", self.work.path / "other.tsv"), 2, "none", "few, many")
        told = self.ask(classes)
        self.assertIn(" nats a sample", told.stdout)

    def test_bad_input_is_refused_by_name_and_leaves_nothing(self):
        out = self.trained({"evaluation": None})
        held = self.work.path / "held.txt"
        (self.work.path / "held.jsonl").write_text('{"text": "a"}\n')
        (self.work.path / "short.txt").write_text("a")
        full = self.work.path / "full"
        full.mkdir()
        (full / "file").touch()
        for code, args, *words in (
                (2, (out,), "evaluation.path: missing", "--data FILE"),
                (2, (self.work.out("none"), "--data", held), "none"),
                (2, (out, "--data", self.work.path / "absent.txt"), "evaluation.path", "absent.txt"),
                (2, (out, "--data", self.work.path / "short.txt"), "evaluation.path", "short.txt"),
                (2, (out, "--data", self.work.path / "held.jsonl"), "held.jsonl is JSONL by its ending", "text.txt, text"),
                (2, (out, "--data", held, "--set", "model.layers=1"), "--set: model.layers", "leave it out"),
                (2, (out, "--data", held, "--set", "optimizer.schedule.peak=1"), "--set: optimizer.schedule.peak"),
                (2, (out, "--set", "evaluation.held_out=0.5"), "evaluation.held_out: 0.5", "held out nothing"),
                (2, (out, "--data", held, "--set", "batch.micro_batch=0"), "batch.micro_batch"),
                (2, (out, "--data", held, "--samples", 0), "--samples"),
                (2, (out, "--data", held, "--set", "evaluation.path=a"), "--data: given beside --set evaluation.path"),
                (2, (out, "--data", held, "--out", full), "--out", "not an empty folder"),
                (3, (out, "--data", held, "--device-memory", "1KiB"), "needs at least")):
            with self.subTest(args):
                done = self.ask(*args)
                self.refused(done, code, *words)
                self.assertEqual(done.stdout, "")
                self.assertEqual(list(self.temporary.iterdir()), [])
        least = needs_at_least(self.ask(out, "--data", held, "--device-memory", "1KiB").stderr)
        self.assertEqual(self.evaluate(out, "--data", held, "--device-memory", least)["tokens"], 93 * 32)

    def test_where_nothing_is_counted_there_is_no_loss(self):
        def chat(question):
            return json.dumps({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": "b"}]}) + "\n"
        (self.work.path / "chat.jsonl").write_text(chat("a") * 40)
        (self.work.path / "long.jsonl").write_text(chat("a" * 100) * 4)
        out = self.trained({"model": {"context": 64}, "data": {"path": "chat.jsonl", "tokenizer": None, "uncounted": "KEPT"},
                            "evaluation": None})
        self.assertEqual(self.evaluate(out, "--data", self.work.path / "chat.jsonl")["tokens"], 40 * 3)
        done = self.ask(out, "--data", self.work.path / "long.jsonl")
        self.refused(done, 2, "no token of the samples is counted", " WARNING documents_ended_early ")
        self.assertEqual(done.stdout, "")

    def test_a_checkpoint_that_is_damaged_is_not_believed(self):
        out = self.trained()
        file = latest_checkpoint(out) / "model.safetensors"
        content = bytearray(file.read_bytes())
        content[-5] ^= 1
        file.write_bytes(content)
        self.refused(self.ask(out), 2, "model.safetensors", "sha256")
        self.assertEqual(list(self.temporary.iterdir()), [])

    def endless(self, checkpoint, *args):
        """One that goes on until somebody ends it, once its worker is there."""
        (self.work.path / "long.txt").write_bytes(sample_text(1_000_000) * 30)
        with (self.work.path / "told").open("w") as told, (self.work.path / "said").open("w") as said:
            process = start(self.command(checkpoint, "--data", self.work.path / "long.txt", *args), env=self.environment,
                            stdout=told, stderr=said)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 60 * TIME_SCALE
        while "evaluating: " not in self.said():
            self.assertIsNone(process.poll(), self.said())
            self.assertLess(time.monotonic(), deadline, self.said())
            time.sleep(0.01)
        return process

    def said(self):
        return (self.work.path / "said").read_text()

    def test_a_signal_ends_it_at_once_and_leaves_nothing(self):
        process = self.endless(self.trained())
        programs = children(process.pid, "eps_server") + children(process.pid, "gpu_worker")
        self.assertEqual(len(programs), 2)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(30 * TIME_SCALE), 130, self.said())
        self.assertIn("ended by a signal", self.said())
        self.assertFalse(any(alive(pid) for pid in programs))
        self.assertEqual(list(self.temporary.iterdir()), [])
        self.assertEqual((self.work.path / "told").read_text(), "")

    def fails_without_a_checkpoint(self, process, code=1):
        self.assertEqual(process.wait(60 * TIME_SCALE), code, self.said())
        self.assertNotIn("checkpoint", self.said())
        folder, = self.temporary.glob("eps-evaluate-*")
        self.assertTrue((folder / "logs" / "eps_server.log").exists())
        self.assertIn(f"eps: what its programs said is in {folder}/logs\n", self.said())
        self.assertFalse((folder / "checkpoints").exists())

    def test_a_worker_that_dies_is_told_of_and_the_logs_stay_without_the_model(self):
        process = self.endless(self.exported(self.trained()), "--set", "data.tokenizer=BYTES")
        os.kill(children(process.pid, "gpu_worker")[0], signal.SIGKILL)
        self.fails_without_a_checkpoint(process)
        self.assertIn("gpu_worker 1 ended: signal 9", self.said())

    def test_a_daemon_that_is_ended_leaves_its_logs(self):
        process = self.endless(self.trained())
        os.kill(children(process.pid, "eps_server")[0], signal.SIGTERM)
        self.fails_without_a_checkpoint(process, 143)
        self.assertIn("ended by a signal", self.said())

    def test_one_that_is_stopped_says_that_it_has_nothing_to_say(self):
        process = self.endless(self.trained())
        folder, = self.temporary.glob("eps-evaluate-*")
        self.refused(run([str(EPS), "checkpoint", "--out", str(folder)]), 1, "makes no checkpoint")
        stopped = run([str(EPS), "stop", "--out", str(folder)])
        self.assertEqual((stopped.returncode, stopped.stdout), (0, "the evaluation ends, with nothing to say\n"))
        self.fails_without_a_checkpoint(process)
        self.assertIn("told to end before it had evaluated", self.said())

    def test_a_daemon_by_hand_evaluates_with_workers_that_attach_and_ends(self):
        out, work = self.trained(), self.work.out("evaluated")
        daemon = self.start(BIN / "eps_server", "--evaluate", out, "--out", work, "--expect-workers", "2")
        address = endpoints(daemon, work, log=self.logs[daemon])["grpc"]
        workers = [self.start_worker(address) for _ in range(2)]
        for process in (daemon, *workers):
            self.ends(process, 0)
        self.assertEqual([without_time(line) for line in evaluations(work)], [without_time(evaluations(out)[-1])])
        self.assertFalse((work / "checkpoints").exists())
        status = run([str(EPS), "status", "--out", str(work)])
        self.assertEqual(status.returncode, 0, status.stderr)
        self.assertIn(f"the evaluation in {work} has ended, evaluation loss", status.stdout)
        self.refused(run([str(BIN / "eps_server"), "--evaluate", str(out), "--run", "x.json", "--out", str(work)]), 2,
                     "--run excludes --evaluate")
