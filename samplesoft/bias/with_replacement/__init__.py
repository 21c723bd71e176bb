"""The exact bias of independent draws with replacement; read in this order.

- `draws`: S as a base mass and independent draws, (B1), and the sums over classes that say so.
- `ratios`: the ratios of the classes around three centres; `deviations`: to the last digit.
- `atoms`: the ratios compressed to atoms, on Chebyshev panels where classes are many.
- `nodes`: the Laplace transform of a draw at the nodes of the quadrature.
- `node_weights`: what each scheme makes of the nodes, and of the integrals the bias.
- `integral`: all of these for one example, with the flows (B6) of its classes.
- `laplace`: the compiled sums over atoms at each node, and over nodes at each atom.
- `jackknife`: the weights of the nodes for the jackknife.
"""
