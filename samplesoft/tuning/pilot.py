"""What ``"auto"`` stands for: a pilot is trained for some steps, and `tune` looks at its vectors.

Vectors at random say little of the bias, so that the pilot, a model of its own that is thrown away,
learns for a while with draws that cost little. The run then starts from scratch with what was
chosen, as if the user had named it.

The limits below are measured in docs/benchmarks.md, section "What ``"auto"`` chooses".
"""

from __future__ import annotations

from typing import Any

from samplesoft.losses.registry import LOSSES
from samplesoft.samplers.registry import SAMPLERS
from samplesoft.tuning.tune import tune

AUTO = "auto"
PILOT: dict[str, Any] = {
    "loss": "sampled-masked",
    "sampler": "unigram",
    "num_sampled": 100,
    "shared": True,
}
LOSSES_OF_AUTO = ("sampled", "sampled-masked")  # whose bias `tune` measures
CANDIDATES = ("unigram", "clusters")
DRAWS = (100, 300, 1000)  # fewer leave more noise than training bears
LARGEST_BIAS = 0.02  # it grows while a model learns, by more than twice after a pilot
_LEAST_STEPS = 100  # steps
_MOST_STEPS = 1000  # steps
_STEPS_PER_PILOT_STEP = 10  # one step of so many of the run


def is_auto(*values: Any) -> bool:
    """Return whether one of the values is ``"auto"``."""
    return any(isinstance(value, str) and value == AUTO for value in values)


def check_auto(sampler: Any, loss: str | None) -> None:
    """Raise ValueError where nothing can be chosen for a loss, or with a sampler that is named."""
    if loss is not None and loss not in LOSSES_OF_AUTO:
        raise ValueError(
            f"`sampler` and `num_sampled` must not be 'auto' with loss={loss!r}, whose bias is not "
            f"measured; name them, or take one of {', '.join(LOSSES_OF_AUTO)}."
        )
    if sampler in SAMPLERS and not SAMPLERS[sampler].every_class:
        raise ValueError(
            f"`num_sampled` must not be 'auto' with sampler={sampler!r}, whose candidates are "
            "others in each step; give a number."
        )


def pilot_steps(total: int) -> int:
    """Return how many steps a pilot takes before a run of `total` steps."""
    return min(total, max(_LEAST_STEPS, min(total // _STEPS_PER_PILOT_STEP, _MOST_STEPS)))


def choose(
    inputs: dict[str, Any], loss: str, sampler: Any, num_sampled: Any, **options: Any
) -> dict[str, Any]:
    """Choose the quickest settings whose bias is small, by `samplesoft.tune`.

    They are ``loss``, ``sampler``, ``num_sampled`` and ``shared`` of a softmax layer, and come with
    the ``verdict``: why, in a sentence or two. `inputs` and `options` are arguments of `tune`:
    class vectors, contexts and labels of a pilot. What is not ``"auto"`` is kept, unless the full
    softmax is the quickest. One set of draws for a batch takes the masked form of the loss.
    """
    masked = LOSSES[loss].masked or loss
    n = len(inputs["class_embeddings"])
    report = tune(
        **inputs,
        samplers=CANDIDATES if is_auto(sampler) else [sampler],
        num_sampled=[m for m in DRAWS if m < n] or DRAWS[:1]
        if is_auto(num_sampled)
        else [num_sampled],
        masked=loss == masked,
        largest_bias=LARGEST_BIAS,
        thorough=False,
        **options,
    )
    best = report.best
    return {
        "loss": "full" if best.sampler is None else masked if best.shared else loss,
        "sampler": best.sampler,
        "num_sampled": best.num_sampled,
        "shared": best.shared,
        "verdict": report.verdict,
    }
