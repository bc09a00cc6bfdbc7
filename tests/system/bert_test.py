"""BERT: masked tokens are learnt, texts are told apart, and neither depends on workers, plan or a resume."""

import json
import random

import safetensors_file
from eps_run import EPS, ROOT, SystemTest, latest_checkpoint, model_hash, run, summary, train

MODEL = {"family": "BERT", "layers": 2, "d_model": 64, "heads": 4, "d_ff": 128, "context": 64, "init_seed": 1,
         "dropout": 0.1}
BATCH = {"virtual_nodes": 4, "micro_batches": 1, "micro_batch": 4}
MASKED = {"model": {**MODEL, "vocab": 257}, "data": {"mask": {"token": 256}}, "batch": BATCH, "steps": 12}
# Of a model that a folder has, nothing of MODEL is said again.
OF_FOLDER = {key: None for key in ("layers", "d_model", "heads", "d_ff", "vocab", "family", "init_seed", "dropout")}
LANGUAGES = {"cc": "gpu_worker/layers/*.cc", "md": "docs/*.md", "py": "tests/system/*.py"}


def lines_of_this_tree():
    """(language, line) of source and prose that every checkout has, as many of each language, in a random order."""
    pick = random.Random(4)
    rows = []
    for language, pattern in LANGUAGES.items():
        lines = sorted({" ".join(line.split()) for path in sorted(ROOT.glob(pattern))
                        for line in path.read_text().splitlines() if 24 <= len(line.strip()) <= 110})
        rows += [(language, line) for line in pick.sample(lines, 400)]
    pick.shuffle(rows)
    return rows


