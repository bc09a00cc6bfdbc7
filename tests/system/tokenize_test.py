"""eps tokenize, as a process: what it writes, what it refuses, and that nothing is left half-done."""

import gzip
import json
import random
import re
import signal
import struct
import subprocess
import time

from eps_run import EPS, TIME_SCALE, SystemTest, run, summary


class TokenizeTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.folder = self.work.path / "corpus"  # nothing lies here but what a test puts there
        self.folder.mkdir()
        self.sources = self.work.path

    def write(self, name, content):
        path = self.sources / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def jsonl(self, name, records):
        return self.write(name, "".join(json.dumps(record) + "\n" for record in records))

    def command(self, out, *sources, args=()):
        return [str(EPS), "tokenize", "--tokenizer", "bytes", "--out", str(self.folder / out), "--in",
                *map(str, sources), *map(str, args)]

    def tokenize(self, out, *sources, args=()):
        return run(self.command(out, *sources, args=args))

    def tokenize_ok(self, out, *sources, args=()):
        done = self.tokenize(out, *sources, args=args)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def shown(self, out, *args):
        done = run([str(EPS), "tokenize", "--print", str(self.folder / out), *args])
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def left(self):
        return sorted(path.name for path in self.folder.iterdir())

    def refuse(self, *words, source=None, args=()):
        before = self.left()
        self.refused(self.tokenize("x.bin", *([source] if source else []), args=args), 2, *words)
        self.assertEqual(self.left(), before)

    def test_progress_ends_at_all_of_it_whatever_the_last_file_has(self):
        sources = [self.write("a.txt", "x" * 1000), self.write("b.txt", "y" * 1000), self.write("c.txt", "")]
        for name, files, shares in (("one.bin", sources[:1], [100]), ("several.bin", sources, [50, 100])):
            said = self.tokenize_ok(name, *files)
            self.assertEqual([int(share) for share in re.findall(r"(\d+)%", said)], shares, said)

    # ---- What it writes

    def test_text_becomes_tokens_that_train(self):
        text = (self.sources / "text.txt").read_bytes()
        said = self.tokenize_ok("text.bin", self.sources / "text.txt")
        self.assertIn(f"1 document, {len(text)} tokens of 2 bytes, all counted", said)
        self.assertEqual((self.folder / "text.bin").read_bytes(), struct.pack(f"<{len(text)}H", *text))
        self.assertEqual(self.left(), ["text.bin", "text.bin.docs"])
        losses = []
        for data in ({}, {"path": "corpus/text.bin", "tokenizer": None, "token_bytes": 2}):
            out = self.work.out(f"run{len(losses)}")
            self.train_ok(self.work.spec({"steps": 3, "data": data}), out)
            losses.append(summary(out)["loss"])
        self.assertEqual(losses[0], losses[1])

    def test_a_conversation_is_shown_with_its_answers_marked(self):
        source = self.jsonl("chat.jsonl", [{"messages": [{"role": "user", "content": "2 + 2?"},
                                                         {"role": "assistant", "content": "4"}]},
                                           {"messages": [{"role": "user", "content": "unanswered"}]}])
        said = self.tokenize_ok("chat.bin", source)
        self.assertIn("template: plain", said)
        self.assertIn("left out: 0 empty documents, 1 without a token that is counted", said)
        shown = self.shown("chat.bin", "--tokenizer", "bytes")
        self.assertIn("1 document, ", shown)
        self.assertIn("    2 + 2?\n", shown)
        self.assertIn("    {+4\n", shown)
        self.assertIn(" +52 ", self.shown("chat.bin"))

    def test_all_of_a_conversation_may_count(self):
        source = self.jsonl("chat.jsonl", [{"prompt": "q", "response": "a"}])
        self.assertIn("all counted", self.tokenize_ok("chat.bin", source, args=["--count", "all"]))

    def test_a_pair_of_answers_is_one_document(self):
        source = self.jsonl("pairs.jsonl", [{"prompt": "q", "chosen": "yes", "rejected": "no"}] * 2)
        said = self.tokenize_ok("pairs.bin", source, args=["--count", "all"])
        self.assertIn("2 pairs of a chosen and a rejected answer", said)
        shown = self.shown("pairs.bin", "--tokenizer", "bytes", "--documents", "1")
        self.assertIn("second part from its token 33 on", shown)
        self.assertIn("    {+yes\n", shown)
        self.assertIn("    {+no\n", shown)
        self.assertNotIn("pair", self.tokenize_ok("text.bin", self.sources / "text.txt"))

    def test_a_table_has_classes(self):
        source = self.write("t.tsv", "question1\tquestion2\tis_duplicate\na\tb\tyes\nc\td\tno\n")
        self.assertIn("classes: 2: 0 no, 1 yes", self.tokenize_ok("t.bin", source))
        shown = self.shown("t.bin", "--documents", "1")
        self.assertIn("class 1, second part from its token 2 on", shown)
        self.assertNotIn("document 1", shown)

    def test_an_empty_line_may_separate_documents(self):
        source = self.write("book.txt", "\ufeffone\ntwo\n\nthree\r\n\r\nfour\n")
        self.assertIn("3 documents, 20 tokens", self.tokenize_ok("book.bin", source, args=["--separator", ""]))
        self.assertIn("1 document, 23 tokens", self.tokenize_ok("whole.bin", source))

    def test_the_bytes_do_not_depend_on_threads(self):
        chance = random.Random(1)
        source = self.jsonl("chat.jsonl", [
            {"instruction": "q" * chance.randrange(300), "input": "i" * chance.randrange(3),
             "output": "a" * chance.randrange(200)} for _ in range(20_000)])
        kept = None
        for threads in (1, 2, 7):
            self.tokenize_ok(f"{threads}.bin", source, source, args=["--threads", threads])
            files = [(self.folder / f"{threads}.bin{end}").read_bytes() for end in ("", ".docs")]
            kept = kept or files
            self.assertTrue(files == kept, f"{threads} threads")

    def test_quiet_says_nothing(self):
        self.assertEqual(self.tokenize_ok("a.bin", self.sources / "text.txt", args=["--quiet"]), "")

    # ---- What it refuses

    def test_bad_lines_are_named_by_file_line_and_offset(self):
        good = '{"text": "abc"}\n'
        self.refuse("bad.jsonl", "line 3", "byte offset 41", "not valid JSON",
                    source=self.write("bad.jsonl", good + good + '{"text": x}\n'))
        self.refuse("bad.jsonl", "line 2", "byte offset 16", "text", "number",
                    source=self.write("bad.jsonl", good + '{"text": 3}\n'))
        self.refuse("bad.jsonl", "line 1", "messages[0].role", '"bot"',
                    source=self.jsonl("bad.jsonl", [{"messages": [{"role": "bot", "content": ""}]}]))
        self.refuse("bad.jsonl", "line 1", '"dialogue"', '"messages"',
                    source=self.jsonl("bad.jsonl", [{"dialogue": []}]))
        self.refuse("bad.jsonl", "line 1", "rejected", "says what chosen says",
                    source=self.jsonl("bad.jsonl", [{"prompt": "q", "chosen": "a", "rejected": "a"}]))
        self.refuse("bad.tsv", "line 3", "byte offset 18", "3 columns, must be 2",
                    source=self.write("bad.tsv", "text\tlabel\nfine\t1\na\tb\tc\n"))
        self.refuse("bad.tsv", "line 2", '"0.5"', source=self.write("bad.tsv", "text\tlabel\nfine\t0.5\n"))
        self.refuse("bad.tsv", '"words"', '"text"', source=self.write("bad.tsv", "text\tlabel\nfine\t1\n"),
                    args=["--text-column", "words"])

    def test_bad_usage_is_named(self):
        text = self.sources / "text.txt"
        self.refuse("nowhere.txt", source=self.sources / "nowhere.txt")
        self.refuse("<|begin_of_text|>", "llama3", source=self.jsonl("c.jsonl", [{"prompt": "q", "response": "a"}]),
                    args=["--template", "llama3"])
        self.refuse("<|nothing|>", source=text, args=["--eos", "<|nothing|>"])
        self.refuse("--template", source=text, args=["--template", "vicuna"])
        self.refuse("--threads", source=text, args=["--threads", "0"])
        for flags in (["--template", "chatml"], ["--count", "all"], ["--skip-bad-lines"]):
            self.refuse(flags[0], "given, but no file of --in is JSONL", source=text, args=flags)
        for flags in (["--text-column", "a"], ["--second-text-column", "b"], ["--label-column", "c"], ["--no-header"]):
            self.refuse(flags[0], "given, but no file of --in is a table", source=text, args=flags)
        self.refuse("--separator", "plain text", source=self.jsonl("t.jsonl", [{"text": "a"}]), args=["--separator", "=="])
        self.refuse("--special-tokens", "plain text or JSONL", source=self.write("t.tsv", "text\tlabel\na\t1\n"),
                    args=["--special-tokens", "as-tokens"])
        self.refuse("holds conversations", source=text, args=[self.jsonl("c.jsonl", [{"prompt": "q", "response": "a"}])])
        pairs = self.jsonl("p.jsonl", [{"prompt": "q", "chosen": "a", "rejected": "b"}])
        self.refuse("p.jsonl", "holds pairs of answers", source=text, args=[pairs])
        self.refused(run([str(EPS), "tokenize", "--tokenizer", "bytes", "--in", str(text)]), 2, "--out")
        self.refused(run([str(EPS), "tokenize", "--in", str(text), "--out", "x.bin"]), 2, "--tokenizer")

    def test_what_is_no_text_is_refused_unless_it_is_said_to_be(self):
        packed = self.write("chat.jsonl.gz", gzip.compress(b'{"text": "a"}\n'))
        self.refuse("chat.jsonl.gz", "is compressed by gzip", "--format text", source=packed)
        self.refuse("chat.txt", "is JSON", source=self.jsonl("chat.txt", [{"text": "a"}]))
        self.refuse("a.json", "is a JSON array", source=self.write("a.json", '[{"text": "a"}]'))
        self.refuse("ids.bin", "is no text", source=self.write("ids.bin", b"\1\0\2\0"))
        self.tokenize_ok("as_it_is.bin", packed, args=["--format", "text"])

    def test_what_is_there_is_not_replaced(self):
        (self.folder / "x.bin").write_bytes(b"mine")
        self.refuse("x.bin", "already", source=self.sources / "text.txt")
        self.assertEqual((self.folder / "x.bin").read_bytes(), b"mine")

    def test_nothing_without_a_document_is_written(self):
        self.refuse("no document", source=self.write("empty.txt", b""))

    def test_files_that_do_not_belong_together_are_not_shown(self):
        self.tokenize_ok("a.bin", self.write("a.txt", "abc"))
        self.tokenize_ok("b.bin", self.write("b.txt", "abcd"))
        (self.folder / "b.bin").replace(self.folder / "a.bin")
        self.refused(run([str(EPS), "tokenize", "--print", str(self.folder / "a.bin")]), 2, "4 tokens", "3")
        index = self.folder / "a.bin.docs"
        index.write_bytes(index.read_bytes()[:-1])
        self.refused(run([str(EPS), "tokenize", "--print", str(self.folder / "a.bin")]), 2, "a.bin.docs", "79 bytes")

    # ---- What is left of one that was ended

    def started(self):
        """One that is busy for some seconds, in the middle."""
        line = b"the quick brown fox jumps over the lazy dog\n"
        source = self.write("long.txt", line * 5_000_000)
        process = subprocess.Popen(self.command("x.bin", source, args=["--threads", 1]), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        process.stdout.readline()  # the first line of the progress
        return process

    def test_a_signal_leaves_nothing(self):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            process = self.started()
            process.send_signal(number)
            begin = time.monotonic()
            _, said = process.communicate(timeout=60 * TIME_SCALE)
            self.assertEqual(process.returncode, code, said)
            self.assertIn("nothing was written", said)
            self.assertLess(time.monotonic() - begin, 5 * TIME_SCALE)
            self.assertEqual(self.left(), [])

    def test_a_kill_leaves_nothing(self):
        process = self.started()
        self.assertEqual(self.left(), [], "something is seen before it is whole")
        process.kill()
        process.communicate()
        self.assertEqual(process.returncode, -signal.SIGKILL)
        self.assertEqual(self.left(), [])

    def test_a_full_disk_leaves_nothing(self):
        source = self.write("long.txt", b"x" * 3_000_000)
        done = run(["bash", "-c", 'ulimit -f 1000 && exec "$@"', "bash", *self.command("x.bin", source)])
        self.refused(done, 1, "x.bin")
        self.assertEqual(self.left(), [])
