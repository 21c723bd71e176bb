"""Sampled softmax as a layer of torch, of a sampler and a loss of samplesoft: to be copied."""

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from samplesoft.losses import SampledSoftmaxLoss


class SampledLossFunction(torch.autograd.Function):
    """The loss of given draws, with the gradients that samplesoft computes by hand."""

    @staticmethod
    def forward(ctx, h, weight, bias, labels, loss, draw):
        """Return the mean loss, of h (B, d), weight (n, d), bias (n,) and labels (B,)."""
        arrays = [x.detach().cpu().numpy() for x in (h, weight, labels, bias)]
        value, cache = loss.forward(*arrays[:3], draw, biases=arrays[3])
        ctx.loss, ctx.cache, ctx.like = loss, cache, (h, weight, bias)
        return h.new_tensor(value)

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        """Return the gradients, zero outside the rows of labels and draws."""
        found = ctx.loss.backward(ctx.cache)
        grads = [upstream * upstream.new_tensor(np.asarray(found.dh))]
        for like, (ids, rows) in zip(ctx.like[1:], (found.dW, found.db), strict=True):
            grad = torch.zeros_like(like)
            grad[torch.as_tensor(ids, device=like.device)] = like.new_tensor(rows)
            grads.append(upstream * grad)
        return *grads, None, None, None


class SampledSoftmax(torch.nn.Linear):
    """`nn.Linear` and `nn.CrossEntropyLoss` in one: sampled in training, full in evaluation."""

    def __init__(self, dim, sampler, num_sampled):
        super().__init__(dim, sampler.num_classes)
        self.sampler, self.num_sampled = sampler, num_sampled
        self.loss = SampledSoftmaxLoss(scheme="masked")  # for draws that a batch shares

    def logits(self, h):
        """Return the logits of all classes, (B, n)."""
        return super().forward(h)

    def forward(self, h, labels):
        """Return the mean loss: of draws in training, and of all classes in evaluation."""
        if not self.training:
            return torch.nn.functional.cross_entropy(self.logits(h), labels)
        seed = int(torch.randint(2**62, ()))  # so that torch.manual_seed repeats it
        contexts = h.detach().cpu().numpy()
        draw = self.sampler.sample(contexts, self.num_sampled, shared=True, rng=seed)
        return SampledLossFunction.apply(h, self.weight, self.bias, labels, self.loss, draw)
