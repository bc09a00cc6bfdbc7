"""Invariant 1 and 2: the same RunSpec gives the same bits, however it is carried out."""

from eps_run import SystemTest, model_hash, needs_at_least, summary, train


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
        self.same_bits(spec, expected, "resident", "--set", "relay.resident=true")
        for transport in ("GRPC", "SHARED_MEMORY"):
            out = self.same_bits(spec, expected, transport, "--workers", 2, "--set", f"transport={transport}")
            for log in (out / "logs").glob("gpu_worker-*.log"):
                self.assertIn(f"transport={transport.lower()}", log.read_text())

    def test_bf16_wire_gives_the_same_bits_however_the_run_is_carried_out(self):
        self.variants(self.PRECISIONS["bf16"])

    def test_fp32_wire_gives_the_same_bits_however_the_run_is_carried_out(self):
        self.variants(self.PRECISIONS["fp32"])

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

    def test_sgd_with_momentum_gives_the_same_bits_for_one_and_two_workers(self):
        spec, expected = self.reference({"optimizer": {
            "adamw": None, "sgd": {"momentum": 0.9, "weight_decay": 0.01}, "schedule": {"peak": 0.05}}})
        self.same_bits(spec, expected, "2-workers", "--workers", 2)
