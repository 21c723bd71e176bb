"""The exact bias of an example whose classes come in chunks, for example from a file.

- `passes`: sums over the classes that can be merged, and the loop over all chunks.
- `dask`: the same passes, run by Dask.
"""
