"""Which sampler, and how many draws: measured on one's own vectors and machine.

`measure` has bias, error and time of one setting; `report` the table, the front and the verdict;
`tune` goes through all settings. `pilot` is what ``"auto"`` does in training and in the classifier.
"""
