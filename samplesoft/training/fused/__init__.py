"""Fused training: many steps of a linear softmax model in one compiled call.

The draws of a static sampler do not depend on the parameters, so that draws for many steps are made
in advance. A compiled function then takes the steps; `plain` shows one of them:

- `eligible`: which models can be trained so, and the reason for others;
- `draws`: the classes drawn for each step;
- `layout`: the arrays of a block of steps, with indices of the classes and features of each step;
- `runner`: the compiled function. It is compiled for the kernels of a loss and of an optimizer when
  these are first used together, so that new losses and optimizers need no change here;
- `steps`: the call, from validated arguments to trained parameters.
"""

from samplesoft.training.fused.draws import draw_steps, steps_per_call
from samplesoft.training.fused.eligible import why_step_by_step
from samplesoft.training.fused.steps import take_steps

__all__ = ["draw_steps", "steps_per_call", "take_steps", "why_step_by_step"]
