"""The exact bias of draws without replacement; read in this order.

- `race`: a race of exponential clocks, whose first m to ring are the draws, (B82); its compiled
  loops are in `race_kernels`.
- `terms`: the sum S of what was drawn, and the nodes of the integral for 1/S.
- `expectations`: that integral, over what independent groups draw.
- `set_bias`: the bias of one example, and of one whose draws come from strata.
- `stratified`: so many draws from each of some strata, for users.
- `sets`: draws until m classes are different, and other distributions over sets, for `check_loss`.
"""
