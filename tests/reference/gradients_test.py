"""Against PyTorch in fp64, from random folders of odd shapes: logits, the loss and every gradient of our fp32, within 1e-4.

Gradients are read, not derived: with beta1 = 0 AdamW's first moment after one step is the step's gradient itself. Logits
are those that a worker hands to the daemon that serves the folder."""

import numpy as np
import torch

import safetensors_file
import torch_bert
import torch_gpt2
import torch_llama
import torch_lora
from eps_run import BIN, DEVICE, endpoints, latest_checkpoint, start, summary
from torch_reference import MICRO_BATCH, MICRO_BATCHES, TOLERANCE, VNODES, TorchReference
from worker_tap import WorkerTap

GPT2 = {"model_type": "gpt2", "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "embd_pdrop": 0.0,
        "attn_pdrop": 0.0, "resid_pdrop": 0.0}
LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
         "hidden_act": "silu"}
BERT = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "num_hidden_layers": 3, "hidden_act": "gelu",
        "layer_norm_eps": 1e-12, "type_vocab_size": 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MASK = {"token": 256, "share": 0.3, "never": [ord("e")]}  # the text is bytes



def relative(got, expected):
    return float(np.linalg.norm(got.astype(np.float64) - expected) / np.linalg.norm(expected))


class GradientsTest(TorchReference):
    def setUp(self):
        super().setUp()
        self.routed = []  # of the logits that were computed last

    def logits(self, w, tokens):
        if self.lora:
            w = torch_lora.merged(w, **self.lora)
        if self.config["model_type"] == "gpt2":
            return torch_gpt2.logits(w, tokens, self.config["n_layer"], self.config["n_head"])
        if self.config["model_type"] == "bert":
            return torch_bert.logits(w, tokens, self.config)
        self.routed.clear()
        return torch_llama.logits(w, tokens, self.config, self.routed)

    def check(self, name, worst):
        """Of what each part of the model is off by; one by one, as max() may pass over a NaN."""
        for part, error in worst.items():
            self.assertTrue(error <= TOLERANCE, f"{name}, {part}: {error}")
        return f"{max(worst.values()):.1e} ({max(worst, key=worst.get)})"

    def last_logits(self, text):
        """After each token of a text, as a model that reads up to it has them."""
        if self.config["model_type"] != "bert":
            return self.logits(self.exact_weights, torch.tensor([text]))[0].numpy()
        read = [self.logits(self.exact_weights, torch.tensor([text[: i + 1]]))[0] for i in range(len(text))]
        return [(part[-1] if part.dim() == 2 else part).numpy() for part in read]

    def gradients(self, name, exact, *args):
        out = self.work.out(f"{name}-run")
        spec = self.work.spec({
            "model": {"from": str(self.folder), **{k: None for k in ("family", "layers", "d_model", "heads", "context",
                                                                     "vocab", "init_seed")}},
            "data": {"order": "SEQUENTIAL", "seed": None,
                     **({"mask": MASK} if self.config["model_type"] == "bert" else {})},
            "batch": {"virtual_nodes": VNODES, "micro_batches": MICRO_BATCHES, "micro_batch": MICRO_BATCH},
            "optimizer": {"adamw": {"beta1": 0}, "clip": None,
                          "schedule": {"peak": 1e-3, "warmup_steps": 0, "decay": None, "final": None}},
            "precision": {"wire": "FP32", "gradients": "FP32"}, "steps": 1}, name=f"{name}.json")
        self.train_ok(spec, out, *args)
        got = safetensors_file.read(latest_checkpoint(out) / "optimizer.safetensors")

        loss = torch.nn.functional.cross_entropy(exact.flatten(0, 1), self.labels.flatten())
        (loss + self.balance * torch_llama.imbalance(self.routed, MICRO_BATCH * self.context)).backward()
        expected = {key: value.grad.numpy() for key, value in self.exact_weights.items() if value.requires_grad}
        for key in [key for key in expected if key.endswith("self.key.bias")]:  # it adds the same to all of a row's scores
            self.assertLess(np.linalg.norm(got.pop(f"exp_avg.{key}")), 1e-6)
            expected.pop(key)
        self.assertEqual(sorted(key for key in got if key.startswith("exp_avg.")),
                         sorted(f"exp_avg.{key}" for key in expected))
        self.assertTrue(all(np.linalg.norm(value) > 0 for value in expected.values()))
        return (self.check(name, {"loss": abs(summary(out)["loss_first"] - loss.item()) / loss.item()}),
                self.check(name, {key: relative(got[f"exp_avg.{key}"], value) for key, value in expected.items()}))

    def process(self, program, *args):
        with open(self.work.out(f"{program}.log"), "w") as log:
            process = start([BIN / program, *args], stdout=log, stderr=log)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)  # the last to be added is the first to be done
        return process

    def served(self, name, context, vocab):
        """Logits after each token of a text that begins with one token and is as long as the context."""
        out = self.work.out(f"{name}-served")
        daemon = self.process("eps_server", "--serve", self.folder, "--out", out, "--listen", "127.0.0.1:0")
        tap = WorkerTap(endpoints(daemon, out, log=self.work.out("eps_server.log"))["grpc"])
        self.addCleanup(tap.stop)
        self.process("gpu_worker", "--connect", tap.address, *DEVICE)
        text = [vocab - 1]
        text += tap.generate(text, context)
        self.assertEqual((len(text), len(tap.logits)), (context + 1, context))
        with torch.no_grad():
            expected = self.last_logits(text[:-1])
        return self.check(name, {f"logits after {i + 1} tokens": relative(tap.logits[i], expected[i])
                                 for i in range(context)})

    def compare(self, name, config, context, vocab, weights, *args, lora=None, balance=0):
        """lora: adapters, beside which all else is frozen. balance: of experts."""
        self.config, self.lora, self.balance = config, lora, balance
        if balance:
            args += ("--set", f"model.experts.balance={balance}")
        if lora:
            config = {**config, "eps_lora": lora}
            weights = {**weights, **torch_lora.random_adapters(weights, lora["rank"], lora.get("targets", ()))}
        self.start(config, weights, context, name)
        self.exact_weights = {key: value.double().requires_grad_(not lora or torch_lora.is_adapter(key))
                              for key, value in weights.items()}
        tokens, self.labels = self.step_batch()
        loss, gradient = self.gradients(name, self.logits(self.exact_weights, tokens), *args)
        print(f"\n  {name}: loss {loss}, worst gradient {gradient}, worst logits {self.served(name, context, vocab)}")

    def step_batch(self):
        if self.config["model_type"] != "bert":
            return self.batch(0)
        return self.masked_batch(0, self.config["vocab_size"], **MASK)

    def bert(self, name, changes, *args, **kwargs):
        config = {**BERT, **changes}
        self.compare(name, config, config["max_position_embeddings"], config["vocab_size"],
                     torch_bert.random_weights(config, seed=5), *args, **kwargs)

    def gpt2(self, name, layers, d, heads, context, vocab, *args, **kwargs):
        config = {**GPT2, "n_layer": layers, "n_embd": d, "n_head": heads, "n_positions": context, "vocab_size": vocab}
        self.compare(name, config, context, vocab, torch_gpt2.random_weights(layers, d, context, vocab, seed=5), *args,
                     **kwargs)

    def llama(self, name, changes, *args, **kwargs):
        config = {**LLAMA, **changes}
        self.compare(name, config, config["max_position_embeddings"], config["vocab_size"],
                     torch_llama.random_weights(config, seed=5), *args, **kwargs)

    def test_gpt2_of_odd_heads(self):
        self.gpt2("gpt2-odd", 2, 51, 3, 23, 263)

    def test_gpt2_of_many_narrow_heads_relayed_and_recomputed(self):
        self.gpt2("gpt2-narrow", 3, 35, 7, 41, 509, "--set", "relay.inner=RECOMPUTE", "--workers", 2)

    def test_llama_with_the_positions_of_llama_3_and_groups_of_three(self):
        self.llama("llama", {
            "hidden_size": 46, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 14, "intermediate_size": 59,
            "max_position_embeddings": 31, "vocab_size": 269, "rope_theta": 500.0, "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 60}})

    def test_llama_with_biases_and_a_tied_head(self):
        self.llama("llama-tied", {
            "hidden_size": 30, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 6, "intermediate_size": 37,
            "max_position_embeddings": 19, "vocab_size": 257, "tie_word_embeddings": True, "attention_bias": True})

    def test_mistral_with_a_sliding_window(self):
        self.llama("mistral", {
            "model_type": "mistral", "hidden_size": 42, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 22,
            "intermediate_size": 101, "max_position_embeddings": 37, "vocab_size": 307, "sliding_window": 11})

    def test_qwen2_with_biases_and_one_head_of_keys(self):
        self.llama("qwen2", {
            "model_type": "qwen2", "hidden_size": 49, "num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 10,
            "intermediate_size": 67, "max_position_embeddings": 29, "vocab_size": 281})

    def test_qwen2_with_yarn_and_longer_queries_and_keys(self):
        self.llama("yarn", {
            "model_type": "qwen2", "hidden_size": 49, "num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 14,
            "intermediate_size": 67, "max_position_embeddings": 29, "vocab_size": 281, "rope_theta": 100.0,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "attention_factor": 1.3,
                             "original_max_position_embeddings": 60}})

    def test_qwen3_with_norms_of_heads(self):
        self.llama("qwen3", {
            "model_type": "qwen3", "hidden_size": 33, "num_attention_heads": 10, "num_key_value_heads": 5, "head_dim": 18,
            "intermediate_size": 83, "max_position_embeddings": 43, "vocab_size": 311, "tie_word_embeddings": True})

    def test_mixtral_of_odd_shapes_with_a_window_and_balanced_experts(self):
        self.llama("mixtral", {
            "model_type": "mixtral", "hidden_size": 33, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 10,
            "intermediate_size": 19, "num_local_experts": 7, "num_experts_per_tok": 2, "max_position_embeddings": 37,
            "vocab_size": 307, "sliding_window": 11}, balance=0.3)

    def test_qwen3_with_experts_of_one_product_and_their_probabilities_as_they_are(self):
        self.llama("qwen3_moe", {
            "model_type": "qwen3_moe", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 18,
            "moe_intermediate_size": 24, "num_experts": 12, "num_experts_per_tok": 4, "norm_topk_prob": False,
            "max_position_embeddings": 41, "vocab_size": 281}, "--set", "relay.inner=RECOMPUTE", "--workers", 2, balance=0.1)

    def test_qwen3_with_experts_and_adapters(self):
        self.llama("qwen3_moe-lora", {
            "model_type": "qwen3_moe", "hidden_size": 33, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 18,
            "moe_intermediate_size": 21, "num_experts": 6, "num_experts_per_tok": 2, "norm_topk_prob": True,
            "max_position_embeddings": 29, "vocab_size": 281}, lora={"rank": 5, "alpha": 7})

    def test_bert_of_odd_heads(self):
        self.bert("bert", {"hidden_size": 51, "num_attention_heads": 3, "intermediate_size": 101,
                           "max_position_embeddings": 29, "vocab_size": 263})

    def test_bert_of_many_narrow_heads_relayed_and_recomputed(self):
        self.bert("bert-narrow", {"hidden_size": 35, "num_attention_heads": 7, "intermediate_size": 67,
                                  "max_position_embeddings": 37, "vocab_size": 311, "num_hidden_layers": 2,
                                  "type_vocab_size": 3}, "--set", "relay.inner=RECOMPUTE", "--workers", 2)

    def test_gpt2_with_adapters(self):
        self.gpt2("gpt2-lora", 2, 51, 3, 23, 263, lora={"rank": 5, "alpha": 7})

    def test_llama_with_adapters_of_some_products_relayed_and_recomputed(self):
        self.llama("llama-lora", {
            "hidden_size": 46, "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 14,
            "intermediate_size": 59, "max_position_embeddings": 31, "vocab_size": 269},
            "--set", "relay.inner=RECOMPUTE", "--workers", 2,
            lora={"rank": 3, "alpha": 2, "rank_stabilized": True, "targets": ["q_proj", "v_proj", "o_proj", "up_proj"]})

    def test_qwen3_with_norms_of_heads_and_adapters_of_a_rank_above_its_columns(self):
        self.llama("qwen3-lora", {
            "model_type": "qwen3", "hidden_size": 33, "num_attention_heads": 10, "num_key_value_heads": 5,
            "head_dim": 18, "intermediate_size": 83, "max_position_embeddings": 43, "vocab_size": 311,
            "tie_word_embeddings": True},
            lora={"rank": 37, "alpha": 20})

    def test_bert_with_adapters(self):
        self.bert("bert-lora", {"hidden_size": 51, "num_attention_heads": 3, "intermediate_size": 101,
                                "max_position_embeddings": 29, "vocab_size": 263}, lora={"rank": 1, "alpha": 1})
