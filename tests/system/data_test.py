"""Data as people have it: conversations and text, tokenized when the run starts, packed, and seen alone."""

import json
import shutil

from eps_run import EPS, SystemTest, committed_steps, model_hash, run, sample_text, summary, train

MODEL = {"family": "LLAMA", "layers": 2, "d_model": 48, "heads": 4, "kv_heads": 2, "d_ff": 96, "context": 96, "vocab": 256}
SHAPE = {"model": MODEL, "batch": {"virtual_nodes": 4, "micro_batches": 1, "micro_batch": 2}, "steps": 30}
PLACES = ["Basel", "Oslo", "Turin", "Lyon", "Porto", "Graz", "Brno", "Cork"]


def conversations(count=120):
    return [{"messages": [{"role": "user", "content": f"Where is number {i}?"},
                          {"role": "assistant", "content": f"It is in {PLACES[i % len(PLACES)]}."}]} for i in range(count)]


class DataTest(SystemTest):
    def write(self, lines, name="chat.jsonl"):
        path = self.work.path / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def spec_of(self, path, **data):
        return self.work.spec({**SHAPE, "data": {"path": path.name, "tokenizer": None, **data}}, name=f"{path.stem}.json")

    def test_a_fine_tune_on_conversations_counts_the_answers_alone_and_learns_them(self):
        spec = self.spec_of(self.write(conversations()))
        out = self.work.out("answers")
        self.train_ok(spec, out)
        loss = summary(out)["loss"]
        self.assertLess(loss[-1], loss[0] - 1.0)
        log = (out / "logs" / "eps_server.log").read_text()
        tokenized = next(line for line in log.splitlines() if "data_tokenized" in line)
        self.assertIn("documents=120", tokenized)
        counted = int(tokenized.split(" counted_tokens=")[1].split()[0])
        tokens = int(tokenized.split(" tokens=")[1].split()[0])
        self.assertLess(counted, tokens // 2)
        # An answer of some 15 bytes and what ends it; the prompts are some 30 more, with their headings.
        self.assertGreaterEqual(counted, 120 * 14)
        self.assertLess(counted, 120 * 24)
        everything = self.work.out("everything")
        self.train_ok(spec, everything, "--set", "data.count=ALL")
        self.assertGreater(summary(everything)["tokens"], 2 * summary(out)["tokens"])

    def test_weighted_sources_give_the_same_bits_for_any_workers_and_through_a_resume(self):
        self.write(conversations())
        (self.work.path / "book.txt").write_bytes(sample_text(20_000))
        (self.work.path / "held.jsonl").write_text(json.dumps(conversations()[5]) + "\n")
        data = {"path": None, "tokenizer": None, "order": "SHUFFLED", "seed": 3,
                "sources": [{"path": "chat.jsonl", "weight": 3}, {"path": "book.txt", "weight": 1}]}
        spec = self.work.spec({**SHAPE, "data": data, "evaluation": {"path": "held.jsonl", "every_steps": 10}}, name="mix.json")
        self.train_ok(spec, self.work.out("one"))
        expected = model_hash(self.work.out("one"))
        loss = summary(self.work.out("one"))["loss"]
        self.assertLess(loss[-1], loss[0] - 0.5)
        self.train_ok(spec, self.work.out("two"), "--workers", 2)
        self.assertEqual(model_hash(self.work.out("two")), expected)
        out = self.work.out("stopped")
        self.interrupt(spec, out, 4)
        self.assertLess(committed_steps(out), 30)
        # Another weight is another run, and so is another text.
        other = self.work.out("other")
        shutil.copytree(out, other)
        self.refused(train(spec, other, "--resume", "--set", "data.sources[1].weight=2"), 2, "data.sources[1].weight: was 1, now 2")
        text = (self.work.path / "book.txt").read_bytes()
        (self.work.path / "book.txt").write_bytes(text[::-1])
        self.refused(train(spec, other, "--resume"), 2, "data.sources: ", "book.txt")
        (self.work.path / "book.txt").write_bytes(text)
        self.train_ok(spec, out, "--resume", "--workers", 2)
        self.assertEqual(model_hash(out), expected)
        self.assertEqual(summary(out)["loss"], loss)
        # What is wrong with one is named by its place.
        (self.work.path / "book.txt").unlink()
        self.refused(train(spec, self.work.out("bad")), 2, "data.sources[1].path", "book.txt")

    def test_packed_conversations_give_the_same_bits_for_any_workers_and_through_a_resume(self):
        spec = self.spec_of(self.write(conversations()), order="SHUFFLED", seed=3)
        self.train_ok(spec, self.work.out("one"))
        expected = model_hash(self.work.out("one"))
        self.train_ok(spec, self.work.out("two"), "--workers", 2, "--set", "relay.inner=RECOMPUTE")
        self.assertEqual(model_hash(self.work.out("two")), expected)
        self.train_ok(spec, self.work.out("resident"), "--set", "relay.resident=true", "--threads", 1)
        self.assertEqual(model_hash(self.work.out("resident")), expected)
        out = self.work.out("stopped")
        self.interrupt(spec, out, 4)
        self.assertLess(committed_steps(out), 30)
        self.train_ok(spec, out, "--resume")
        self.assertEqual(model_hash(out), expected)
        self.assertIn("data_tokens_kept", (out / "logs" / "eps_server.log").read_text())

    def test_a_resume_on_other_conversations_is_refused(self):
        path = self.write(conversations())
        spec = self.spec_of(path)
        out = self.work.out("out")
        self.interrupt(spec, out, 2)
        self.write(conversations(121))
        self.refused(train(spec, out, "--resume"), 2, str(path), "is not the file")

    def test_a_token_file_made_by_eps_tokenize_gives_the_bits_of_the_text_itself(self):
        path = self.write(conversations())
        self.train_ok(self.spec_of(path), self.work.out("text"))
        tokens = self.work.path / "chat.bin"
        done = run([str(EPS), "tokenize", "--tokenizer", "bytes", "--in", str(path), "--out", str(tokens), "--quiet"])
        self.assertEqual(done.returncode, 0, done.stderr)
        spec = self.work.spec({**SHAPE, "data": {"path": tokens.name, "tokenizer": None, "documents": "PACKED"}},
                              name="tokens.json")
        self.train_ok(spec, self.work.out("tokens"))
        self.assertEqual(model_hash(self.work.out("tokens")), model_hash(self.work.out("text")))

    def test_what_is_wrong_is_named_and_nothing_is_left(self):
        path = self.write(conversations(4) + [{"messages": [{"role": "user", "content": 7}]}])
        spec = self.spec_of(path)
        for changes, words in (
                ((), f"{path}"), (("--set", "data.documents=JOINED"), "data.documents"),
                (("--set", "data.chat_template=llama3"), "llama3"),
                (("--set", "data.tokenizer=MODEL"), "data.tokenizer_path: missing"),
                (("--set", "data.path=none.jsonl"), "data.path")):
            out = self.work.out("out")
            self.refused(train(spec, out, *changes), 2, words)
            self.assertFalse((out / "data" / "tokens.bin").exists())
            shutil.rmtree(out, ignore_errors=True)
