"""The commands of the command line, one module each.

A new command is a module with a function `add`, which adds its options to a parser, and an entry in
`COMMANDS`, with a line of help.
"""

COMMANDS = {
    "verify": "compare exact bias, bounds and Monte Carlo",
    "check": "identify the scheme of a sampled loss, and its mistakes",
    "tune": "choose a sampler and a number of draws by measurement",
    "train": "train a model with a full or a sampled softmax",
    "predict": "predict the best classes for the inputs of a file",
}
