"""Many steps of a linear softmax model in one compiled call: scores, losses, updates.

The draws of a static sampler do not depend on what is learned, so those of many steps are made at
once, by any such sampler, and brought into order with the labels and the entries of the inputs
(`layout`). Then the steps are taken by a runner, which is compiled for the kernel of a loss and
that of an optimizer when they first come together (`runner`). So a new loss with a kernel, or a
new optimizer, needs nothing here. `why_step_by_step` says what such a call cannot do.

Workers go through a step side by side and meet three times in it: when the vectors of its classes
have been gathered, when the derivatives of its examples are known, and when rows have been updated.
They share out blocks of classes, of examples and of features. A block does
the same whichever worker takes it, so that results do not depend on how many there are.
"""

from samplesoft.training.fused.draws import draws_of_steps, steps_at_once
from samplesoft.training.fused.eligible import why_step_by_step
from samplesoft.training.fused.steps import take_steps

__all__ = ["draws_of_steps", "steps_at_once", "take_steps", "why_step_by_step"]
