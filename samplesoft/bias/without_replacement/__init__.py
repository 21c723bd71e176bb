"""The exact bias of draws without replacement. Read the modules in this order.

- `race`: draws without replacement as a race of exponential clocks, (B82); its compiled loops are
  in `race_kernels`.
- `terms`: the terms of the sum S, and the nodes of the integral for 1/S.
- `expectations`: the integrals for the means of p' and log S, for draws from strata (groups of
  classes) that are independent of each other.
- `set_bias`: the bias of one example, with one stratum or several.
- `stratified`: the public function for a given number of draws from each stratum.
- `sets`: draws until m different classes have come up, and the distributions over sets of classes
  that `check_loss` uses.
"""
