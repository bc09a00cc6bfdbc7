"""Against PyTorch: from the same GPT-2 folder and data, fp32, every loss and every exported weight within 1e-4."""

from eps_run import long
from torch_gpt2_run import LAYERS, Gpt2Reference
from torch_reference import in_tiles


class TorchTest(Gpt2Reference):
    def test_losses_and_weights_without_clipping(self):
        self.compare(None, "CONSTANT")

    def test_losses_and_weights_without_clipping_on_two_workers_under_the_smallest_plan(self):
        self.compare(None, "LINEAR", "--workers", 2, "--set", "relay.inner=RECOMPUTE")

    def test_losses_and_weights_with_exact_clipping(self):
        self.compare(0.5, "COSINE")

    def test_losses_and_weights_with_a_feed_forward_part_in_tiles(self):
        self.compare(0.5, "COSINE", *in_tiles())

    def test_losses_and_weights_with_frozen_tensors_and_exact_clipping(self):
        self.compare(0.3, "COSINE", freeze=("transformer.w*", "transformer.h.0.*", "*.1.attn.*", "*.2.ln_1.weight"))

    @long
    def test_losses_and_weights_with_dropped_layers_and_exact_clipping(self):
        self.compare(0.5, "COSINE", "--workers", 2, drop={"blocks": LAYERS, "share": 0.4})

    def test_losses_and_weights_with_later_layers_dropped_more_often(self):
        self.compare(None, "LINEAR", drop={"blocks": LAYERS, "share": 0.8, "rule": "LINEAR"})
