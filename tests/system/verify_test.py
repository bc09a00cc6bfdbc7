"""eps verify: every way to carry a run out gives the same bits, and a relay that is wrong is named by tensor."""

import json
import os
import shutil
import signal
import subprocess
import time
import unittest

from eps_run import BIN, DEVICE, EPS, TIME_SCALE, SystemTest, children, metrics, run

FAULTY_WORKER = BIN / "gpu_worker_with_faults"  # of ./build --test-programs
needs_faulty_worker = unittest.skipUnless(FAULTY_WORKER.exists(), f"{FAULTY_WORKER} is not built (--test-programs)")

LLAMA = {"family": "LLAMA", "layers": 3, "d_model": 48, "heads": 6, "kv_heads": 2, "head_dim": 10, "d_ff": 100,
         "qkv_bias": True, "qk_norm": True, "attention_dropout": 0.1}
BERT = {"model": {"family": "BERT", "layers": 3, "d_model": 48, "heads": 6, "d_ff": 100, "vocab": 257, "dropout": 0.1},
        "data": {"mask": {"token": 256}}}


class VerifyTest(SystemTest):
    def setUp(self):
        super().setUp()
        # Where temporary files go: what is left behind is seen.
        self.temporary = self.work.path / "temporary"
        self.temporary.mkdir()
        self.environment = {**os.environ, "TMPDIR": str(self.temporary)}

    def verify(self, spec, *args, program=EPS, **environment):
        return run([str(program), "verify", "--run", str(spec), *DEVICE, *map(str, args)], timeout=600,
                   env={**self.environment, **environment})

    def verified(self, spec, *args):
        done = self.verify(spec, "--json", *args)
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}")
        self.assertEqual(list(self.temporary.iterdir()), [], "something is left behind")
        result = json.loads(done.stdout)
        self.assertTrue(result["same"])
        return {variant["name"].split(" (")[0]: variant for variant in result["variants"]}


class SameBitsTest(VerifyTest):
    EVERYTHING = {"as the RunSpec says": "baseline", "everything resident": "same",
                  "relayed, all blocks depth first": "same", "relayed, smallest cap": "same",
                  "everything recomputed": "same", "everything swapped": "same", "2 workers": "same",
                  "2 workers as a group": "same", "over gRPC": "same"}

    def check_everything(self, changes):
        variants = self.verified(self.work.spec(changes))
        expected = dict(self.EVERYTHING)
        if DEVICE:
            # GPUs have groups where NCCL is, and two of them; graphs where a step has work that comes again.
            graphs = variants["work that comes again as graphs"]
            self.assertIn(graphs["result"], ("same", "skipped") if changes else ("same",), graphs)
            expected["work that comes again as graphs"] = graphs["result"]
            if variants["2 workers as a group"]["result"] == "skipped":
                expected["2 workers as a group"] = "skipped"
        self.assertEqual({name: variant["result"] for name, variant in variants.items()}, expected)
        for variant in variants.values():
            if variant["result"] == "skipped":
                continue
            self.assertEqual(variant["steps"], 2)
            self.assertEqual(variant["tensors"], next(iter(variants.values()))["tensors"])
            self.assertGreater(variant["tokens_per_second"], 0)

    def test_a_gpt2_run_has_the_same_bits_in_every_way(self):
        self.check_everything({})

    def test_a_llama_run_with_dropout_has_the_same_bits_in_every_way(self):
        self.check_everything({"model": LLAMA})

    def test_a_bert_run_with_dropout_has_the_same_bits_in_every_way(self):
        self.check_everything(BERT)

    def test_a_classifier_of_pairs_has_the_same_bits_in_every_way(self):
        rows = "".join(f"text number {i}\tand {'another' if i % 2 else 'the same'}\t{i % 2}\n" for i in range(64))
        (self.work.path / "pairs.tsv").write_text("sentence1\tsentence2\tlabel\n" + rows)
        self.check_everything({"model": {**BERT["model"], "vocab": 256, "classes": 2}, "data": {"path": "pairs.tsv"}})

    def test_a_run_with_frozen_tensors_and_an_evaluation_has_the_same_bits_in_every_way(self):
        self.check_everything({"model": {"freeze": ["transformer.h.0.*", "*.mlp.c_fc.weight"]},
                               "evaluation": {"held_out": 0.1, "every_steps": 1, "samples": 9}})

    def test_updates_that_are_not_held_are_compared_too(self):
        for mode in ("PER_BLOB", "LAGGED", None):
            clip = {"mode": mode, "norm": 0.5} if mode else None
            spec = self.work.spec({"optimizer": {"clip": clip}, "precision": {"wire": "FP32", "gradients": "FP32"}})
            variants = self.verified(spec, "--only", "relay,workers", "--workers", 3, "--steps", 3)
            self.assertEqual(variants["3 workers"]["steps"], 3)

    def test_steps_that_are_skipped_are_compared_too(self):
        precision = {"wire": "FP16", "gradients": "FP16", "loss_scale": {"initial": 2 ** 24, "growth_interval": 3}}
        self.verified(self.work.spec({"precision": precision}), "--only", "recompute,transport")

    def test_the_table_says_what_was_compared_and_what_has_no_room(self):
        plan = run([str(EPS), "plan", "--run", str(self.work.spec()), "--json"])
        smallest = json.loads(plan.stdout)["device"]["smallest_cap_bytes"]
        done = self.verify(self.work.spec(), "--device-memory", smallest, "--only", "relay,recompute")
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}")
        lines = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
        self.assertIn("the baseline", lines["as the RunSpec says"])
        self.assertIn("skipped: device memory of", lines["everything resident"])
        self.assertIn("needs at least", lines["everything resident"])
        self.assertNotIn("\033", done.stdout)
        self.assertIn("eps: the same bits in 1 comparison, 3 skipped", done.stdout)

    def test_the_schedule_stays_the_run_specs(self):
        """Digests of the first steps are those of the whole run: a shorter run would decay faster."""
        kept = self.work.path / "kept"
        self.verified(self.work.spec(), "--only", "transport", "--out", kept)
        folder = next(kept.glob("0-*"))
        out = self.work.out("whole")
        self.train_ok(self.work.spec(), out)
        lines, whole = metrics(folder), metrics(out)
        for key in ("loss", "learning_rate", "gradient_norm"):
            self.assertEqual([line[key] for line in lines], [line[key] for line in whole[:2]])
        again = self.verify(self.work.spec(), "--out", kept)
        self.refused(again, 2, "--out", "not an empty folder")


