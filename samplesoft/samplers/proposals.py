"""Proposals as arrays: the probabilities of all classes under samplers given by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from samplesoft._device.select import require_cpu
from samplesoft._validation import FloatArray, as_choice, require_instance
from samplesoft.samplers.inputs import SamplerInputs
from samplesoft.samplers.registry import SAMPLERS, make_sampler, require_input

_LEAST = 1e-300  # a softmax may underflow, and a class without mass has no importance weight


def dense_proposals(names: Iterable[str], inputs: SamplerInputs) -> dict[str, FloatArray]:
    """Return the probabilities of all classes under samplers, by their names.

    Where ``inputs.logits`` are given, those of ``softmax`` and ``quadratic`` follow from them.
    The other samplers that look at vectors need ``inputs.h`` and ``inputs.class_embeddings``.

    Parameters
    ----------
    names : iterable of str
        Keys of `SAMPLERS`.
    inputs : SamplerInputs
        What they look at, on the processor. Vectors are turned into float64.

    Returns
    -------
    dict of str to ndarray of float64, shape (n,) or (B, n)
        Probabilities: each at least 1e-300, each row sums to 1. One row serves all examples where
        they do not depend on the example.

    Raises
    ------
    TypeError, ValueError
        If a name is unknown, or a sampler needs what the inputs lack.

    References
    ----------
    Blanc and Rendle (2018), Theorem 2.1: of all proposals, the softmax alone leaves no bias;
    section 3.3: the quadratic kernel, of the whole logit. Rawat et al. (2019), eq. 15, take the
    dot product h . c without tau there.

    Examples
    --------
    >>> inputs = SamplerInputs(logits=[[0.0, 1.0, 2.0]], counts=[16, 81, 256])
    >>> q = dense_proposals(["uniform", "unigram", "softmax"], inputs)
    >>> q["unigram"].round(3), q["softmax"].round(3)
    (array([0.081, 0.273, 0.646]), array([[0.09 , 0.245, 0.665]]))
    """
    try:
        chosen = None if isinstance(names, str) else list(names)
    except TypeError:
        chosen = None
    if chosen is None:
        raise TypeError(f"`names` must be a list of names, got {type(names).__name__} {names!r}.")
    require_instance("inputs", inputs, SamplerInputs)
    require_cpu("dense proposals", inputs.device)
    checked = [as_choice("names", name, SAMPLERS) for name in chosen]
    precise = {
        field: value.astype(np.float64)
        for field in ("h", "class_embeddings")
        if (value := getattr(inputs, field)) is not None
    }
    inputs = replace(inputs, **precise)
    return {name: _probabilities(name, inputs) for name in checked}


def _probabilities(name: str, inputs: SamplerInputs) -> FloatArray:
    spec = SAMPLERS[name]
    if spec.weights is not None and inputs.logits is not None:
        if spec.needs_counts:
            require_input(name, inputs, "counts")
        values = np.asarray(spec.weights(inputs.logits, inputs), dtype=np.float64)
    elif spec.follows_vectors:
        require_input(name, inputs, "h")
        values = make_sampler(name, inputs).probs(inputs.h)
    else:
        values = make_sampler(name, inputs).probs(None)[0]
    totals = values.sum(axis=-1, keepdims=True)
    if not (values.min() >= 0.0 and np.isfinite(totals).all() and totals.min() > 0.0):
        raise ValueError(
            f"sampler {name!r} must give weights that are finite, at least 0 and not all 0, got "
            f"weights from {values.min()} to {values.max()} with a sum of {totals.min()}; correct "
            "its `weights`."
        )
    q: FloatArray = np.maximum(values / totals, _LEAST)
    return q
