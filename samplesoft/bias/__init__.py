"""The exact bias of sampled softmax, its bounds, Monte Carlo, and the report that joins them."""
