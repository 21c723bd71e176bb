"""Choice of the sampler and the number of draws, by measurement on your vectors and machine.

`measure` measures bias, error and time of one setting. `report` has the table, the Pareto front and
the verdict. `tune` measures all settings. `pilot` resolves ``"auto"`` in training and in the
classifier.
"""
