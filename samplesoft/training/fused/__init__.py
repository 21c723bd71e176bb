"""Many steps of a linear softmax model in one compiled call: scores, losses, updates.

The draws of a static sampler do not depend on what is learned, so those of many steps are made at
once. A compiled function then takes the steps, each as `plain` writes it:

- `eligible`: which models can be trained so, and why not the others;
- `draws`: the classes drawn for each step;
- `layout`: the arrays of a block of steps, in which each step finds its classes and features;
- `runner`: the compiled function, stage after stage. It is compiled for the kernel of a loss and
  that of an optimizer when these first come together, so that a new loss with a kernel, or a new
  optimizer, needs nothing here;
- `steps`: the call, from checked arguments to trained parameters.
"""

from samplesoft.training.fused.draws import draws_of_steps, steps_at_once
from samplesoft.training.fused.eligible import why_step_by_step
from samplesoft.training.fused.steps import take_steps

__all__ = ["draws_of_steps", "steps_at_once", "take_steps", "why_step_by_step"]
