"""The exact bias of draws with replacement; begin with ``samplesoft/bias/README.md``.

- `draws`: S as a base mass and independent draws, (B1), and the totals over classes for it.
- `ratios`: the ratios of the classes around three centres; `deviations`: in double-double.
- `atoms`: the ratios compressed to atoms, on Chebyshev panels where there are many classes.
- `nodes`: the Laplace transform of a draw at the nodes of the quadrature.
- `node_weights`: the weights of the nodes in each scheme, and the bias from the integrals.
- `integral`: all of these for one example, with the flows (B6) of its classes.
- `laplace`: the compiled sums over atoms at each node, and over nodes at each atom.
- `jackknife`: the weights of the nodes for the jackknife.
"""
