"""Draws through cells of similar classes, whose mass is estimated; read in this order.

- `cells`: mean and variance of the classes in a cell.
- `descent`: from the top cells to a class; the probability of a path, with a class excluded or not.
- ``cells_cuda``, ``descent_cuda``: the same with a warp for each cell and draw; the top cells are
  drawn as the blocks of a softmax in `samplesoft.kernels.samplers`.
"""
