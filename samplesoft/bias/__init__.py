"""The exact bias of sampled softmax, its bounds and limit, and Monte Carlo; see README.md here."""
