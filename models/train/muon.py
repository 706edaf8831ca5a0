"""Muon (Jordan et al. 2024): momentum whose matrices are made orthogonal before they are added."""

import torch


def orthogonal(x):
    """About U Vᵀ of every matrix in `[n, rows, columns]`, by Newton and Schulz's iteration in bf16."""
    tall = x.shape[-2] > x.shape[-1]
    x = x.bfloat16()
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Muon:
    """For stacks of matrices. A step changes elements by 0.2 times the rate (root of mean squares), as AdamW's do, so
    rates mean the same for both (Liu et al. 2025)."""

    def __init__(self, stacks, momentum=0.95):
        self.stacks, self.momentum = stacks, momentum
        self.buffers = [torch.zeros_like(stack) for stack in stacks]

    @torch.no_grad()
    def step(self, rate):
        for stack, buffer in zip(self.stacks, self.buffers):
            buffer.lerp_(stack.grad, 1 - self.momentum)
            update = orthogonal(stack.grad.lerp(buffer, self.momentum))
            stack.add_(update, alpha=-rate * 0.2 * max(stack.shape[-2:]) ** 0.5)
