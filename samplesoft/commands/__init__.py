"""The commands, one file each.

A new one is a file with a function `add`, which adds what it takes to its parser, and an entry of
`COMMANDS`, which says in a line what it does.
"""

COMMANDS = {
    "verify": "check theory, bounds and Monte Carlo against each other",
    "check": "find out what an implementation of a sampled loss estimates",
    "tune": "find the sampler and the number of draws to take",
    "train": "train a model with a full or a sampled softmax",
    "predict": "predict the best classes for the inputs of a file",
}
