"""The option ``"auto"``: a pilot model is trained, and `tune` measures settings on its vectors.

The bias for random vectors says little about the bias in training. So a pilot, a separate model, is
first trained for a limited number of steps with cheap draws, and discarded after the measurement.
The model itself is then trained from scratch with the chosen settings, as if the user had given
them.

Measurements for the constants below are in docs/benchmarks.md, section "What ``"auto"`` chooses".
"""

from __future__ import annotations

from typing import Any

from samplesoft.losses.registry import LOSSES
from samplesoft.samplers.registry import SAMPLERS
from samplesoft.tuning.tune import tune

AUTO = "auto"
PILOT_SETTINGS: dict[str, Any] = {
    "loss": "sampled-masked",
    "sampler": "unigram",
    "num_sampled": 100,
    "shared": True,
}
LOSSES_OF_AUTO = ("sampled", "sampled-masked")  # losses whose bias `tune` measures
CANDIDATES = ("unigram", "clusters")  # samplers that `tune` measures
DRAWS = (100, 300, 1000)  # numbers of draws that `tune` measures; fewer draws are too noisy
# max L1 bias on the vectors of the pilot; it is small, because the bias more than doubles as
# training goes on
LARGEST_BIAS = 0.02
_MIN_PILOT_STEPS = 100
_MAX_PILOT_STEPS = 1000
_RUN_STEPS_PER_PILOT_STEP = 10


def any_is_auto(*values: Any) -> bool:
    """Return whether one of the values is ``"auto"``."""
    return any(isinstance(value, str) and value == AUTO for value in values)


def require_auto_supported(sampler: Any, loss: str | None) -> None:
    """Raise ValueError if "auto" cannot be combined with the loss, or with a given sampler.

    A `loss` of None is not checked. `sampler` is "auto", a name, or an object.
    """
    if loss is not None and loss not in LOSSES_OF_AUTO:
        raise ValueError(
            f"`sampler` and `num_sampled` must not be 'auto' with loss={loss!r}, whose bias is not "
            f"measured; name them, or take one of {', '.join(LOSSES_OF_AUTO)}."
        )
    if sampler in SAMPLERS and not SAMPLERS[sampler].every_class:
        raise ValueError(
            f"`num_sampled` must not be 'auto' with sampler={sampler!r}, whose candidates are "
            "different in each step; pass a number."
        )


def num_pilot_steps(total: int) -> int:
    """Return the number of steps of the pilot, for a run of `total` steps."""
    return min(
        total, max(_MIN_PILOT_STEPS, min(total // _RUN_STEPS_PER_PILOT_STEP, _MAX_PILOT_STEPS))
    )


def choose_settings(
    inputs: dict[str, Any], loss: str, sampler: Any, num_sampled: Any, **options: Any
) -> dict[str, Any]:
    """Return the fastest settings with a small bias, measured by `samplesoft.tune`.

    The result is a dict with the settings ``loss``, ``sampler``, ``num_sampled`` and ``shared`` of
    a softmax layer, and ``verdict``, the reason in one or two sentences. `inputs` are the arguments
    of `tune` that come from the pilot: class vectors, contexts and labels. `options` are further
    arguments of `tune`. A `sampler` or `num_sampled` that is not ``"auto"`` is kept, unless the
    full softmax is the fastest. If the chosen draws are shared by a batch, the loss is the masked
    form of `loss`.
    """
    masked_loss = LOSSES[loss].masked or loss
    num_classes = len(inputs["class_embeddings"])
    samplers = CANDIDATES if any_is_auto(sampler) else [sampler]
    draw_counts = [num_sampled]
    if any_is_auto(num_sampled):
        draw_counts = [m for m in DRAWS if m < num_classes] or [DRAWS[0]]

    report = tune(
        **inputs,
        samplers=samplers,
        num_sampled=draw_counts,
        masked=loss == masked_loss,
        largest_bias=LARGEST_BIAS,
        thorough=False,
        **options,
    )

    best = report.best
    if best.sampler is None:
        loss = "full"
    elif best.shared:
        loss = masked_loss
    return {
        "loss": loss,
        "sampler": best.sampler,
        "num_sampled": best.num_sampled,
        "shared": best.shared,
        "verdict": report.verdict,
    }
