"""The exact bias of draws without replacement; read in this order.

- `successive`: a race of exponential clocks, whose first m to ring are the draws, (B82).
- `stratified`: so many draws from each of some strata.
- `sets`: draws until m classes are different, and other distributions over sets, for `check_loss`.
"""
