#!/usr/bin/env python3
"""PyTorch's side of bench/gpu/run: the same GPT-2 shape and batch, in each of several ways, in one process.

A variant is words joined by "+", in any order:
  eager | compiled | whole   as it is; torch.compile of each block and of the head; torch.compile of the whole loss
  checkpoint                 each block is recomputed in backward, and the head in slices of the tokens
  offload                    AdamW on the host: fp32 masters and moments there, gradients go there while backward runs
  autocast                   fp32 weights and torch.autocast, in place of bf16 weights with fp32 masters
  cudnn                      attention by cuDNN alone: by itself PyTorch takes FlashAttention first, though cuDNN's is
                             1.7 to 2.3 times as fast on Hopper. So `compiled+cudnn` is measured first

What is the same everywhere: bf16 products, scaled_dot_product_attention, fused AdamW on fp32 masters with fp32 moments,
a token table padded to a multiple of 64 rows, and gradients that add up over micro-batches in the weights' dtype. What
this PyTorch lacks of it is said in `notes`. Speed is by the median of steps. Prints a line of JSON for each variant, and
one for all last.
"""

import argparse
import contextlib
import gc
import json
import resource
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "harness"))

import torch_gpt2  # noqa: E402

HEAD_SLICES = 8
LR, BETAS, EPS, DECAY = 1e-4, (0.9, 0.95), 1e-8, 0.1


class Lacks(Exception):
    """This PyTorch cannot do it."""


def find_ops(notes):
    if not hasattr(F, "scaled_dot_product_attention"):
        notes.add("no scaled_dot_product_attention: attention is written out")
        return torch_gpt2.Ops(gelu=lambda y: F.gelu(y, approximate="tanh"))
    return torch_gpt2.Ops(attention=lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
                          gelu=lambda y: F.gelu(y, approximate="tanh"))


def attention_of(words, device):
    """A context in which attention is computed as the words have it, by what is compiled within it too."""
    if "cudnn" not in words:
        return contextlib.nullcontext()
    if device != "cuda":
        raise Lacks("cuDNN's attention is a GPU's")
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        return sdpa_kernel([SDPBackend.CUDNN_ATTENTION])
    except (ImportError, AttributeError):
        raise Lacks("this PyTorch has no attention by cuDNN") from None


def new_adamw(named, notes):
    try:
        return torch_gpt2.adamw(named, LR, BETAS, EPS, DECAY, fused=True)
    except (TypeError, RuntimeError) as error:
        notes.add(f"no fused AdamW: {error}")
        return torch_gpt2.adamw(named, LR, BETAS, EPS, DECAY)


def copy_all(to, values):
    if hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_(to, values)
    else:
        for a, b in zip(to, values):
            a.copy_(b)


class OnDevice:
    """AdamW on fp32 masters that lie beside the bf16 weights; on the weights themselves where they are fp32."""

    def __init__(self, weights, notes):
        self.weights = list(weights.values())
        self.own = all(w.dtype == torch.float32 for w in self.weights)
        named = weights if self.own else {k: w.detach().float() for k, w in weights.items()}
        self.masters = list(named.values())
        self.optimizer = new_adamw(named, notes)

    def before_last(self):
        pass

    @torch.no_grad()
    def step(self):
        if not self.own:
            for master in self.masters:
                master.grad = torch.empty_like(master) if master.grad is None else master.grad
            copy_all([master.grad for master in self.masters], [w.grad for w in self.weights])
        for w in self.weights if not self.own else ():
            w.grad = None
        self.optimizer.step()
        if self.own:
            self.optimizer.zero_grad(set_to_none=True)
        else:
            copy_all(self.weights, self.masters)


