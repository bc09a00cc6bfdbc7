"""Against PyTorch: models with adapters of low rank, fp32, every loss and every tensor of the checkpoint within 1e-4; what
is frozen keeps its bits."""

import json
import math

import numpy as np
import torch

import safetensors_file
import torch_lora
from eps_run import latest_checkpoint, summary
from torch_bert_run import ClassesReference, MaskedTokensReference
from torch_gpt2_run import Gpt2Reference
from torch_llama_run import LlamaReference
from torch_lora import WithAdapters
from torch_reference import TOLERANCE

SMALLEST_PLAN = ("--set", "relay.inner=RECOMPUTE")


class LlamaTest(WithAdapters, LlamaReference):
    def matches(self, name, changes, lora, clip, decay, *args, **kwargs):
        self.begin_from(f"{name}-base", changes)
        self.adapt(name, **lora)
        self.compare(clip, decay, *args, **kwargs)

    def test_llama_with_every_product_and_exact_clipping_on_two_workers(self):
        self.matches("llama", {}, {"rank": 4, "alpha": 8}, 0.1, "COSINE", "--workers", 2)

    def test_llama_with_some_of_the_products_of_each_input(self):
        self.matches("some", {"tie_word_embeddings": True}, {"rank": 9, "alpha": 5, "targets": [
            "k_proj", "mlp.up_proj", "model.layers.1.self_attn.q_proj", "down_proj"]}, None, "LINEAR", *SMALLEST_PLAN)

    def test_llama_whose_every_tensor_trains_beside_the_adapters(self):
        self.matches("whole", {"attention_bias": True},
                     {"rank": 2, "alpha": 2, "targets": ["q_proj", "v_proj", "gate_proj"]}, 0.5, "LINEAR", freeze=("!*",))

    def test_qwen3_with_queries_and_values_and_an_odd_rank(self):
        self.matches("qwen3", {"model_type": "qwen3", "head_dim": 10},
                     {"rank": 3, "alpha": 6, "targets": ["q_proj", "v_proj"]}, None, "COSINE")

    def test_qwen3_whose_norms_train_beside_the_adapters(self):
        self.matches("norms", {"model_type": "qwen3", "head_dim": 10}, {"rank": 5, "alpha": 10}, 0.1, "LINEAR",
                     "--workers", 2, *SMALLEST_PLAN, freeze=("!*norm*",))

    def test_qwen2_with_biases_and_a_scale_of_its_ranks_root(self):
        self.matches("qwen2", {"model_type": "qwen2", "num_key_value_heads": 1},
                     {"rank": 6, "alpha": 4, "rank_stabilized": True}, None, "CONSTANT", "--workers", 2, *SMALLEST_PLAN)

    def test_qwen2_whose_as_are_frozen_and_whose_biases_train(self):
        self.matches("frozen-a", {"model_type": "qwen2"}, {"rank": 4, "alpha": 8}, None, "LINEAR",
                     freeze=("*.lora_A.*", "!*.bias"))

    def test_llama_whose_bs_are_frozen(self):
        self.matches("frozen-b", {}, {"rank": 4, "alpha": 8}, None, "LINEAR", freeze=("*.lora_B.*",))


class Gpt2Test(WithAdapters, Gpt2Reference):
    def test_gpt2_with_one_product_of_each_half_of_a_block(self):
        self.adapt("gpt2", rank=4, alpha=8, targets=["c_attn", "mlp.c_proj"])
        self.compare(None, "COSINE")

    def test_gpt2_with_every_product_and_exact_clipping_on_two_workers_under_the_smallest_plan(self):
        self.adapt("gpt2-all", rank=7, alpha=7)
        self.compare(0.1, "LINEAR", "--workers", 2, *SMALLEST_PLAN)


class PeftTest(WithAdapters, LlamaReference):
    def test_qwen2_with_adapters_of_pefts_form_beside_some_products(self):
        self.begin_from("base", {"model_type": "qwen2"})
        self.adapt_from_peft("peft", rank=5, alpha=3, rank_stabilized=True,
                             targets=["v_proj", "o_proj", "model.layers.1.mlp.gate_proj"])
        self.compare(0.1, "COSINE", "--workers", 2)


class PeftOfGpt2Test(WithAdapters, Gpt2Reference):
    def test_gpt2_with_adapters_of_pefts_form_beside_every_product(self):
        self.adapt_from_peft("gpt2-peft", rank=4, alpha=8)
        self.compare(None, "LINEAR", *SMALLEST_PLAN)


class MaskedTokensTest(WithAdapters, MaskedTokensReference):
    def test_bert_that_predicts_masked_tokens_with_every_product(self):
        self.adapt("masked", rank=4, alpha=8)
        self.compare(0.1, "LINEAR", *self.args)


class ClassesTest(WithAdapters, ClassesReference):
    def test_bert_that_tells_classes_apart_with_queries_and_values(self):
        self.adapt("classes", rank=5, alpha=10, targets=["query", "value"])
        self.compare(0.1, "LINEAR", *self.args, "--workers", 2)


class FreshTest(WithAdapters, LlamaReference):
    """Adapters that a RunSpec gives to a folder without any."""

    RATE = 1e-30  # which no weight but a zero feels

    def one_step(self, name, model):
        out = self.work.out(name)
        self.train_ok(self.spec(None, "CONSTANT", model=model), out, "--steps", 1, "--set",
                      f"optimizer.schedule.peak={self.RATE}", "--set", "optimizer.schedule.final=0")
        return summary(out)["loss_first"], latest_checkpoint(out)

    def test_they_change_nothing_at_first_and_then_train(self):
        self.begin_from("fresh", {"model_type": "qwen2"})
        loss, checkpoint = self.one_step("fresh-adapted", {"lora": {"rank": 8}, "init_seed": 5})
        self.lora = json.loads((checkpoint / "config.json").read_text())["eps_lora"]
        self.assertEqual(self.lora,
                         {"rank": 8, "alpha": 8, "dropout": 0, "rank_stabilized": False, "targets": []})
        del self.lora["dropout"]  # the reference has none

        tensors = safetensors_file.read(checkpoint)
        self.assertEqual(sorted(tensors), sorted([*self.weights, *torch_lora.random_adapters(self.weights, rank=8)]))
        values = []
        for name in filter(torch_lora.is_adapter, sorted(tensors)):
            if name.endswith(torch_lora.B):
                self.assertLessEqual(np.abs(tensors[name]).max(), 2 * self.RATE, name)
                tensors[name][:] = 0
            else:
                values.append(tensors[name].astype(np.float64) * math.sqrt(3 * tensors[name].shape[1]))
        self.assertEqual(len({value.tobytes() for value in values}), len(values), "two are alike")
        values = np.concatenate([value.ravel() for value in values])
        self.assertLess(abs(values.mean()), 4 / math.sqrt(len(values)))
        self.assertLess(abs(values.std() - 1), 4 / math.sqrt(2 * len(values)))

        self.assertEqual(loss, self.one_step("fresh-base", {})[0])
        expected = LlamaReference.loss(self, self.weights, *self.batch(0)).item()
        self.assertLess(abs(loss - expected), TOLERANCE * expected)
        for name, value in self.weights.items():
            self.assertEqual(tensors[name].tobytes(), value.numpy().tobytes(), name)

        self.weights = {name: torch.from_numpy(value) for name, value in tensors.items()}
        self.compare(0.1, "COSINE", model={"lora": {"rank": 8}, "init_seed": 5})