class BertTest(SystemTest):
    def table(self, rows, name="lines.tsv"):
        path = self.work.path / name
        path.write_text("sentence\tlabel\n" + "".join(f"{line}\t{language}\n" for language, line in rows))
        return path

    def classifier(self, path, **changes):
        if "from" in changes.get("model", {}):  # a folder without a tokenizer
            changes["data"] = {"tokenizer": "BYTES", **changes.get("data", {})}
        return self.work.spec({"model": {**MODEL, "vocab": 256, "classes": 3}, "batch": BATCH, "steps": 12, **changes,
                               "data": {"path": path.name, **changes.get("data", {})}}, name="classes.json")

    def same_bits(self, spec, name):
        """For two workers, other plans and through a resume."""
        self.train_ok(spec, self.work.out(name))
        expected = model_hash(self.work.out(name))
        self.train_ok(spec, self.work.out(f"{name}-two"), "--workers", 2, "--set", "relay.inner=RECOMPUTE")
        self.assertEqual(model_hash(self.work.out(f"{name}-two")), expected)
        self.train_ok(spec, self.work.out(f"{name}-resident"), "--set", "relay.resident=true", "--threads", 1)
        self.assertEqual(model_hash(self.work.out(f"{name}-resident")), expected)
        out = self.work.out(f"{name}-stopped")
        self.begin(spec, out, 3)
        self.train_ok(spec, out, "--resume")
        self.assertEqual(model_hash(out), expected)

    def exported(self, out, name="exported"):
        folder = self.work.out(name)
        done = run([str(EPS), "export", "--checkpoint", str(out), "--out", str(folder)])
        self.assertEqual(done.returncode, 0, done.stderr)
        return folder

    def test_masked_tokens_give_the_same_bits_for_any_workers_and_plan_and_through_a_resume(self):
        self.same_bits(self.work.spec(MASKED), "masked")

    def test_classes_give_the_same_bits_for_any_workers_and_plan_and_through_a_resume(self):
        self.same_bits(self.classifier(self.table(lines_of_this_tree())), "classes")

    def test_a_new_head_learns_over_frozen_layers(self):
        spec = self.work.spec({**MASKED, "steps": 3}, name="masked.json")
        self.train_ok(spec, self.work.out("masked"))
        before = safetensors_file.read(self.exported(self.work.out("masked")) / "model.safetensors")
        frozen = ["bert.embeddings.*", "bert.encoder.*"]
        spec = self.classifier(self.table(lines_of_this_tree()), precision={"wire": "FP32"}, steps=30,
                               model={**OF_FOLDER, "from": str(self.work.out("exported")), "classes": 3, "freeze": frozen},
                               optimizer={"schedule": {"peak": 3e-3}, "clip": None})
        self.train_ok(spec, self.work.out("one"))
        loss = summary(self.work.out("one"))["loss"]
        self.assertLess(sum(loss[-5:]), sum(loss[:5]))
        self.train_ok(spec, self.work.out("two"), "--workers", 2, "--set", "relay.inner=RECOMPUTE")
        self.assertEqual(model_hash(self.work.out("two")), model_hash(self.work.out("one")))
        after = safetensors_file.read(self.exported(self.work.out("one"), "classes-hf") / "model.safetensors")
        for name in after:
            if name.startswith(("bert.embeddings.", "bert.encoder.")):
                self.assertEqual(after[name].tobytes(), before[name].tobytes(), name)
        self.assertEqual(len(after) - sum(name.startswith(("bert.embeddings.", "bert.encoder.")) for name in after), 4)

    def test_masked_tokens_are_learnt(self):
        spec = self.work.spec({**MASKED, "steps": 80, "optimizer": {"schedule": {"peak": 3e-3}}})
        out = self.work.out("out")
        self.train_ok(spec, out)
        loss = summary(out)["loss"]
        self.assertLess(sum(loss[-5:]) / 5, loss[0] - 2)
        # 15% of 4 * 4 * 64 tokens a step, give or take five standard deviations.
        self.assertAlmostEqual(summary(out)["tokens"] / 80, 0.15 * 1024, delta=5 * (0.1275 * 1024 / 80) ** 0.5)
        self.assertEqual(summary(out)["counted"], "counted tokens")

    def test_languages_are_told_apart(self):
        spec = self.classifier(self.table(lines_of_this_tree()), steps=150, data={"order": "SHUFFLED", "seed": 3},
                               optimizer={"schedule": {"peak": 2e-3, "warmup_steps": 15}, "clip": None},
                               evaluation={"held_out": 0.2, "every_steps": 50})
        out = self.work.out("out")
        self.train_ok(spec, out)
        evaluated = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in evaluated], [50, 100, 150])
        self.assertNotIn("perplexity", evaluated[0])
        self.assertEqual(summary(out)["counted"], "samples")
        print(f"\n  accuracy on what was held out, after 50, 100 and 150 steps: "
              f"{[round(line['accuracy'], 3) for line in evaluated]}; the largest class has a third")
        self.assertGreater(evaluated[-1]["accuracy"], 0.6)
        self.answers_for_texts(out)

    def test_names_of_classes_may_be_as_long_as_a_message_to_a_worker(self):
        """A megabyte of names, which a RunSpec's text writes in four times as many bytes."""
        classes = 20_000
        rows = [(f"{'é' * 20}{c}", f"line {c}") for c in range(classes)]
        spec = self.classifier(self.table(rows), model={**MODEL, "vocab": 256, "classes": classes}, steps=2)
        self.train_ok(spec, self.work.out("out"))

    def answers_for_texts(self, out):
        """`eps sample` tells the classes of lines, and is right about as often as the evaluation; a folder says the same."""
        rows = [(language, line) for language, line in lines_of_this_tree()[:60] if line]
        texts = self.work.path / "texts.txt"
        texts.write_text("".join(line + "\n" for _, line in rows) + "\n")
        found = {}
        for name, checkpoint in (("run", out), ("folder", self.exported(out))):
            done = run([str(EPS), "sample", "--checkpoint", str(checkpoint), "--in", str(texts)])
            self.assertEqual(done.returncode, 0, done.stderr)
            found[name] = [line.split("\t") for line in done.stdout.splitlines()]
        for name in found:
            self.assertEqual(found[name].pop(), [""], "a blank line has no class")
        # A folder is served in fp32, and a run in its own 16 bits: of two classes that are as likely either may be told.
        for of_run, of_folder in zip(found["run"], found["folder"], strict=True):
            self.assertAlmostEqual(float(of_run[1]), float(of_folder[1]), delta=0.03)
            self.assertTrue(of_run[0] == of_folder[0] or float(of_run[1]) < 0.53, (of_run, of_folder))
        right = sum(language == line[0] for (language, _), line in zip(rows, found["run"], strict=True))
        self.assertGreater(right, 0.6 * len(rows))
        self.assertTrue(all(1 / 3 < float(line[1]) <= 1 for line in found["run"]))
        one = run([str(EPS), "sample", "--checkpoint", str(out), "--prompt", rows[0][1]])
        self.assertEqual(one.stdout.split("\t"), [found["run"][0][0], found["run"][0][1] + "\n"])

    def evaluations(self, spec, name, *args):
        out = self.work.out(name)
        self.train_ok(spec, out, *args)
        lines = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
        return [[line[key] for key in ("step", "loss", "accuracy", "tokens")] for line in lines]

    def test_an_evaluation_masks_the_same_tokens_each_time_and_for_any_workers(self):
        spec = self.work.spec({**MASKED, "evaluation": {"held_out": 0.01, "every_steps": 4}})
        one = self.evaluations(spec, "one")
        self.assertEqual([line[0] for line in one], [4, 8, 12])
        self.assertEqual(len({line[3] for line in one}), 1, "other tokens were masked")
        self.assertEqual(len({line[1] for line in one}), 3, "nothing was learnt in between")
        self.assertEqual(self.evaluations(spec, "two", "--workers", 2, "--set", "relay.inner=RECOMPUTE"), one)

    def test_a_classifier_begins_with_the_weights_of_masked_tokens_and_leaves_a_folder_of_its_own(self):
        masked = self.work.spec({**MASKED, "model": {**MASKED["model"], "max_positions": 80}}, name="masked.json")
        self.train_ok(masked, self.work.out("masked"))
        folder = self.exported(self.work.out("masked"))
        path = self.table(lines_of_this_tree())
        spec = self.classifier(path, model={**OF_FOLDER, "from": str(folder), "classes": 3, "context": 48})
        out = self.work.out("classes")
        self.train_ok(spec, out)
        log = (out / "logs" / "eps_server.log").read_text()
        self.assertEqual(log.count("weights_new"), 4)
        self.assertIn("tensor=classifier.weight", log)
        config = json.loads((self.exported(out, "classes-hf") / "config.json").read_text())
        self.assertEqual((config["architectures"], len(config["id2label"]), config["max_position_embeddings"]),
                         (["BertForSequenceClassification"], 3, 80))
        # And goes on from it, with nothing that is new.
        again = self.classifier(path, model={**OF_FOLDER, "from": str(self.work.out("classes-hf")), "context": 48})
        self.train_ok(again, self.work.out("again"))
        self.assertNotIn("weights_new", (self.work.out("again") / "logs" / "eps_server.log").read_text())
        self.refused(run([str(EPS), "sample", "--checkpoint", str(folder), "--prompt", "a", "--tokenizer", "bytes"]), 2,
                     "model_type", "continues no text", "masked tokens")

    def test_a_pretrained_head_keeps_its_classes_through_a_table_of_names_a_resume_and_an_export(self):
        # A folder whose classes are in another order than their names, as published ones often are.
        order = ["py", "cc", "md"]
        first = self.classifier(self.table(lines_of_this_tree()), steps=3, precision={"wire": "FP32"},
                                model={**MODEL, "vocab": 256, "classes": None, "class_names": order})
        self.train_ok(first, self.work.out("first"))
        folder = self.exported(self.work.out("first"))
        before = json.loads((folder / "config.json").read_text())
        self.assertEqual(before["id2label"], {str(i): name for i, name in enumerate(order)})
        self.assertEqual(before["label2id"], {name: i for i, name in enumerate(order)})
        rows = [row for row in lines_of_this_tree() if row[0] != "cc"]  # one class is not in this table
        spec = self.classifier(self.table(rows, "two.tsv"), steps=6, model={**OF_FOLDER, "from": str(folder), "context": 48})
        out = self.work.out("again")
        self.train_ok(spec, out)
        log = (out / "logs" / "eps_server.log").read_text()
        self.assertIn("class_named class=0 name=py", log)
        self.assertNotIn("weights_new", log)
        latest = json.loads((latest_checkpoint(out) / "config.json").read_text())
        self.assertEqual(latest["id2label"], before["id2label"])
        self.train_ok(spec, out, "--resume")
        # The same as with numbers, which are those of the folder's head.
        numbered = self.table([(order.index(language), line) for language, line in rows], "numbers.tsv")
        spec = self.classifier(numbered, steps=6, model={**OF_FOLDER, "from": str(folder), "context": 48})
        self.train_ok(spec, self.work.out("numbered"))
        self.assertEqual(summary(self.work.out("numbered"))["loss"], summary(out)["loss"])
        other = self.table([("prose" if language == "md" else language, line) for language, line in rows], "other.tsv")
        model = {**OF_FOLDER, "from": str(folder), "context": 48}
        self.refused(train(self.classifier(other, model=model), self.work.out("other")), 2, 'the label "prose"', "other.tsv",
                     "py, cc, md")
        self.train_ok(self.classifier(other, steps=3, model={**model, "class_names": ["cc", "prose", "py"]}),
                      self.work.out("new"))
        self.assertEqual((self.work.out("new") / "logs" / "eps_server.log").read_text().count("weights_new"), 2)

    def test_a_folder_without_a_head_begins_a_classifier_and_nothing_else(self):
        self.train_ok(self.work.spec({**MASKED, "steps": 2}, name="masked.json"), self.work.out("masked"))
        folder = self.exported(self.work.out("masked"))
        tensors = safetensors_file.read(folder / "model.safetensors")
        safetensors_file.write(folder / "model.safetensors", {name.removeprefix("bert."): values
                                                              for name, values in tensors.items() if name.startswith("bert.")})
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "architectures": ["BertModel"]}))
        masked = self.work.spec({**MASKED, "model": {**OF_FOLDER, "from": str(folder), "context": 48},
                                 "data": {"mask": {"token": 256}, "tokenizer": "BYTES"}}, name="again.json")
        self.refused(train(masked, self.work.out("again")), 2, "cls.predictions", "give model.classes")
        spec = self.classifier(self.table(lines_of_this_tree()), steps=3,
                               model={**OF_FOLDER, "from": str(folder), "classes": 3, "context": 48})
        self.train_ok(spec, self.work.out("classes"))
        self.assertEqual((self.work.out("classes") / "logs" / "eps_server.log").read_text().count("weights_new"), 4)

    def test_a_table_may_have_no_header_and_rows_that_are_left_out(self):
        rows = "".join(f"x\t{i % 2}\t\tline {i}\n" for i in range(40)) + "broken\n"
        (self.work.path / "cola.tsv").write_text(rows)
        columns = {"table_header": False, "text_column": "4", "label_column": "2"}
        model = {**MODEL, "vocab": 256, "classes": 2}
        spec = self.classifier(self.work.path / "cola.tsv", model=model, steps=2, data=columns)
        self.refused(train(spec, self.work.out("out")), 2, "line 41", "1 columns, must be 4")
        self.train_ok(spec, self.work.out("skipped"), "--set", "data.bad_lines=SKIP")
        log = (self.work.out("skipped") / "logs" / "eps_server.log").read_text()
        self.assertIn("documents=40", log)
        self.assertIn("line 41", log)

    def test_what_does_not_fit_together_is_refused(self):
        path = self.table(lines_of_this_tree())
        two = self.classifier(path, model={**MODEL, "vocab": 256, "classes": 2})
        self.refused(train(two, self.work.out("two")), 2, "model.classes: 2", "3 names (cc, md, py)")
        self.refused(train(self.work.spec({**MASKED, "data": {"mask": None}}), self.work.out("mask")), 2,
                     "data.mask.token: missing")
        (self.work.path / "empty.tsv").write_text("sentence\tlabel\nabc\t\n")
        self.refused(train(self.classifier(self.work.path / "empty.tsv"), self.work.out("empty")), 2, "empty.tsv", "label")
        self.refused(train(self.classifier(path, data={"label_column": "genre", "text_column": "sentence"}),
                           self.work.out("column")), 2, "genre", '"sentence", "label"')
