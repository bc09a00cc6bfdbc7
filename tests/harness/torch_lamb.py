"""LAMB (You et al., arXiv:1904.00962, algorithm 2) in plain PyTorch; trust ratios of tensors of two or more dimensions."""

import torch


class Lamb(torch.optim.Optimizer):
    def __init__(self, groups, lr, betas, eps, max_trust_ratio=float("inf")):
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self.max_trust_ratio = max_trust_ratio
        self.ratios = []

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state.update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                state["step"] += 1
                m = state["m"].mul_(beta1).add_(p.grad, alpha=1 - beta1)
                v = state["v"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                u = (m / (1 - beta1 ** state["step"])) / ((v / (1 - beta2 ** state["step"])).sqrt() + group["eps"])
                u = u + group["weight_decay"] * p
                ratio = 1.0
                if p.dim() >= 2 and p.norm() > 0 and u.norm() > 0:
                    ratio = min((p.norm() / u.norm()).item(), self.max_trust_ratio)
                    self.ratios.append(ratio)
                p.sub_(u, alpha=group["lr"] * ratio)
