"""Choice of the sampler and the number of draws, by measurement on your vectors and machine.

`measure` measures bias, error and time of one setting. `tune` measures all settings. `report` makes
the table, the Pareto front and the verdict. `pilot` chooses the settings that are ``"auto"`` in the
classifier.
"""
