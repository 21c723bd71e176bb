"""The commands, one file each.

A new one is a file with a function `add`, which adds its parser, and an entry of `COMMANDS`.
"""

from samplesoft.commands import check, predict, train, tune, verify

COMMANDS = (verify.add, check.add, tune.add, train.add, predict.add)
