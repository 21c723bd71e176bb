"""The commands of the command line, one module each.

A new command is a module with a function `add`, which adds its options to a parser, and an entry in
`COMMANDS`, which is its help in one line.
"""

COMMANDS = {
    "verify": "check theory, bounds and Monte Carlo against each other",
    "check": "find out what an implementation of a sampled loss estimates",
    "tune": "find the sampler and the number of draws to take",
    "train": "train a model with a full or a sampled softmax",
    "predict": "predict the best classes for the inputs of a file",
}