class OnHost:
    """AdamW on the host. The last micro-batch's backward sends each gradient there as soon as it is whole, through
    pinned memory; the host updates tensor by tensor, and sends each back while it goes on with the next."""

    def __init__(self, weights, notes):
        self.weights = list(weights.values())
        self.cuda = self.weights[0].is_cuda
        host = [w.detach().cpu() for w in self.weights]
        if self.cuda:
            host = [w.pin_memory() for w in host]
            self.stream = torch.cuda.Stream()
        self.host_weights, self.host_grads = host, [w.clone().pin_memory() if self.cuda else w.clone() for w in host]
        self.masters = [w.float() for w in host]
        self.optimizers = [new_adamw({name: master}, notes) for name, master in zip(weights, self.masters)]
        self.order, self.events, self.sends = [], {}, False
        self.hooked = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")
        if not self.hooked:
            notes.add("no hooks behind a gradient: gradients go to the host after backward")
            return
        for i, w in enumerate(self.weights):
            w.register_post_accumulate_grad_hook(lambda _, i=i: self.send(i) if self.sends else None)

    def before_last(self):
        self.order, self.events, self.sends = [], {}, True

    @torch.no_grad()
    def send(self, i):
        self.order.append(i)
        if not self.cuda:
            self.host_grads[i].copy_(self.weights[i].grad)
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            grad = self.weights[i].grad
            self.host_grads[i].copy_(grad, non_blocking=True)
            grad.record_stream(self.stream)
            self.events[i] = self.stream.record_event()
        self.weights[i].grad = None

    @torch.no_grad()
    def step(self):
        if not self.hooked:
            for i in range(len(self.weights)):
                self.send(i)
        self.sends = False
        for i in self.order:
            if self.cuda:
                self.events[i].synchronize()
            self.masters[i].grad = self.host_grads[i].float()
            self.optimizers[i].step()
            self.masters[i].grad = None
            self.host_weights[i].copy_(self.masters[i])
            self.weights[i].copy_(self.host_weights[i], non_blocking=True)
            self.weights[i].grad = None


