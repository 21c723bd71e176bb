"""The exact bias of classes that come in chunks.

- `passes`: sums over classes that merge, and the loop over passes on one machine.
- `dask`: the same passes, handed to Dask.
"""
