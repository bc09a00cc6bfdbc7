"""What the daemon's optimizer does beside AdamW, against PyTorch: Adam with L2, trust ratios, and tensors with rates of their own."""

import torch

from torch_gpt2_run import Gpt2Reference
from torch_lamb import Lamb
from torch_reference import PEAK


class OptimizerTest(Gpt2Reference):
    def lamb(self, **options):
        def optimizer(w):
            self.made = Lamb([{"params": [p for p in w.values() if p.dim() >= 2], "weight_decay": 0.1},
                              {"params": [p for p in w.values() if p.dim() < 2]}], PEAK, (0.9, 0.95), 1e-6, **options)
            return self.made
        self.optimizer = optimizer
        return {"adamw": None, "lamb": {"beta1": 0.9, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.1, **options}}

    def test_losses_and_weights_with_lamb(self):
        self.compare(None, "COSINE", "--workers", 2, rule=self.lamb())
        self.assertGreater(max(self.made.ratios), 2 * min(self.made.ratios), "one ratio would do for all")

    def test_losses_and_weights_with_lamb_bound_ratios_and_exact_clipping(self):
        bound = 0.07
        self.compare(0.5, "LINEAR", rule=self.lamb(max_trust_ratio=bound))
        reached = sum(ratio == bound for ratio in self.made.ratios)
        self.assertTrue(0 < reached < len(self.made.ratios), f"{reached} of {len(self.made.ratios)} ratios are the bound")

    def test_losses_and_weights_with_adam_whose_decay_is_a_gradient(self):
        def optimizer(w):
            return torch.optim.Adam([{"params": [p for p in w.values() if p.dim() >= 2], "weight_decay": 0.1},
                                     {"params": [p for p in w.values() if p.dim() < 2]}], PEAK, (0.9, 0.95), 1e-8)
        self.optimizer = optimizer
        rule = {"adamw": None, "adam": {"beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}}
        self.compare(0.5, "COSINE", "--workers", 2, rule=rule)

    def test_losses_and_weights_with_parameter_groups(self):
        def optimizer(w):
            def group(name, p):
                decay, scale = 0.1 if p.dim() >= 2 else 0.0, 1.0
                if name.startswith("transformer.h."):
                    scale = 0.5
                if name.startswith("transformer.h.2.") and not name.endswith(".bias"):
                    decay, scale = 0.3, 1.0  # the last group counts whole
                if name == "transformer.wte.weight":
                    decay, scale = 0.0, 2.0
                return {"params": [p], "weight_decay": decay, "scale": scale}
            return torch.optim.AdamW([group(name, p) for name, p in w.items()], lr=PEAK, betas=(0.9, 0.95), eps=1e-8)
        self.optimizer = optimizer
        self.compare(0.5, "COSINE", "--workers", 2, rule={"groups": [
            {"tensors": ["transformer.h.*"], "learning_rate_scale": 0.5},
            {"tensors": ["transformer.h.2.*", "!*.bias"], "weight_decay": 0.3},
            {"tensors": ["*.wte.*"], "learning_rate_scale": 2, "weight_decay": 0}]})
