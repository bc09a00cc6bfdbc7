"""Preferences, by DPO (arXiv:2305.18290), SimPO (arXiv:2405.14734) or ORPO (arXiv:2403.07691), in plain PyTorch, on
the pairs of a run's own token file."""

import functools
import json
import random
import string
import struct

import numpy as np
import torch
import torch.nn.functional as F

import torch_llama
from eps_run import metrics
from torch_llama_run import LlamaReference
from torch_lora import is_adapter
from torch_reference import MICRO_BATCH, MICRO_BATCHES, STEPS, TOLERANCE, VNODES

PAIRS = VNODES * MICRO_BATCHES * MICRO_BATCH // 2  # of a step
BETA = {"DPO": 0.1, "SIMPO": 2, "ORPO": 0.1}


def read_pairs(path):
    """The two parts of each pair in a token file with an index (docs/formats.md), as (ids, whether each is counted)."""
    index = path.with_name(path.name + ".docs").read_bytes()
    magic, _, token_bytes, flags, num_tokens, num_pairs = struct.unpack_from("<4sHBBQQ", index)
    if (magic, flags) != (b"EPSD", 2 + 8):
        raise AssertionError(f"{magic}, {flags}: no index of pairs that may not be cut and are counted in part")
    marks = 64 + 8 * (num_pairs + 1)
    firsts = np.frombuffer(index, "<u8", num_pairs + 1, 64).astype(np.int64)
    bits = np.frombuffer(index, np.uint8, (num_tokens + 7) // 8, marks)
    counted = np.unpackbits(bits, bitorder="little").astype(bool)
    seconds = np.frombuffer(index, "<i4", num_pairs, marks + (num_tokens + 63) // 64 * 8)
    ids = np.fromfile(path, {2: "<u2", 4: "<u4"}[token_bytes]).astype(np.int64)
    return [[(ids[a:b], counted[a:b]) for a, b in ((first, first + second), (first + second, end))]
            for first, second, end in zip(firsts, seconds, firsts[1:])]


def sequence(part, context):
    """Tokens and labels, (context,) each, of which the last ones are padding."""
    ids, counted = (values[:context + 1] for values in part)
    room = (0, context + 1 - len(ids))
    return np.pad(ids[:-1], room), np.pad(np.where(counted[1:], ids[1:], -100), room, constant_values=-100)


class PreferencesReference(LlamaReference):
    def write_pairs(self, num_pairs=48):
        """Some answers end with the context, and some prompts are longer than it."""
        chance = random.Random(5)

        def letters(longest):
            return "".join(chance.choice(string.ascii_letters) for _ in range(chance.randrange(1, longest + 1)))

        lines = [{"prompt": "why? " * self.context if i % 9 == 4 else letters(12), "chosen": letters(30),
                  "rejected": letters(30)} for i in range(num_pairs)]
        path = self.work.path / "pairs.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    @property
    def out(self):
        return self.work.out(f"{self.folder.name}-run")

    @functools.cached_property
    def samples(self):
        """Two sequences each, of the pairs both of whose answers have a token within the context."""
        pairs = read_pairs(self.out / "data" / "tokens.bin")
        # What the file was written for.
        self.assertGreater(max(len(ids) for pair in pairs for ids, counted in pair if counted[:self.context].any()),
                           self.context + 1)
        samples = [[sequence(part, self.context) for part in pair] for pair in pairs]
        kept = [sample for sample in samples if all((labels >= 0).any() for _, labels in sample)]
        self.assertLess(len(kept), len(samples))
        return kept

    def rows(self, samples):
        return tuple(torch.from_numpy(np.stack(part)) for part in zip(*(row for sample in samples for row in sample)))

    def batch(self, step):
        """SEQUENTIAL order: step s takes samples s*P .. s*P+P-1."""
        return self.rows(self.samples[i % len(self.samples)] for i in range(step * PAIRS, (step + 1) * PAIRS))

    def sums(self, w, tokens, labels):
        """Of each sequence, of log p over its counted tokens."""
        logits = torch_llama.logits(w, tokens, self.config)
        return -F.cross_entropy(logits.transpose(1, 2), labels, reduction="none").sum(1)

    def loss(self, w, tokens, labels):
        """Mean over pairs. Adds to `accuracies` the least and the most that their share may be whose better answer is
        preferred, and to `rewards` the means of both."""
        values = self.sums(w, tokens, labels)
        if self.preferences["loss"] == "DPO":
            values = values - self.sums({k: v for k, v in self.weights.items() if not is_adapter(k)}, tokens, labels)
        else:
            values = values / (labels >= 0).sum(1)
        rewards = self.preferences["beta"] * values
        self.rewards.append([rewards[i::2].mean().item() for i in (0, 1)])
        difference = rewards[0::2] - rewards[1::2]
        self.accuracies.append([(difference > bound).double().mean().item() for bound in (TOLERANCE, -TOLERANCE)])
        if self.preferences["loss"] == "ORPO":
            log_odds = values - torch.log1p(-values.exp())
            return (-values[0::2] - self.preferences["beta"] * F.logsigmoid(log_odds[0::2] - log_odds[1::2])).mean()
        z, smoothing = difference - self.preferences.get("margin", 0), self.preferences.get("label_smoothing", 0)
        return -((1 - smoothing) * F.logsigmoid(z) + smoothing * F.logsigmoid(-z)).mean()

    def compare_on_pairs(self, preferences, clip, decay, *args):
        """Each step, and an evaluation of all pairs before the first one, whose last round is not filled."""
        self.preferences, self.accuracies, self.rewards = {"beta": BETA[preferences["loss"]], **preferences}, [], []
        path = self.write_pairs()
        given = {"data.path": path, "evaluation.path": path, "evaluation.every_steps": STEPS,
                 "evaluation.at_start": "true", **{f"preferences.{key}": value for key, value in preferences.items()}}
        fields = [word for field, value in given.items() for word in ("--set", f"{field}={value}")]
        self.compare(clip, decay, *fields, *args)

        self.assertNotEqual(len(self.samples) % PAIRS, 0)
        at_start = json.loads((self.out / "evaluations.jsonl").read_text().splitlines()[0])
        expected = self.loss(self.weights, *self.rows(self.samples)).item()
        self.assertTrue(abs(at_start["loss"] - expected) <= TOLERANCE * expected, (at_start, expected))
        said = [(line["tokens"], line["accuracy"]) for line in [*metrics(self.out), at_start]]
        self.assertEqual([tokens for tokens, _ in said], [PAIRS] * STEPS + [len(self.samples)])
        for (_, accuracy), (least, most) in zip(said, self.accuracies, strict=True):
            self.assertTrue(least <= accuracy <= most, (said, self.accuracies))
        self.assertGreater(len({most for _, most in self.accuracies}), 2)
        np.testing.assert_allclose([[line["chosen_reward"], line["rejected_reward"]]
                                    for line in [*metrics(self.out), at_start]], self.rewards, rtol=TOLERANCE,
                                   atol=TOLERANCE)