class BadInputTest(VerifyTest):
    def test_bad_input_and_too_small_a_cap_are_refused_before_anything_starts(self):
        for code, words, spec, args in (
                (2, ["virtual_knodes"], self.work.spec({"batch": {"virtual_knodes": 1}}, name="bad.json"), []),
                (2, ["missing.txt"], self.work.spec({"data": {"path": "missing.txt"}}, name="data.json"), []),
                (2, ["nothing"], self.work.spec(), ["--set", "batch.nothing=3"]),
                (2, ["--workers: 5", "batch.virtual_nodes is 4"], self.work.spec(), ["--workers", 5]),
                (3, ["needs at least"], self.work.spec(), ["--device-memory", 4096])):
            done = self.verify(spec, *args)
            self.refused(done, code, *words)
            self.assertEqual(done.stdout, "")
        for args in (["--only", "nothing"], ["--workers", 1], ["--steps", 0]):
            self.assertEqual(self.verify(self.work.spec(), *args).returncode, 2)
        self.assertEqual(list(self.temporary.iterdir()), [])


    def test_what_the_daemon_refuses_is_bad_input_and_no_verdict(self):
        for more in ([], ["--json"]):
            done = self.verify(self.work.spec(), "--set", "model.vocab=100", *more)  # the text has other bytes
            self.refused(done, 2, "eps: ", "vocab")
            self.assertEqual(done.stdout, "")
        self.assertEqual(list(self.temporary.iterdir()), [])


