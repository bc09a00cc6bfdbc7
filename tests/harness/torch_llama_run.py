"""A run from a folder of the Llama family of random weights, and what PyTorch makes of it."""

import torch.nn.functional as F

import torch_llama
from eps_run import metrics
from torch_reference import TorchReference

SMALL = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 6,
         "num_key_value_heads": 2, "intermediate_size": 100, "max_position_embeddings": 29, "vocab_size": 259,
         "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "hidden_act": "silu"}


class LlamaReference(TorchReference):
    def begin_from(self, name, changes, context=None):
        self.config = {**SMALL, **changes}
        self.start(self.config, torch_llama.random_weights(self.config, seed=3),
                   context or self.config["max_position_embeddings"], name)

    def loss(self, w, tokens, labels):
        return torch_llama.loss(w, tokens, labels, self.config)

    def routes_the_first_step_alike(self):
        """How many tokens each expert had in the step whose weights are those that both begin with."""
        routed, num = [], torch_llama.num_experts(self.config)
        torch_llama.logits(self.weights, self.batch(0)[0], self.config, routed)
        rows = [F.one_hot(chosen, num).sum((0, 1)).tolist() for _, chosen in routed]
        loads = [[each / (sum(block) / num) for each in block] for block in rows]
        busiest = [max(block) for block in loads]
        block = busiest.index(max(busiest))
        self.assertEqual(metrics(self.work.out(f"{self.folder.name}-run"))[0]["experts"],
                         {"busiest": max(busiest), "busiest_block": block, "busiest_expert": loads[block].index(max(busiest)),
                          "mean_busiest": sum(busiest) / len(busiest), "idle": sum(block.count(0) for block in rows)})

    def compared(self, name, values):
        # A bias of the keys, turned by position, is no constant to the softmax: its gradient is small, not zero.
        return values