class Trainer:
    def __init__(self, args, words, notes):
        self.args, self.words = args, words
        self.device = torch.device(args.device)
        ops = find_ops(notes)
        dtype = torch.float32 if "autocast" in words else torch.bfloat16
        rows = -(-args.vocab // 64) * 64
        torch.manual_seed(1)
        self.weights = {}
        for name in torch_gpt2.names(args.layers):
            value = torch.randn(torch_gpt2.shape(name, args.d_model, args.context, rows), device=self.device) * 0.02
            ones = name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight"))
            self.weights[name] = (value.fill_(1) if ones else value).to(dtype).requires_grad_()
        # A block's weights under the names of block 0, so that compiled code of one block is that of all.
        self.blocks = [{name.replace(f".h.{i}.", ".h.0."): w for name, w in self.weights.items() if f".h.{i}." in name}
                       for i in range(args.layers)]
        self.run_own = lambda own, x: torch_gpt2.block(own, 0, x, args.heads, ops)
        self.run_head = lambda x, table, labels: F.cross_entropy((x @ table.t()).float(), labels, reduction="sum")
        self.whole = self.loss
        if words & {"compiled", "whole"} and not hasattr(torch, "compile"):
            raise Lacks("torch.compile is not there")
        if "compiled" in words:
            self.run_own, self.run_head = torch.compile(self.run_own), torch.compile(self.run_head)
        if "whole" in words:
            self.whole = torch.compile(self.loss)
        self.optimizer = (OnHost if "offload" in words else OnDevice)(self.weights, notes)

    def run_block(self, _, i, x, heads):
        if "checkpoint" in self.words:
            return checkpoint(self.run_own, self.blocks[i], x, use_reentrant=False)
        return self.run_own(self.blocks[i], x)

    def loss(self, tokens, labels):
        """Mean over the tokens of a micro-batch."""
        x = torch_gpt2.hidden(self.weights, tokens, self.args.layers, self.args.heads, self.run_block)
        x, labels = x.reshape(-1, x.shape[-1]), labels.reshape(-1)
        table = self.weights["transformer.wte.weight"]
        if "checkpoint" not in self.words:
            return self.run_head(x, table, labels) / labels.numel()
        return sum(checkpoint(self.run_head, part, table, part_labels, use_reentrant=False)
                   for part, part_labels in zip(x.chunk(HEAD_SLICES), labels.chunk(HEAD_SLICES))) / labels.numel()

    def step(self, batches):
        total = 0
        for i, batch in enumerate(batches):
            if i == len(batches) - 1:
                self.optimizer.before_last()
            with torch.autocast(self.device.type, torch.bfloat16, enabled="autocast" in self.words):
                loss = self.whole(batch[:, :-1], batch[:, 1:]) / len(batches)
            loss.backward()
            total += loss.detach()
        self.optimizer.step()
        return total


def batches_of(args, text, step):
    """The same samples as a SEQUENTIAL run's: sample i is the context + 1 tokens from token i * context."""
    samples = (len(text) - 1) // args.context
    first = step * args.micro_batches * args.micro_batch
    rows = [text[i % samples * args.context:][:args.context + 1]
            for i in range(first, first + args.micro_batches * args.micro_batch)]
    return torch.stack(rows).to(args.device).split(args.micro_batch)


def finish(device):
    if device.type == "cuda":
        torch.cuda.synchronize()


class Laps:
    """Times between marks; on a GPU by events in the stream, so that the host, which runs ahead, waits for none."""

    def __init__(self, device):
        self.cuda, self.marks = device.type == "cuda", []

    def mark(self):
        if not self.cuda:
            self.marks.append(time.perf_counter())
            return
        self.marks.append(torch.cuda.Event(enable_timing=True))
        self.marks[-1].record()

    def seconds(self):
        """Once the device has come to the last one."""
        pairs = zip(self.marks, self.marks[1:])
        return [a.elapsed_time(b) / 1e3 for a, b in pairs] if self.cuda else [b - a for a, b in pairs]


def measure(args, words, text, notes):
    if args.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    trainer = Trainer(args, words, notes)
    # All of them first, some MB: a copy of pageable memory waits for the stream, which steps that are timed are not to.
    batches = [batches_of(args, text, step) for step in range(args.warm_up + args.steps)]
    for step in range(args.warm_up):
        first = trainer.step(batches[step])
        first_loss = first_loss if step else first.item()
    finish(trainer.device)
    laps = Laps(trainer.device)
    laps.mark()
    for step in range(args.warm_up, args.warm_up + args.steps):
        last = trainer.step(batches[step])
        laps.mark()
    finish(trainer.device)
    seconds = statistics.median(laps.seconds())
    tokens = args.micro_batches * args.micro_batch * args.context
    result = {"tokens_per_second": tokens / seconds, "step_seconds": seconds, "all_step_seconds": laps.seconds(),
              "loss_first": first_loss, "loss_last": last.item()}
    if args.device == "cuda":
        return {**result, "peak_bytes": torch.cuda.max_memory_allocated(),
                "reserved_bytes": torch.cuda.max_memory_reserved()}
    return {**result, "process_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def attempt(args, words, text, notes):
    try:
        with attention_of(words, args.device):
            return measure(args, words, text, notes)
    except Lacks as error:
        return {"error": str(error)}
    except RuntimeError as error:
        if "out of memory" in str(error):
            return {"error": "out of memory"}
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    except Exception as error:  # one way that fails leaves the others
        return {"error": f"{type(error).__name__}: {str(error)[:300]}"}


def clean_up(args):
    gc.collect()
    if hasattr(torch, "compile"):
        torch._dynamo.reset()
    if args.device == "cuda":
        torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tokens", required=True, help="little-endian uint16 ids")
    for name, value in (("layers", 24), ("d-model", 1024), ("heads", 16), ("context", 512), ("vocab", 50257),
                        ("micro-batches", 4), ("micro-batch", 32), ("warm-up", 3), ("steps", 6)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--variants", default="compiled+cudnn,compiled,eager,eager+checkpoint,compiled+checkpoint,"
                                              "eager+offload")
    parser.add_argument("--seconds", type=float, default=1e9, help="no variant is begun after that")
    args = parser.parse_args()
    start = time.monotonic()
    text = torch.frombuffer(bytearray(Path(args.tokens).read_bytes()), dtype=torch.int16).to(torch.int64) & 0xFFFF
    variants, notes = [], set()
    for name in args.variants.split(","):
        if time.monotonic() - start > args.seconds:
            result = {"error": "left out: no time"}
        else:
            result = attempt(args, set(name.split("+")), text, notes)
            clean_up(args)
        variants.append({"variant": name, **result})
        print(json.dumps(variants[-1]), flush=True)
    print(json.dumps({"name": "gpu_torch", "torch": torch.__version__, "device": args.device,
                      "notes": sorted(notes), "variants": variants}))


if __name__ == "__main__":
    main()
