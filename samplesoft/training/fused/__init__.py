"""Fused training: many steps of a linear softmax model in one compiled call.

The draws of a static sampler do not depend on the parameters. So the classes for many steps are
drawn in advance, and a compiled function then takes all of these steps.

- `plain`: one step in plain Python, as an explanation;
- `eligible`: whether a model can be trained in this way, and the reason if it cannot;
- `draws`: the classes drawn for each step;
- `layout`: the arrays of a block of steps, with indices of the classes and features of each step;
- `runner`: the compiled function. It is compiled for each pair of a loss and an optimizer when they
  are first used together, so that a new loss or optimizer needs no change in this package;
- `steps`: `take_steps`, which validates arguments, builds the arrays and calls the function.
"""

from samplesoft.training.fused.draws import draw_steps, steps_per_call
from samplesoft.training.fused.eligible import why_step_by_step
from samplesoft.training.fused.steps import take_steps

__all__ = ["draw_steps", "steps_per_call", "take_steps", "why_step_by_step"]
