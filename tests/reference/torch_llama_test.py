"""Against PyTorch: folders of the Llama family, fp32, every loss and every exported weight within 1e-4."""

from torch_llama_run import LlamaReference
from torch_reference import in_tiles


class TorchLlamaTest(LlamaReference):
    def matches(self, name, changes, clip=None, decay="CONSTANT", *args, context=None):
        self.begin_from(name, changes, context)
        if context:
            args += ("--set", f"model.context={context}")
        self.compare(clip, decay, *args)

    def test_llama_with_the_positions_of_llama_3_and_exact_clipping(self):
        self.matches("llama", {"rope_theta": 500.0, "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 60}}, 0.5, "COSINE")

    def test_llama_of_odd_shapes_with_a_tied_head_on_two_workers_under_the_smallest_plan(self):
        self.matches("odd", {"hidden_size": 30, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 6,
                             "intermediate_size": 37, "tie_word_embeddings": True, "attention_bias": True},
                     None, "LINEAR", "--workers", 2, "--set", "relay.inner=RECOMPUTE")

    def test_llama_with_a_feed_forward_part_in_tiles_on_two_workers(self):
        self.matches("tiles", {"intermediate_size": 37}, None, "LINEAR", "--workers", 2, *in_tiles())

    def test_mistral_with_a_sliding_window_and_a_context_below_its_own(self):
        self.matches("mistral", {"model_type": "mistral", "sliding_window": 7, "head_dim": 16,
                                 "max_position_embeddings": 1000}, context=23)

    def test_qwen2_with_biases_and_one_head_of_keys(self):
        self.matches("qwen2", {"model_type": "qwen2", "num_key_value_heads": 1, "head_dim": 10,
                               "rope_scaling": {"rope_type": "linear", "factor": 2.0}})

    def test_mixtral_on_two_workers(self):
        self.matches("mixtral", {"model_type": "mixtral", "num_local_experts": 5, "num_experts_per_tok": 2,
                                 "intermediate_size": 30}, 0.5, "COSINE", "--workers", 2)
        self.routes_the_first_step_alike()

    def test_qwen3_with_experts_recomputed(self):
        self.matches("qwen3_moe", {"model_type": "qwen3_moe", "head_dim": 10, "num_experts": 8, "num_experts_per_tok": 3,
                                   "moe_intermediate_size": 22, "norm_topk_prob": True}, None, "LINEAR",
                     "--set", "relay.inner=RECOMPUTE")
        self.routes_the_first_step_alike()

    def test_qwen3_with_norms_of_heads_and_yarn(self):
        self.matches("qwen3", {"model_type": "qwen3", "head_dim": 10, "intermediate_size": 128, "rope_theta": 100.0,
                               "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 4,
                                                "original_max_position_embeddings": 60}})
