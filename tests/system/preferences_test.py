"""Training on preferences (DPO, SimPO, ORPO): the same bits however the run goes, the better answers are learnt and
evaluated, pairs come in every form, and what makes no sense is refused by field."""

import json
import math
import random
import string

import numpy as np

from data_test import conversations
from eps_run import DEVICE, SystemTest, long, merged, metrics, model_hash, summary, train

PAIRS = 8  # of a step
DATA = {"model": {"context": 64}, "data": {"path": "pairs.jsonl"}}
LORA = {"rank": 4, "alpha": 8}
DPO = merged(DATA, {"preferences": {"loss": "DPO"}, "model": {"lora": LORA}, "optimizer": {"schedule": {"peak": 1e-2}}})
SIMPO = merged(DATA, {"preferences": {"loss": "SIMPO"}})
ORPO = merged(DATA, {"preferences": {"loss": "ORPO"}})
LLAMA = {"model": {"family": "LLAMA", "layers": 3, "d_model": 64, "heads": 4, "kv_heads": 2, "d_ff": 160}}
NF4 = merged(LLAMA, {"model": {"lora": {"dropout": 0.1}}, "precision": {"frozen": "NF4"}})
BERT = {"model": {"family": "BERT", "d_ff": 64, "vocab": 257, "lora": LORA}, "data": {"mask": {"token": 256}}}


def pairs(count=96):
    """Whose better answer is of letters, and the other one of digits."""
    chance = random.Random(1)

    def answer(characters):
        return "".join(chance.choice(characters) for _ in range(chance.randrange(4, 12)))

    return [{"prompt": f"Number {i}?", "chosen": answer(string.ascii_lowercase), "rejected": answer(string.digits)}
            for i in range(count)]


def say(role, content):
    return [{"role": role, "content": content}]


def as_messages(pair):
    return {"prompt": say("user", pair["prompt"]), "chosen": say("assistant", pair["chosen"]),
            "rejected": say("assistant", pair["rejected"])}


def as_whole_conversations(pair):
    return {key: say("user", pair["prompt"]) + say("assistant", pair[key]) for key in ("chosen", "rejected")}


def accuracies(out):
    return [line["accuracy"] for line in metrics(out)]


def pairs_of(out):
    """What each step says of its pairs."""
    return [(line["accuracy"], line["chosen_reward"], line["rejected_reward"]) for line in metrics(out)]


