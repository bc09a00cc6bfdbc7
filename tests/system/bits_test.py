"""Invariant 1 and 2: the same RunSpec gives the same bits, however it is carried out."""

import json
import shutil

from eps_run import SystemTest, latest_checkpoint, model_hash, needs_at_least, summary, train


class BitsTest(SystemTest):
    PRECISIONS = {
        "bf16": {"precision": {"wire": "BF16", "gradients": "BF16"}},
        "fp32": {"precision": {"wire": "FP32", "gradients": "FP32"}},
    }

    def reference(self, changes):
        spec = self.work.spec(changes)
        self.train_ok(spec, self.work.out("reference"))
        return spec, model_hash(self.work.out("reference"))

    def same_bits(self, spec, expected, name, *args):
        out = self.work.out(name)
        self.train_ok(spec, out, *args)
        self.assertEqual(model_hash(out), expected, f"{name}: other bits")
        return out

    def variants(self, changes):
        spec, expected = self.reference(changes)
        reference = summary(self.work.out("reference"))
        self.assertLess(reference["loss_last"], reference["loss_first"] - 0.5, "the run learns nothing")
        for workers in (2, 3):
            out = self.same_bits(spec, expected, f"{workers}-workers", "--workers", workers)
            self.assertEqual(summary(out)["loss"], reference["loss"])
        for threads in (1, 2):  # one of them is the default here
            self.same_bits(spec, expected, f"{threads}-threads", "--threads", threads)
        # The smallest cap recomputes everything; the default cap keeps everything.
        refused = train(spec, self.work.out("refused"), "--device-memory", 4096)
        smallest = needs_at_least(refused.stderr)
        out = self.same_bits(spec, expected, "smallest-cap", "--device-memory", smallest)
        self.assertEqual(summary(out)["device_peak_bytes"], smallest)
        self.same_bits(spec, expected, "recompute", "--set", "relay.inner=RECOMPUTE")
        self.same_bits(spec, expected, "keep", "--set", "relay.inner=KEEP")
        self.same_bits(spec, expected, "three-slots", "--set", "relay.weight_slots=3")
        self.same_bits(spec, expected, "one-slot", "--set", "relay.weight_slots=1")
        for blocks in (1, 2):
            out = self.same_bits(spec, expected, f"{blocks}-depth-first", "--workers", blocks,
                                 "--set", f"relay.depth_first_blocks={blocks}")
            for log in (out / "logs").glob("gpu_worker-*.log"):
                self.assertIn(f"depth_first_blocks={blocks}", log.read_text())
        self.same_bits(spec, expected, "resident", "--set", "relay.resident=true")
        for transport in ("GRPC", "SHARED_MEMORY"):
            out = self.same_bits(spec, expected, transport, "--workers", 2, "--set", f"transport={transport}")
            for log in (out / "logs").glob("gpu_worker-*.log"):
                self.assertIn(f"transport={transport.lower()}", log.read_text())

    def test_bf16_wire_gives_the_same_bits_however_the_run_is_carried_out(self):
        self.variants(self.PRECISIONS["bf16"])

    def test_fp32_wire_gives_the_same_bits_however_the_run_is_carried_out(self):
        self.variants(self.PRECISIONS["fp32"])

    def test_a_model_of_the_llama_family_gives_the_same_bits_however_the_run_is_carried_out(self):
        shape = {"family": "LLAMA", "layers": 3, "d_model": 48, "heads": 6, "kv_heads": 2, "head_dim": 10, "d_ff": 100,
                 "rope_theta": 1000.0, "rope_scaling": {"type": "LLAMA3", "factor": 4, "original_context": 16},
                 "qkv_bias": True, "qk_norm": True, "sliding_window": 20, "attention_dropout": 0.1}
        self.variants({"model": shape})

    def test_a_feed_forward_part_in_tiles_gives_the_same_bits_however_the_run_is_carried_out(self):
        # Of 224 rows three have 64, and one 32.
        self.variants({"model": {"residual_dropout": 0.1}, "batch": {"micro_batch": 7, "feed_forward_tile": 64}})

    def scales(self, out):
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return [(line["loss_scale"], line["skipped"]) for line in lines]

    def test_fp16_skips_what_overflows_and_gives_the_same_bits_for_any_workers_and_through_a_resume(self):
        # The first gradients overflow, and the scale doubles until others do.
        precision = {"wire": "FP16", "gradients": "FP16", "loss_scale": {"initial": 2 ** 22, "growth_interval": 3}}
        for mode, moments in (("EXACT", "FP32"), (None, "BF16")):
            clip = {"mode": mode, "norm": 0.5} if mode else None
            precision["moments"] = moments
            spec, expected = self.reference({"precision": precision, "optimizer": {"clip": clip}, "steps": 24})
            out = self.work.out("reference")
            reference, scales = summary(out), self.scales(out)
            self.assertLess(reference["loss_last"], reference["loss_first"] - 0.5, "the run learns nothing")
            self.assertEqual(reference["skipped_steps"], sum(skipped for _, skipped in scales))
            self.assertTrue(scales[0][1], scales)
            good = 0
            for (scale, skipped), (following, _) in zip(scales, scales[1:]):
                good = 0 if skipped else good + 1
                self.assertEqual(following, scale / 2 if skipped else scale * 2 if good == 3 else scale, scales)
                good %= 3
            for workers, transport in ((2, "SHARED_MEMORY"), (3, "GRPC")):
                self.same_bits(spec, expected, f"{mode}-{workers}-workers", "--workers", workers, "--set",
                               f"transport={transport}")
            out = self.resumed(spec, expected, f"{mode}-resumed")
            self.assertEqual(self.scales(out), scales)
            shutil.rmtree(self.work.out("reference"))

    def test_fp16_learns_what_fp32_does(self):
        losses = []
        for form in ("FP32", "FP16"):
            spec = self.work.spec({"precision": {"wire": form, "gradients": form}}, name=f"{form}.json")
            out = self.work.out(form)
            self.train_ok(spec, out)
            losses.append(summary(out)["loss"])
        self.assertEqual(summary(out)["skipped_steps"], 0)
        for fp32, fp16 in zip(*losses):
            self.assertAlmostEqual(fp32, fp16, delta=2e-3 * fp32)

    def resumed(self, spec, expected, name):
        out = self.work.out(name)
        self.begin(spec, out, 7)
        return self.same_bits(spec, expected, name, "--resume")

    def test_narrow_moments_take_less_and_learn_what_fp32_ones_do_with_the_same_bits_for_any_workers(self):
        # Tensors that end within a block of fp8.
        odd = {"model": {"d_model": 48, "heads": 3, "context": 23}, "steps": 40}
        spec, fp32_hash = self.reference({**odd, "precision": {"moments": "FP32"}})
        fp32 = summary(self.work.out("reference"))
        fp32_file = (latest_checkpoint(self.work.out("reference")) / "optimizer.safetensors").stat().st_size
        # Bytes a parameter, and how far a loss may be off: roundings are right on average.
        for form, bytes_each, off in (("BF16", 10, 5e-3), ("FP8", 8 + 1 / 16, 2e-2)):
            with self.subTest(form):
                shutil.rmtree(self.work.out("reference"))
                spec, expected = self.reference({**odd, "precision": {"moments": form}})
                reference = summary(self.work.out("reference"))
                self.assertAlmostEqual(reference["model_state_bytes"] / fp32["model_state_bytes"], bytes_each / 14, delta=1e-3)
                size = (latest_checkpoint(self.work.out("reference")) / "optimizer.safetensors").stat().st_size
                self.assertAlmostEqual(size / fp32_file, 1 / 2, delta=0.05)
                self.assertNotEqual(expected, fp32_hash)
                self.assertEqual(reference["loss"][0], fp32["loss"][0])
                self.assertLess(reference["loss"][-1], reference["loss"][0] - 0.5, "the run learns nothing")
                for narrow, exact in zip(reference["loss"], fp32["loss"]):
                    self.assertAlmostEqual(narrow, exact, delta=off * exact)
                self.same_bits(spec, expected, f"{form}-3-workers", "--workers", 3)
                self.same_bits(spec, expected, f"{form}-2-threads", "--threads", 2)
                out = self.resumed(spec, expected, f"{form}-resumed")
                self.assertEqual(*((latest_checkpoint(folder) / "optimizer.safetensors").read_bytes()
                                   for folder in (out, self.work.out("reference"))))
                other = self.work.spec({**odd, "precision": {"moments": "FP32"}}, name="other.json")
                refused = train(other, out, "--resume")
                self.assertEqual(refused.returncode, 2)
                self.assertIn(f"precision.moments: was {form}, now FP32", refused.stderr)

    def test_dropout_and_odd_counts_give_the_same_bits_for_one_and_two_workers(self):
        spec, expected = self.reference({
            "model": {"dropout": 0.1, "d_model": 48, "heads": 3, "context": 23},
            "batch": {"virtual_nodes": 5, "micro_batches": 1, "micro_batch": 3}})
        self.same_bits(spec, expected, "2-workers", "--workers", 2, "--set", "relay.inner=RECOMPUTE")
        self.same_bits(spec, expected, "3-workers", "--workers", 3)

    def test_every_way_of_clipping_gives_the_same_bits_for_one_and_two_workers(self):
        for mode in ("EXACT", "PER_BLOB", "LAGGED", None):
            clip = {"mode": mode, "norm": 0.5} if mode else None
            spec = self.work.spec({"optimizer": {"clip": clip}}, name=f"{mode}.json")
            hashes = set()
            for workers in (1, 2):
                out = self.work.out(f"{mode}-{workers}")
                self.train_ok(spec, out, "--workers", workers)
                hashes.add(model_hash(out))
            self.assertEqual(len(hashes), 1, f"clip {mode}")

    def test_lion_with_narrow_moments_takes_7_or_8_bytes_a_parameter_and_gives_the_same_bits_for_two_workers(self):
        for form, bytes_each in (("BF16", 8), ("FP8", 7 + 1 / 32)):
            with self.subTest(form):
                shutil.rmtree(self.work.out("reference"), ignore_errors=True)
                spec, expected = self.reference({
                    "optimizer": {"adamw": None, "lion": {"weight_decay": 0.1}, "schedule": {"peak": 5e-4}},
                    "precision": {"moments": form}})
                reference = summary(self.work.out("reference"))
                self.assertAlmostEqual(reference["model_state_bytes"] / reference["parameters"], bytes_each, delta=0.1)
                self.assertLess(reference["loss_last"], reference["loss_first"] - 0.5, "the run learns nothing")
                self.same_bits(spec, expected, f"{form}-2-workers", "--workers", 2)
                self.resumed(spec, expected, f"{form}-resumed")

    def test_lamb_and_parameter_groups_give_the_same_bits_for_any_workers_and_ways_of_clipping(self):
        hashes = set()
        for mode in ("EXACT", "PER_BLOB", "LAGGED", None):
            with self.subTest(mode):
                shutil.rmtree(self.work.out("reference"), ignore_errors=True)
                spec, expected = self.reference({
                    "optimizer": {"adamw": None, "lamb": {"weight_decay": 0.1}, "schedule": {"peak": 0.02},
                                  "clip": {"mode": mode, "norm": 0.5} if mode else None,
                                  "groups": [{"tensors": ["*.bias"], "learning_rate_scale": 0.5},
                                             {"tensors": ["transformer.w*"], "weight_decay": 0}]},
                    "precision": {"moments": "BF16"}})
                reference = summary(self.work.out("reference"))
                self.assertLess(reference["loss_last"], reference["loss_first"] - 0.5, "the run learns nothing")
                self.same_bits(spec, expected, f"{mode}-3-workers", "--workers", 3, "--threads", 2)
                self.resumed(spec, expected, f"{mode}-resumed")
                hashes.add(expected)
        self.assertEqual(len(hashes), 4)

    def test_sgd_with_momentum_gives_the_same_bits_for_one_and_two_workers(self):
        spec, expected = self.reference({"optimizer": {
            "adamw": None, "sgd": {"momentum": 0.9, "weight_decay": 0.01}, "schedule": {"peak": 0.05}}})
        self.same_bits(spec, expected, "2-workers", "--workers", 2)
