"""Against PyTorch: models that learn which of two answers is preferred, fp32, every loss and every tensor within 1e-4,
the accuracy and the rewards of every step too; what is frozen keeps its bits."""

from torch_lora import WithAdapters
from torch_preferences import PreferencesReference

POSITIONS = {"max_position_embeddings": 61}


class DpoTest(WithAdapters, PreferencesReference):
    def test_dpo_with_label_smoothing_and_exact_clipping_on_two_workers(self):
        self.begin_from("base", POSITIONS)
        self.adapt("dpo", rank=4, alpha=8)
        self.compare_on_pairs({"loss": "DPO", "label_smoothing": 0.1}, 0.1, "COSINE", "--workers", 2)


class SimPoTest(PreferencesReference):
    def test_simpo_of_a_whole_model_with_a_margin_and_several_pairs_in_a_micro_batch_recomputed(self):
        self.begin_from("simpo", POSITIONS)
        self.compare_on_pairs({"loss": "SIMPO", "margin": 0.5}, None, "LINEAR", "--set", "relay.inner=RECOMPUTE",
                              "--set", "batch.micro_batches=1", "--set", "batch.micro_batch=4")


class OrpoTest(PreferencesReference):
    def test_orpo_of_a_whole_model_with_a_beta_of_its_own_on_two_workers(self):
        self.begin_from("orpo", POSITIONS)
        self.compare_on_pairs({"loss": "ORPO", "beta": 0.5}, 0.5, "COSINE", "--workers", 2)
