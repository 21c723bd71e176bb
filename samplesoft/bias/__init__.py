"""Exact bias of sampled softmax, bounds, limit, second moments, Monte Carlo; see README.md here."""

from samplesoft.bias import theorems as theorems
