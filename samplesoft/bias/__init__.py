"""Exact bias of sampled softmax, bounds, limit, second moments, Monte Carlo; see README.md here."""
