"""The run files of known models: each plans without weights or data, and needs what examples/README.md says."""

import json
import math
import re
import shlex

from eps_run import EPS, ROOT, SystemTest, run

EXAMPLES = ROOT / "examples"
ROW = re.compile(r"^\| \[(\S+)\]\(\1\) \| ([\d,]+) \| ([\d.]+ \w+) \| ([\d.]+ \w+) \| ([\d.]+ \w+) \| ([\d.]+ \w+) \| ([\d.]+ \w+) \|$",
                 re.M)


def gib(num_bytes):
    return f"{num_bytes / 2**30:.1f} GiB"


def least_gib(num_bytes):
    return f"{math.ceil(num_bytes * 10 / 2**30) / 10:.1f} GiB"  # it would not do with less


class ExamplesTest(SystemTest):
    def plan(self, name, *args):
        done = run([str(EPS), "plan", "--run", str(EXAMPLES / name), *args, "--json"])
        self.assertEqual(done.returncode, 0, f"{name}: {done.stderr}")
        return json.loads(done.stdout)

    def test_every_example_is_a_run_spec_that_plans(self):
        for spec in sorted(EXAMPLES.glob("*.textproto")):
            done = run([str(EPS), "plan", "--run", str(spec)])  # in place: paths in it are seen from its folder
            self.assertEqual(done.returncode, 0, f"{spec.name}: {done.stderr}")

    def test_the_known_models_need_what_the_table_says_on_a_device_of_24_gib(self):
        rows = ROW.findall((EXAMPLES / "README.md").read_text())
        self.assertGreaterEqual({row[0] for row in rows},
                                {"bert_large.textproto", "gpt2_hf.textproto", "llama3_8b.textproto",
                                 "qwen3_32b.textproto", "qwen3_30b_a3b_lora.textproto"})
        for name, parameters, cap, smallest, daemon, worker, together in rows:
            with self.subTest(name):
                plan = self.plan(name, "--device", "cuda:0", "--device-memory", cap.replace(" ", ""))
                of_worker = plan["worker_host"]["total_bytes"]
                self.assertEqual([f"{plan['parameters']:,}", least_gib(plan["device"]["smallest_cap_bytes"]),
                                  gib(plan["host"]["total_bytes"]), gib(of_worker),
                                  gib(plan["host"]["total_bytes"] + of_worker)],
                                 [parameters, smallest, daemon, worker, together])
                self.assertLessEqual(plan["device"]["arena_bytes"], 24 << 30)

    def test_the_commands_for_adapters_do_what_is_said(self):
        text = (EXAMPLES / "README.md").read_text()
        block, = re.findall(r"```sh\n(.*?)```", text, re.S)
        losses = []
        for line in block.splitlines():
            command = [re.sub(r"(^|=)(\.\./)?out/", rf"\g<1>{self.work.path}/", word) for word in shlex.split(line)]
            self.assertEqual(command[0], "bin/eps")
            if command[1] == "evaluate":
                command.append("--json")
            done = run([str(EPS), *command[1:]], cwd=ROOT, errors="replace")  # a token may be half a character
            self.assertEqual(done.returncode, 0, f"{line}\n{done.stdout}\n{done.stderr}")
            if command[1] == "evaluate":
                losses.append(json.loads(done.stdout)["loss"])
        evaluations = (self.work.path / "tiny-lora/evaluations.jsonl").read_text().splitlines()
        held_out = [json.loads(line)["loss"] for line in evaluations]
        number = r"([\d.]+)"
        said = re.search(rf"falls from {number} to {number} nats a byte, on the README from {number} to {number}\.", text)
        for now, then in zip([held_out[0], held_out[-1], *losses], map(float, said.groups()), strict=True):
            self.assertLess(abs(now - then), 0.4)  # those texts change

    def test_a_folder_of_an_example_is_its_config_json_alone(self):
        folders = [path for path in EXAMPLES.iterdir() if path.is_dir()]
        self.assertGreaterEqual(len(folders), 3)
        for folder in folders:
            self.assertEqual([path.name for path in folder.iterdir()], ["config.json"], folder)