class PreferencesTest(SystemTest):
    def setUp(self):
        super().setUp()
        self.write(pairs())

    def write(self, lines, name="pairs.jsonl"):
        (self.work.path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    @long
    def test_the_bits_are_the_same_for_any_workers_through_kills_and_a_resume_and_in_a_group(self):
        for name, changes in (("quantized", merged(DPO, NF4)), ("simpo", merged(SIMPO, LLAMA)),
                              ("dpo", merged(DPO, {"model": {"residual_dropout": 0.1}}))):
            self.has_the_same_bits(changes, name)
            quiet = pairs_of(self.work.out(f"{name}-quiet"))
            self.assertGreater(len(set(quiet)), 1)
            for way in ("recompute", "resident", "group"):
                self.assertEqual(pairs_of(self.work.out(f"{name}-{way}")), quiet, f"{name}, {way}")

    def test_fp16_whose_loss_is_scaled_learns_what_fp32_does_with_experts_too(self):
        experts = merged(LLAMA, {"model": {"experts": {"num": 4, "per_token": 2}}, "precision": {"frozen": "NF4"}})
        for name, changes in (("experts", merged(DPO, experts)), ("simpo", SIMPO)):
            losses = []
            for wire in ("FP32", "FP16"):
                precision = {"precision": {"wire": wire, "gradients": wire}, "steps": 6}
                out = self.work.out(f"{name}-{wire}")
                self.train_ok(self.work.spec(merged(changes, precision), name=f"{name}.json"), out)
                losses.append(summary(out)["loss"])
            np.testing.assert_allclose(*losses, rtol=2e-3)  # FP16 has 11 bits; 2e-4 was seen
            self.assertLess(losses[1][-1], losses[1][0] - 0.1)

    def test_eps_verify_finds_the_same_bits_in_every_way_to_carry_it_out(self):
        # Several pairs in a micro-batch, evaluations between steps, and a model of which a part is frozen.
        several = {"batch": {"micro_batch": 4}, "evaluation": {"held_out": 0.1, "every_steps": 1},
                   "preferences": {"label_smoothing": 0.1}, "precision": {"wire": "FP32"}}
        for changes in (merged(DPO, several), merged(DPO, NF4), merged(SIMPO, {"preferences": {"margin": 0.5}}),
                        merged(SIMPO, {"model": {"freeze": ["transformer.h.0.*"]}}), ORPO):
            self.eps("verify", "--run", self.work.spec(changes), "--steps", 2, *DEVICE)

    def test_runs_learn_to_tell_the_better_answer_and_eps_evaluate_finds_what_they_found(self):
        for name, changes in (("dpo", DPO), ("simpo", SIMPO), ("orpo", ORPO)):
            evaluation = {"held_out": 0.1, "every_steps": 15, "at_start": True}
            spec = self.work.spec(merged(changes, {"steps": 30, "evaluation": evaluation}), name=f"{name}.json")
            out = self.work.out(name)
            self.train_ok(spec, out, "--workers", 2)
            losses = summary(out)["loss"]
            if name == "dpo":  # adapters change nothing at first
                self.assertAlmostEqual(losses[0], math.log(2), delta=1e-3)
            self.assertLess(np.mean(losses[-5:]), losses[0] - 0.1)
            self.assertGreater(np.mean(accuracies(out)[-5:]), 0.9)
            self.assertEqual([line["tokens"] for line in metrics(out)], [PAIRS] * 30)
            for line in metrics(out):
                self.assertAlmostEqual(line["chosen_reward"] - line["rejected_reward"], line["reward_margin"], delta=1e-9)
            margins = [line["reward_margin"] for line in metrics(out)]
            self.assertGreater(np.mean(margins[-5:]), margins[0] + 0.1)
            if name == "dpo":
                self.assertAlmostEqual(metrics(out)[0]["chosen_reward"], 0, delta=1e-3)
            self.assertEqual((summary(out)["tokens"], summary(out)["counted"]), (30 * PAIRS, "pairs"))

            first, *_, last = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
            self.assertLess(last["loss"], first["loss"] - 0.1)
            self.assertGreater(last["accuracy"], 0.9)
            self.assertIn(last["tokens"], (9, 10))  # of 96
            for args in ((), ("--workers", 2, "--set", "transport=GRPC")):
                found = json.loads(self.eps("evaluate", "--checkpoint", out, "--json", *args).stdout)
                for key in ("step", "loss", "accuracy", "chosen_reward", "rejected_reward", "reward_margin", "tokens"):
                    self.assertEqual(found[key], last[key], (name, key, args))
                self.assertNotIn("perplexity", found)
            said = self.eps("evaluate", "--checkpoint", out).stdout
            self.assertIn(f"of {last['tokens']} pairs", said)
            self.assertRegex(said, r"\n  rewards +\S+ chosen, \S+ rejected, margin \S+\n")
            self.refused(train(spec, out, "--resume", "--set", "preferences.beta=0.25"), 2, "preferences.beta: was ",
                         "now 0.25")

    def test_rewards_that_are_not_finite_are_said_to_be_so(self):
        broken = {"optimizer": {"schedule": {"peak": 1e30}}, "steps": 1}
        out = self.work.out("broken")
        self.train_ok(self.work.spec(merged(SIMPO, broken)), out)
        data = ("--data", self.work.path / "pairs.jsonl")
        self.assertIn("rewards     nan chosen, nan rejected, margin nan",
                      self.eps("evaluate", "--checkpoint", out, *data).stdout)
        found = json.loads(self.eps("evaluate", "--checkpoint", out, *data, "--json").stdout)
        self.assertEqual((found["loss"], found["chosen_reward"], found["reward_margin"]), (None, None, None))

    def test_pairs_of_every_form_are_the_same_tokens_and_defaults_are_what_is_said_of_them(self):
        found = []
        for form, preferences in ((dict, {"loss": "DPO"}), (as_messages, {}),
                                  (as_whole_conversations, {"beta": 0.1, "label_smoothing": 0})):
            self.write(map(form, pairs()), f"{form.__name__}.jsonl")
            out = self.work.out(form.__name__)
            spec = self.work.spec(merged(DPO, {"data": {"path": f"{form.__name__}.jsonl"}, "steps": 3}))
            spec.write_text(json.dumps({**json.loads(spec.read_text()), "preferences": preferences}))
            self.train_ok(spec, out)
            tokens = [(out / "data" / name).read_bytes() for name in ("tokens.bin", "tokens.bin.docs")]
            found.append([*tokens, model_hash(out)])
            self.assertEqual(found[-1], found[0], form.__name__)
        self.eps("tokenize", "--tokenizer", "bytes", "--in", self.work.path / "pairs.jsonl", "--out",
                 self.work.path / "made.bin")
        self.train_ok(self.work.spec({**DPO, "data": {"path": "made.bin", "tokenizer": None}, "steps": 3}),
                      self.work.out("made"))
        self.assertEqual(model_hash(self.work.out("made")), found[0][-1])

        hashes = []
        for name, preferences in (("absent", {}), ("given", {"beta": 2, "margin": 0}), ("margin", {"margin": 0.5}),
                                  ("beta", {"beta": 2.5})):
            self.train_ok(self.work.spec(merged(SIMPO, {"preferences": preferences, "steps": 3})), self.work.out(name))
            hashes.append(model_hash(self.work.out(name)))
        self.assertEqual(hashes[0], hashes[1])
        self.assertEqual(len(set(hashes)), 3)

    def test_pairs_whose_answers_lie_beyond_the_context_are_left_out_and_told_of(self):
        beyond = [{"prompt": "why? " * 40, "chosen": f"number {i}", "rejected": "no"} for i in range(10)]
        self.write(pairs(3) + beyond)
        out = self.work.out("some")
        self.train_ok(self.work.spec(merged(SIMPO, {"steps": 3})), out)
        self.assertTrue(all(0 < loss < 10 for loss in summary(out)["loss"]))  # none is NaN
        log = (out / "logs" / "eps_server.log").read_text()
        documents = next(line for line in log.splitlines() if " data_documents " in line)
        self.assertIn(" documents=13 ", documents)
        self.assertRegex(documents, r" documents_left_out=10\b")
        self.write(beyond)
        self.refused(train(self.work.spec(SIMPO), self.work.out("none")), 2, "of none of the 10 pairs", "model.context")
        self.assertFalse(self.work.out("none").exists())

    def test_the_plan_has_the_references_pass_and_the_workers_hold_to_it(self):
        self.write(conversations(), "chat.jsonl")
        spec = self.work.spec(merged(DPO, {"steps": 2}))
        padded = {"path": "chat.jsonl", "documents": "PADDED"}
        alike = self.work.spec(merged(DPO, {"preferences": None, "data": padded}), name="alike.json")
        now, plain = self.plan(spec), self.plan(alike)
        for key in ("predicted_seconds", "model_flops"):
            self.assertGreater(now["step"][key], plain["step"][key], key)
        for cap in (now["device"]["smallest_cap_bytes"], 2 * now["device"]["smallest_cap_bytes"]):
            out = self.work.out(f"run-{cap}")
            self.train_ok(spec, out, "--device-memory", cap)
            self.assertEqual(summary(out)["device_peak_bytes"],
                             self.plan(spec, "--device-memory", cap)["device"]["arena_bytes"])

    def test_what_makes_no_sense_is_refused_by_field_and_leaves_nothing(self):
        self.write(conversations(), "chat.jsonl")
        self.write([*pairs(1), {"prompt": "a", "chosen": "b"}], "half.jsonl")
        for changes, *words in (
                (merged(SIMPO, {"preferences": {"loss": "DPO"}}), "preferences.loss: ", "model.lora"),
                (merged(SIMPO, {"batch": {"micro_batch": 3}}), "batch.micro_batch: 3"),
                (merged(SIMPO, {"data": {"path": "chat.jsonl"}}), "data.path", "of answers"),
                (merged(SIMPO, {"data": {"path": "text.txt"}}), "data.path", "pairs of answers"),
                (merged(SIMPO, {"data": {"path": "half.jsonl"}}), "half.jsonl", "line 2", "rejected"),
                (merged(SIMPO, {"data": {"documents": "PACKED"}}), "data.documents"),
                (DATA, "preferences"),
                (merged(DPO, {"preferences": {"beta": 0}}), "preferences.beta: 0"),
                (merged(DPO, {"preferences": {"margin": 0.5}}), "preferences.margin"),
                (merged(SIMPO, {"preferences": {"margin": -1}}), "preferences.margin: -1"),
                (merged(DPO, {"preferences": {"label_smoothing": 0.5}}), "preferences.label_smoothing: 0.5"),
                (merged(SIMPO, {"preferences": {"label_smoothing": 0.1}}), "preferences.label_smoothing"),
                (merged(DPO, BERT), "preferences: ")):
            with self.subTest(words):
                self.refused(train(self.work.spec(changes), self.work.out("run")), 2, *words)
                self.assertFalse(self.work.out("run").exists())
