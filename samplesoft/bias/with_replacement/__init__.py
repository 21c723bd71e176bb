"""The exact bias of draws with replacement; begin with ``samplesoft/bias/README.md``.

The modules, in the order in which one example uses them:

- `integral`: the complete computation, as a loop over smaller and smaller quadrature steps.
- `draws`: S as a base mass (the term that needs no draw) plus independent draws, eq. (B1).
- `ratios`: the ratios r = e / q of the classes, and their distances from three centres.
- `deviations`: the distances from the reference ratio, in double-double arithmetic.
- `atoms`: a few points with weights that represent the ratios of many classes.
- `nodes`: the Laplace transform of a draw at the nodes of the quadrature.
- `node_weights`: the weights of the nodes for a scheme, and the bias from the integrals.
- `jackknife`: the weights of the nodes for the jackknife.
- `laplace`: the compiled sums over atoms at each node, and over nodes at each atom.
"""
