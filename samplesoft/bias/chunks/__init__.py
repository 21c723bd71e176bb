"""The exact bias for classes in chunks.

- `passes`: mergeable sums over classes, and the loop over passes on one machine.
- `dask`: the same passes, run by Dask.
"""
