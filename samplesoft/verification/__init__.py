"""Theory, bounds and Monte Carlo side by side: the report behind `samplesoft verify`."""