class SignalTest(VerifyTest):
    def test_a_signal_ends_it_at_once_and_leaves_nothing(self):
        spec = self.work.spec({"steps": 100000})
        for number in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen([str(EPS), "verify", "--run", str(spec), "--steps", "100000"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                                       text=True, env=self.environment)
            deadline = time.monotonic() + 60 * TIME_SCALE
            while not (started := children(process.pid, "gpu_worker")):
                self.assertLess(time.monotonic(), deadline, "no worker was started")
                time.sleep(0.01)
            started += children(process.pid, "eps_server")
            process.send_signal(number)
            _, stderr = process.communicate(timeout=60 * TIME_SCALE)
            self.assertEqual(process.returncode, 128 + number, stderr)
            self.gone(started)
            self.assertEqual(list(self.temporary.iterdir()), [])


@needs_faulty_worker
class FaultTest(VerifyTest):
    """The baseline is resident, which no fault touches; the variant relays, which is wrong."""

    def setUp(self):
        super().setUp()
        self.faulty = self.work.path / "faulty"
        self.faulty.mkdir()
        for program in ("eps", "eps_server"):
            shutil.copy(BIN / program, self.faulty)
        shutil.copy(FAULTY_WORKER, self.faulty / "gpu_worker")

    def found(self, fault, changes=None, only="relay", *args):
        spec = self.work.spec({"relay": {"resident": True}, **(changes or {})})
        done = self.verify(spec, "--json", "--only", only, *args, program=self.faulty / "eps", EPS_INJECT_FAULT=fault)
        self.assertEqual(done.returncode, 1, f"{done.stdout}\n{done.stderr}")
        result = json.loads(done.stdout)
        self.assertFalse(result["same"])
        self.assertEqual([str(path) for path in self.temporary.iterdir()], [result["kept"]])
        self.assertEqual(len(list((self.temporary / result["kept"]).glob("*/logs/gpu_worker-1.log"))),
                         len(result["variants"]))
        shutil.rmtree(result["kept"])
        difference = result["variants"][-1]["difference"]
        self.assertEqual(difference["step"], 0)
        self.assertEqual(difference["what"], "gradient")
        return difference

    def layers(self, names):
        """Blocks that the tensors `names` belong to."""
        return {part for name in names for part in name.split(".") if part.isdigit()}

    def test_without_a_fault_the_faulty_worker_is_right(self):
        done = self.verify(self.work.spec(), "--only", "relay", program=self.faulty / "eps")
        self.assertEqual(done.returncode, 0, f"{done.stdout}\n{done.stderr}")

    def test_a_weight_slot_that_is_stale_on_the_way_back_is_named(self):
        for transport in ("SHARED_MEMORY", "GRPC"):  # weights are read in place, or from the slot
            for wire in ("BF16", "FP32"):
                difference = self.found("stale_weights@h.1", {"transport": transport, "precision": {
                    "wire": wire, "gradients": wire}})
                self.assertEqual(difference["layer"], "h.1")
                self.assertTrue(difference["tensor"].startswith("transformer.h.1."), difference["tensor"])
                self.assertIn("it begins in the backward of h.1", difference["text"])
                self.assertEqual(self.layers(difference["gradients"]), {"0", "1"})
                self.assertEqual(difference["loss"], difference["baseline_loss"])

    def test_a_weight_slot_that_is_stale_on_the_way_there_is_named(self):
        for transport in ("SHARED_MEMORY", "GRPC"):
            difference = self.found("stale_weights_forward@h.1", {"transport": transport})
            self.assertNotEqual(difference["loss"], difference["baseline_loss"])
            self.assertIn("it begins in the forward of h.1 (vnode 0, micro-batch 0)", difference["text"])

    def test_a_micro_batch_whose_gradient_is_dropped_is_named(self):
        for clip in ("EXACT", "PER_BLOB"):
            difference = self.found("drop_micro_batch@h.2", {"optimizer": {"clip": {"mode": clip, "norm": 0.5}}})
            self.assertEqual(difference["layer"], "h.2")
            # Clipping by the global norm spreads it over all weights; the gradients before it tell where it was.
            self.assertEqual(self.layers(difference["gradients"]), {"2"})
            self.assertEqual(len(difference["gradients"]), 12)
            if clip == "EXACT":
                self.assertGreater(len(difference["masters"]), 12)

    def test_stashes_that_are_swapped_are_named_in_every_family(self):
        # A block of BERT begins with the norm of the one before.
        for layer, changes, tensor in (("h.1", {}, "transformer.h.1."), ("layers.1", {"model": LLAMA}, "model.layers.1."),
                                       ("layer.1", BERT, ("bert.encoder.layer.1.", "bert.encoder.layer.0.output.LayerNorm."))):
            difference = self.found(f"swap_stash@{layer}", changes)
            self.assertTrue(difference["tensor"].startswith(tensor), difference["tensor"])
            self.assertIn("it begins in the backward of", difference["text"])

    def test_a_fault_of_one_worker_of_several_is_named_too(self):
        spec = self.work.spec({"relay": {"resident": True}})
        done = self.verify(spec, "--only", "workers", "--set", "relay.resident=false", program=self.faulty / "eps",
                           EPS_INJECT_FAULT="drop_micro_batch@h.0")
        # One worker drops one micro-batch, each of two workers drops one: other bits.
        self.assertEqual(done.returncode, 1, f"{done.stdout}\n{done.stderr}")
        self.assertRegex(done.stdout, r"2 workers +2 .*DIFFERS: step 0, gradient of transformer\.h\.0\.")
        self.assertRegex(done.stdout, r"eps: NOT the same bits in 2 comparisons; logs and digests are in ")

    def test_a_worker_that_dies_fails_its_variant_and_is_quoted(self):
        done = self.verify(self.work.spec(), "--only", "transport", program=self.faulty / "eps",
                           EPS_INJECT_FAULT="nothing")
        self.assertEqual(done.returncode, 1)
        self.assertIn("FAILED: gpu_worker 1 ended: exit code 2", done.stdout)
        self.assertIn("must be KIND@LAYER", done.stdout)
