"""The exact bias of draws with replacement; begin with ``samplesoft/bias/README.md``.

The modules, in the order in which one example uses them:

- `integral`: the complete computation, as a loop over the steps of the quadrature.
- `draws`: S as a base mass plus independent draws, eq. (B1).
- `ratios`: the ratios of the classes, and their distances from three centres.
- `deviations`: the distances from the reference ratio, in double-double arithmetic.
- `atoms`: few points that represent the ratios of many classes.
- `nodes`: the Laplace transform of a draw at the nodes of the quadrature.
- `node_weights`: the weights of the nodes for a scheme, and the bias from the integrals.
- `jackknife`: the weights of the nodes for the jackknife.
- `laplace`: the compiled sums over atoms at each node, and over nodes at each atom.
"""
