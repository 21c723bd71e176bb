"""The commands: one file each, with its options and what it does.

A new one is a file with a function that adds a parser, and a line in `COMMANDS`.
"""

from samplesoft.commands import predict, train, verify

COMMANDS = (verify.add, train.add, predict.add)
