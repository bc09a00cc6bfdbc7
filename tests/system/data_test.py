"""Data as people have it: conversations and text, tokenized when the run starts, packed, and seen alone."""

import json
import shutil

from eps_run import EPS, SystemTest, model_hash, run, sample_text, summary, train

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
        self.assertEqual(summary(out)["counted"], "counted tokens")

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
        self.begin(spec, out, 4)
        # Another weight is another run, and so is another text.
        other = self.work.out("other")
        shutil.copytree(out, other)
        self.refused(train(spec, other, "--resume", "--set", "data.sources[1].weight=2"), 2, "data.sources[1].weight: was 1, now 2")
        text = (self.work.path / "book.txt").read_bytes()
        (self.work.path / "book.txt").write_bytes(text[::-1])
        self.refused(train(spec, other, "--resume"), 2, "data.sources: ", "book.txt")
        (self.work.path / "book.txt").write_bytes(text)
        # Tokens that are damaged are no other data: they are made anew.
        tokens = out / "data" / "0" / "tokens.bin"
        made = tokens.read_bytes()
        tokens.write_bytes(made[:2000])
        self.train_ok(spec, out, "--resume", "--workers", 2)
        self.assertIn("data_tokens_damaged", (out / "logs" / "eps_server.log").read_text())
        self.assertEqual(tokens.read_bytes(), made)
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
        self.begin(spec, out, 4)
        self.train_ok(spec, out, "--resume")
        self.assertEqual(model_hash(out), expected)
        self.assertIn("data_tokens_kept", (out / "logs" / "eps_server.log").read_text())

    def test_a_resume_on_other_conversations_is_refused(self):
        path = self.write(conversations())
        spec = self.spec_of(path)
        out = self.work.out("out")
        self.begin(spec, out, 2)
        # As an earlier version left them, without sums.
        origin, tokens = out / "data" / "tokens.json", out / "data" / "tokens.bin"
        says = json.loads(origin.read_text())
        says.pop("sums")
        origin.write_text(json.dumps(says))
        made = tokens.read_bytes()
        tokens.write_bytes(made[:-2] + bytes([made[-2] ^ 1, made[-1]]))
        self.refused(train(spec, out, "--resume"), 2, "the same size, and other content", f"remove {out}/data, and the data is")
        self.write(conversations(121))
        self.refused(train(spec, out, "--resume"), 2, str(path), "is not the file")

    def test_a_token_file_made_by_eps_tokenize_gives_the_bits_of_the_text_itself(self):
        path = self.write(conversations())
        self.train_ok(self.spec_of(path), self.work.out("text"))
        tokens = self.work.path / "chat.bin"
        done = run([str(EPS), "tokenize", "--tokenizer", "bytes", "--in", str(path), "--out", str(tokens), "--quiet"])
        self.assertEqual(done.returncode, 0, done.stderr)
        spec = self.work.spec({**SHAPE, "data": {"path": tokens.name, "tokenizer": None}}, name="tokens.json")
        self.train_ok(spec, self.work.out("tokens"))  # as the index beside it says: packed, with the answers alone counted
        self.assertEqual(model_hash(self.work.out("tokens")), model_hash(self.work.out("text")))
        self.refused(train(spec, self.work.out("joined"), "--set", "data.documents=JOINED"), 2, "data.documents: JOINED",
                     "chat.bin.docs", "not counted")

    def tokenize(self, path, name, *args):
        done = run([str(EPS), "tokenize", "--tokenizer", "bytes", "--in", str(path), "--out", str(self.work.path / name),
                    "--quiet", *args])
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_an_index_says_how_many_bytes_an_id_has(self):
        path = self.write(conversations())
        losses = []
        for size in (2, 4):
            self.tokenize(path, f"wide{size}.bin", "--token-bytes", str(size))
            spec = self.work.spec({**SHAPE, "steps": 3, "data": {"path": f"wide{size}.bin", "tokenizer": None}}, name=f"{size}.json")
            out = self.work.out(f"wide{size}")
            self.train_ok(spec, out)
            losses.append(summary(out)["loss"])
        self.assertEqual(losses[0], losses[1])
        self.refused(train(spec, self.work.out("bad"), "--set", "data.token_bytes=2"), 2, "data.token_bytes: 2, but",
                     "is of ids of 4 bytes")

    def test_a_run_that_began_without_a_look_at_the_index_goes_on_as_it_began(self):
        self.tokenize(self.write(conversations()), "chat.bin")
        index, away = self.work.path / "chat.bin.docs", self.work.path / "away"
        spec = self.work.spec({**SHAPE, "data": {"path": "chat.bin", "tokenizer": None}}, name="joined.json")
        index.rename(away)
        self.train_ok(spec, self.work.out("whole"))
        out = self.work.out("stopped")
        self.begin(spec, out, 4)
        away.rename(index)
        self.train_ok(spec, out, "--resume")
        self.assertEqual(model_hash(out), model_hash(self.work.out("whole")))

    def test_conversations_whose_answers_lie_beyond_the_context_are_left_out(self):
        long = [{"messages": [{"role": "user", "content": "why? " * 40},
                              {"role": "assistant", "content": f"number {i}"}]} for i in range(10)]
        spec = self.spec_of(self.write(conversations(1) + long))
        out = self.work.out("one")
        self.train_ok(spec, out, "--set", "steps=3")
        loss = summary(out)["loss"]
        self.assertTrue(all(0 < each < 10 for each in loss), loss)  # none is NaN
        log = (out / "logs" / "eps_server.log").read_text()
        documents = next(line for line in log.splitlines() if " data_documents " in line)
        for field in ("documents=11", "samples=1", "documents_ended_early=10", "documents_left_out=10"):
            self.assertIn(field, documents)
        self.refused(train(self.spec_of(self.write(long)), self.work.out("none")), 2, "none of the 10 documents",
                     "model.context")

    def test_what_is_wrong_is_named_and_nothing_is_left(self):
        path = self.write(conversations(4) + [{"messages": [{"role": "user", "content": 7}]}])
        spec = self.spec_of(path)
        for changes, words in (
                ((), f"{path}"), (("--set", "data.documents=JOINED"), "data.documents"),
                (("--set", "data.chat_template=llama3"), "llama3"),
                (("--set", "data.tokenizer=MODEL"), "data.tokenizer_path: missing"),
                (("--set", "data.format=TEXT", "--set", "data.count=ALL"), "data.count: given, but data.path is not JSONL"),
                (("--set", "data.path=none.jsonl"), "data.path")):
            out = self.work.out("out")
            self.refused(train(spec, out, *changes), 2, words)
            self.assertFalse((out / "data" / "tokens.bin").exists())
            shutil.rmtree(out, ignore_errors=True)
