"""The registry of samplers by name: how each is made, which inputs it needs, what it supports.

To add a sampler, write a module and an entry of `SAMPLERS`. The command line, the classifier, the
settings of a layer and the tests read the entries.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from samplesoft._device import backend
from samplesoft._device.select import as_device, require_cpu, to_host
from samplesoft._random import stream_key
from samplesoft._temperature import as_tau
from samplesoft._validation import (
    FloatArray,
    as_choice,
    as_count,
    as_counts,
    as_positive,
    as_real_array,
    require_instance,
    scale_by_power_of_two,
)
from samplesoft.samplers.base import Rows, Sampler
from samplesoft.samplers.clusters.sampler import ClusterSampler
from samplesoft.samplers.composed import CertainSampler, MixtureSampler, TwoPassSampler
from samplesoft.samplers.frequency import (
    LearnedUnigramSampler,
    LogUniformSampler,
    StreamingUnigramSampler,
    UnigramSampler,
    log_uniform_weights,
    unigram_weights,
)
from samplesoft.samplers.kernel import PositiveSampler, QuadraticSampler, RFSoftmaxSampler
from samplesoft.samplers.lsh import LSHSampler
from samplesoft.samplers.metropolis import MetropolisSampler
from samplesoft.samplers.softmax import SoftmaxSampler
from samplesoft.samplers.static import UniformSampler

# largest decrease of the mean log-likelihood of labels, due to wrong ranks, that gives no warning
_MAX_LOST_NATS = 0.1
# smaller probabilities, such as those of a softmax that underflows, are raised to this value:
# importance weights need probabilities above 0
_MIN_PROB = 1e-300
_INPUT_DESCRIPTIONS = {
    "class_embeddings": "class vectors (n, d)",
    "counts": "class counts (n,)",
    "h": "context vectors (B, d)",
}


@dataclass(frozen=True, eq=False)
class SamplerInputs:
    """Inputs of `make_sampler` and `dense_proposals`.

    A sampler reads only the fields that ``SAMPLERS[name].reads`` lists.

    Parameters
    ----------
    class_embeddings : array_like or None, shape (n, d)
        Class vectors, float32 or float64; of norm 1 for the ``rff`` samplers.
    counts : array_like or None, shape (n,)
        Count of each class, in any unit. ``log-uniform`` ranks classes by count, if counts are
        given; otherwise the index of a class must be its rank.
    tau : float or None
        Inverse temperature. None is the default of each sampler: 10 if it requires unit vectors,
        and 1 otherwise.
    nu : float
        Sharpness of the Gaussian kernel of the ``rff`` samplers; 4 was best in their paper.
    num_features : int
        Number of random frequencies of the ``rff`` samplers, and number of features of
        ``positive``.
    alpha : float
        Weight of the square of the logit in ``quadratic``.
    power : float
        Exponent of the counts: 1 for the counts themselves, near 0 for uniform.
    rng : int, numpy.random.Generator or None
        Seed of random features and candidates.
    device : {"cpu", "cuda"}
        Device of the layer that the sampler serves. A sampler with ``SAMPLERS[name].cuda`` draws on
        this device; a sampler that does not depend on vectors always draws on the CPU.
    h : array_like or None, shape (B, d)
        Context vectors, for `dense_proposals`.
    logits : array_like or None, shape (B, n) or (n,)
        Logits of B examples, for `dense_proposals`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, shapes disagree, or the number of classes is unknown.
    """

    class_embeddings: Any = None
    counts: Any = None
    tau: float | None = None
    nu: float = 4.0
    num_features: int = 1024
    alpha: float = 100.0
    power: float = 0.75
    rng: int | np.random.Generator | None = None
    device: str = "cpu"
    h: Any = None
    logits: Any = None

    def __post_init__(self) -> None:
        float_rows = backend(as_device(self.device)).float_rows
        checks: dict[str, Callable[[str, Any], Any]] = {
            **dict.fromkeys(("tau", "nu", "alpha", "power"), as_positive),
            "num_features": as_count,
            "class_embeddings": float_rows,
            "h": float_rows,
            "logits": lambda name, x: np.atleast_2d(as_real_array(name, to_host(x), (1, 2))),
            "counts": lambda name, x: as_real_array(name, to_host(x), (1,)),
        }

        # only fields whose default is None may be None
        for name, check in checks.items():
            value = getattr(self, name)
            if value is not None or name in ("nu", "alpha", "power", "num_features"):
                object.__setattr__(self, name, check(name, value))  # the class is frozen

        # only a seed is checked, because `stream_key` would draw a number from a generator
        if not isinstance(self.rng, np.random.Generator):
            stream_key(self.rng)

        if self.class_embeddings is self.counts is self.logits is None:
            raise ValueError(
                "one of `class_embeddings`, `counts` and `logits` must be given, for they say how "
                "many classes there are, got None for each."
            )

        # shapes are checked first, because the check of counts needs the number of classes
        self._require_matching_shapes()
        if self.counts is not None:
            object.__setattr__(self, "counts", as_counts("counts", self.counts, self.num_classes))

    @property
    def num_classes(self) -> int:
        """Number of classes n."""
        if self.class_embeddings is not None:
            return int(self.class_embeddings.shape[0])
        return int(self.logits.shape[1]) if self.logits is not None else len(self.counts)

    def _require_matching_shapes(self) -> None:
        """Raise ValueError if the shapes of logits, contexts and class vectors disagree."""
        rows = self.class_embeddings
        h = self.h

        if self.logits is not None:
            batch, n = self.logits.shape
            for name, vectors, num_rows in (("h", h, batch), ("class_embeddings", rows, n)):
                if vectors is not None and vectors.shape[0] != num_rows:
                    raise ValueError(
                        f"`{name}` must have {num_rows} rows to match `logits` of shape "
                        f"{self.logits.shape}, got shape {vectors.shape}."
                    )

        if h is not None and rows is not None and h.shape[1] != rows.shape[1]:
            raise ValueError(
                "`h` and `class_embeddings` must have the same dimension d, got shapes "
                f"{h.shape} and {rows.shape}."
            )


@dataclass(frozen=True)
class SamplerSpec:
    """Entry of `SAMPLERS`: how a sampler is made, which inputs it needs and what it supports.

    Parameters
    ----------
    make : callable
        Function that makes the sampler from a `SamplerInputs`.
    summary : str
        One line about the distribution, for the help of the command line.
    reads : tuple of str
        Fields of `SamplerInputs` that `make` reads, in addition to ``device`` and ``num_classes``.
        Class vectors and counts must not be None if they are listed; with `counts_optional`, counts
        may be None.
    unit_vectors : bool
        Whether contexts and class vectors must have norm 1.
    cuda : bool
        Whether the sampler can draw on a GPU.
    every_class : bool
        Whether each class always has a probability above 0.
    counts_optional : bool
        Whether counts may be None although `reads` lists them.
    weights : callable, optional
        Function of logits (B, n) and a `SamplerInputs` that returns positive weights, (n,) or
        (B, n), to which the probabilities are proportional. With this function, `dense_proposals`
        needs no vectors. None if the probabilities do not follow from logits and counts.

    Examples
    --------
    >>> SAMPLERS["rff"].unit_vectors, SAMPLERS["softmax"].unit_vectors
    (True, False)
    >>> SAMPLERS["unigram"].reads
    ('counts', 'power')
    """

    make: Callable[[SamplerInputs], Sampler]
    summary: str
    reads: tuple[str, ...] = ()
    unit_vectors: bool = False
    cuda: bool = False
    every_class: bool = True
    counts_optional: bool = False
    weights: Callable[[FloatArray, SamplerInputs], FloatArray] | None = None

    @property
    def follows_vectors(self) -> bool:
        """Whether draws depend on context vectors and on class vectors, which `update` changes."""
        return "class_embeddings" in self.reads

    @property
    def needs_counts(self) -> bool:
        """Whether the sampler cannot be made without class counts."""
        return "counts" in self.reads and not self.counts_optional

    def reason_if_inputs_lack(self, inputs: SamplerInputs, unit_vectors: bool) -> str:
        """Return a phrase, such as "needs class counts", that names an input which is missing.

        The phrase is empty if `inputs` have all inputs that the sampler needs. `unit_vectors` tells
        whether their vectors have norm 1.
        """
        if self.needs_counts and inputs.counts is None:
            return "needs class counts"

        # if the weights follow from logits, vectors are not needed
        if self.weights is not None or not self.follows_vectors:
            return ""
        if inputs.h is None:
            return "needs contexts and class vectors"
        return "needs vectors of norm 1" if self.unit_vectors and not unit_vectors else ""


def _spec_from_fields(
    sampler: Callable[..., Sampler], summary: str, reads: str, **properties: Any
) -> SamplerSpec:
    """Return the spec of a sampler whose keyword arguments are fields of `SamplerInputs`.

    `reads` lists these fields, separated by spaces. `properties` are other fields of `SamplerSpec`.
    """
    fields = tuple(reads.split())

    def make(inputs: SamplerInputs) -> Sampler:
        names = (*fields, "device") if properties.get("cuda") else fields
        return sampler(**{name: getattr(inputs, name) for name in names})

    return SamplerSpec(make, summary, fields, **properties)


def _rff_spec(frequencies: str) -> SamplerSpec:
    """Return the spec of RF-softmax as in Rawat et al. (2019): a tree with one class per leaf."""
    make = partial(RFSoftmaxSampler, frequencies=frequencies, leaf="kernel", leaf_size=1)
    summary = f"random Fourier features of the Gaussian kernel, {frequencies} frequencies"
    reads = "class_embeddings nu num_features rng"
    return _spec_from_fields(make, summary, reads, unit_vectors=True, cuda=True)


def _make_learned_unigram(
    kind: type[LearnedUnigramSampler], counts: FloatArray, power: float
) -> Sampler:
    """Return a sampler of type `kind` with the initial counts ``counts + 1``."""
    return kind(len(counts), power=power, initial=counts + 1.0)


def _make_quadratic(class_embeddings: Rows, tau: float | None, alpha: float) -> Sampler:
    """Return a sampler by the kernel ``alpha (tau h . c)**2 + 1``, with kernel leaves.

    This is the kernel of Blanc and Rendle. In `QuadraticSampler`, alpha weights ``(h . c)**2``.
    """
    tau = as_tau(tau, unit_vectors=False)
    alpha *= tau * tau
    if not alpha < np.inf:
        raise ValueError(f"`tau` must have a finite square, got {tau:g}; scale the class vectors.")

    sampler = QuadraticSampler(class_embeddings, alpha=alpha, leaf="kernel")
    # with kernel leaves tau is None; set it, because this kernel is a function of the logit tau h.c
    sampler.tau = tau
    return sampler


def _make_two_pass(
    class_embeddings: Rows, counts: FloatArray, power: float, **options: Any
) -> Sampler:
    """Return a two-pass sampler with max(16, n / 8) candidates, drawn by a power of the counts."""
    num_candidates = max(16, len(class_embeddings) // 8)
    candidates = UnigramSampler(counts, power=power)
    return TwoPassSampler(candidates, class_embeddings, num_candidates=num_candidates, **options)


def _make_mixture(counts: FloatArray, power: float, **options: Any) -> Sampler:
    """Return an equal mixture of RF-softmax and a unigram, which bounds the importance weights."""
    return MixtureSampler(RFSoftmaxSampler(**options), UnigramSampler(counts, power=power))


SAMPLERS: dict[str, SamplerSpec] = {
    "uniform": SamplerSpec(
        lambda inputs: UniformSampler(inputs.num_classes),
        "every class with the same probability",
        weights=lambda logits, inputs: np.ones(logits.shape[1]),
    ),
    # the formula of TensorFlow's default sampler
    "log-uniform": SamplerSpec(
        lambda inputs: LogUniformSampler(inputs.num_classes, counts=inputs.counts),
        "Zipf's law by the rank of a class in its counts; without counts, by its index",
        ("counts",),
        counts_optional=True,
        weights=lambda logits, inputs: log_uniform_weights(logits.shape[1], inputs.counts),
    ),
    # Mikolov et al. (2013): counts to the power 0.75
    "unigram": _spec_from_fields(
        UnigramSampler,
        "a power of how often each class occurs",
        "counts power",
        weights=lambda logits, inputs: unigram_weights(inputs.counts, inputs.power),
    ),
    "learned-unigram": _spec_from_fields(
        partial(_make_learned_unigram, LearnedUnigramSampler),
        "a power of the counts, which are updated with the labels seen in training",
        "counts power",
    ),
    # Yi et al. (2019), Algorithm 2
    "streaming-unigram": _spec_from_fields(
        partial(_make_learned_unigram, StreamingUnigramSampler),
        "a power of recent frequencies, by the gaps between the labels seen in training",
        "counts power",
    ),
    # Blanc and Rendle (2018), Theorem 2.1: the only proposal without bias
    "softmax": _spec_from_fields(
        SoftmaxSampler,
        "the softmax of all classes: no bias, at the price of all logits",
        "class_embeddings tau",
        # the largest logit is subtracted, because weights may underflow, but must not overflow
        weights=lambda logits, inputs: np.exp(logits - logits.max(axis=1, keepdims=True)),
    ),
    # Blanc and Rendle (2018), section 3.3
    "quadratic": _spec_from_fields(
        _make_quadratic,
        "alpha o^2 + 1 of the logit o",
        "class_embeddings tau alpha",
        weights=lambda logits, inputs: inputs.alpha * logits**2 + 1.0,
    ),
    # Rawat et al. (2019), and the two methods of Yu et al. (2016) to draw frequencies
    "rff": _rff_spec("iid"),
    "rff:orthogonal": _rff_spec("orthogonal"),
    "rff:structured": _rff_spec("structured"),
    "rff+softmax-leaf": _spec_from_fields(
        RFSoftmaxSampler,
        "random Fourier features down to leaves of classes, in which the softmax draws",
        "class_embeddings tau nu num_features rng",
        unit_vectors=True,
        cuda=True,
    ),
    # Choromanski et al. (2021); their estimates of the kernel are never negative, so that they can
    # be used as draw probabilities
    "positive": _spec_from_fields(
        partial(PositiveSampler, leaf="kernel"),
        "positive random features of exp(tau h . c)",
        "class_embeddings tau num_features rng",
        cuda=True,
    ),
    "clusters": _spec_from_fields(
        ClusterSampler,
        "the softmax in leaves of similar classes, reached by the estimated mass of cells",
        "class_embeddings tau rng",
        cuda=True,
    ),
    # Spring and Shrivastava (2017), with the probabilities of the draws
    "lsh": _spec_from_fields(
        LSHSampler,
        "a uniform class of the context's bucket in one of 64 hash tables; half the draws uniform",
        "class_embeddings rng",
    ),
    # Bengio and Senécal (2003), Metropolis-Hastings
    "metropolis": _spec_from_fields(
        MetropolisSampler,
        "the end of a Metropolis chain of ten steps from a unigram to the softmax, for study",
        "class_embeddings counts tau power",
    ),
    # Bai et al. (2017), TAPAS
    "two-pass": _spec_from_fields(
        _make_two_pass,
        "the softmax among candidates that a unigram draws for the batch",
        "class_embeddings counts tau power rng",
        every_class=False,
    ),
    "mixture": _spec_from_fields(
        _make_mixture,
        "half the draws by rff+softmax-leaf, half by unigram",
        "class_embeddings counts tau nu num_features power rng",
        unit_vectors=True,
    ),
}


def make_sampler(name: str, inputs: SamplerInputs) -> Sampler:
    """Make a sampler by its name in `SAMPLERS`.

    Parameters
    ----------
    name : str
        A key of `SAMPLERS`.
    inputs : SamplerInputs
        Inputs of the sampler.

    Returns
    -------
    Sampler
        A new sampler.

    Raises
    ------
    TypeError, ValueError
        If the name is unknown, or `inputs` lack a field that the sampler reads or hold a value that
        it refuses.

    Examples
    --------
    >>> inputs = SamplerInputs(class_embeddings=[[1.0, 0.0], [0.6, 0.8]], counts=[1, 16])
    >>> make_sampler("unigram", inputs).probs(None).round(3)
    array([[0.111, 0.889]])
    """
    require_instance("inputs", inputs, SamplerInputs)
    spec = SAMPLERS[as_choice("name", name, SAMPLERS)]

    # a sampler that does not depend on vectors draws on the CPU, even for a layer on a GPU
    if spec.follows_vectors and not spec.cuda:
        require_cpu(name, inputs.device)

    needed = {"class_embeddings": spec.follows_vectors, "counts": spec.needs_counts}
    for attribute, is_needed in needed.items():
        if is_needed:
            require_input(name, inputs, attribute)
    return spec.make(inputs)


def make_certain_sampler(name: str, inputs: SamplerInputs, num_certain: int) -> CertainSampler:
    """Make a sampler that includes the most frequent classes in every draw.

    The other classes are drawn by a named sampler.

    Parameters
    ----------
    name : str
        Key of `SAMPLERS`, for the sampler of the other classes.
    inputs : SamplerInputs
        Inputs for all n classes, with counts.
    num_certain : int
        Number of always-included classes. These have the largest counts; of classes with equal
        counts, the first are included.

    Returns
    -------
    CertainSampler
        A new sampler.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or no class is left to draw.

    Examples
    --------
    >>> inputs = SamplerInputs(counts=[16, 900, 81, 256])
    >>> sampler = make_certain_sampler("unigram", inputs, 1)
    >>> sampler.certain, sampler.probs(None).round(3)
    (array([1]), array([[0.081, 0.   , 0.273, 0.646]]))
    """
    require_instance("inputs", inputs, SamplerInputs)
    num_certain = as_count("num_certain", num_certain)
    if inputs.counts is None:
        raise ValueError(
            "`inputs` must have counts, by which the certain classes are chosen, got None; pass "
            "them, or make a CertainSampler of classes that you choose."
        )

    if num_certain >= inputs.num_classes:
        raise ValueError(
            f"`num_certain` must be less than the number of classes {inputs.num_classes}, got "
            f"{num_certain}; with all of them use the full softmax."
        )

    # a stable sort, so that of classes with equal counts the first are included
    order = np.argsort(-inputs.counts, kind="stable")
    # in ascending order, because class k of the tail must be the k-th of the other classes
    others = np.sort(order[num_certain:])

    counts = inputs.counts[others]
    if not counts.any():  # if all counts of the other classes are 0, they are replaced by 1
        counts = np.ones(len(others))

    rows = inputs.class_embeddings
    tail_inputs = replace(
        inputs, counts=counts, class_embeddings=None if rows is None else rows[others], logits=None
    )
    return CertainSampler(make_sampler(name, tail_inputs), order[:num_certain])


def warn_of_wrong_ranks(sampler: Sampler, counts: FloatArray) -> None:
    """Warn if the ranks of classes in a `LogUniformSampler` contradict their counts (n,).

    The components of composed samplers are checked as well.
    """
    if isinstance(sampler, CertainSampler):
        others = np.delete(np.arange(sampler.num_classes), sampler.certain)
        warn_of_wrong_ranks(sampler.tail, counts[others])

    for name in ("first", "second", "candidates"):
        component = getattr(sampler, name, None)
        if isinstance(component, Sampler) and component.num_classes == sampler.num_classes:
            warn_of_wrong_ranks(component, counts)

    if not isinstance(sampler, LogUniformSampler) or len(counts) != sampler.num_classes:
        return
    if not counts.any():
        return

    n = len(counts)
    frequencies = scale_by_power_of_two(counts)
    frequencies /= frequencies.sum()
    ranked_q = log_uniform_weights(n, counts) / np.log(n + 1.0)
    log_q = sampler.log_prob(None, np.arange(n))[0]

    # Warn if the wrong ranks lower the mean log-likelihood of labels much, and to less than under
    # uniform draws. Smaller errors are no reason to warn: ranks from few examples are wrong by
    # chance, and approximate ranks from other data are better than none.
    lost_nats = float(frequencies @ (np.log(ranked_q) - log_q))
    if lost_nats > _MAX_LOST_NATS and float(frequencies @ log_q) < -np.log(n):
        warnings.warn(
            "the LogUniformSampler takes the number of a class for its rank by frequency, which "
            f"the counts contradict: class {int(np.argmax(counts))} is the most frequent of {n}. "
            "Draws are then worse than uniform draws; make it with `counts`, or use "
            "sampler='log-uniform', which ranks classes by the counts of the data.",
            UserWarning,
            stacklevel=2,
        )


def require_input(name: str, inputs: SamplerInputs, attribute: str) -> None:
    """Raise ValueError if `inputs` lack the field `attribute`, which the sampler `name` needs."""
    if getattr(inputs, attribute) is None:
        raise ValueError(
            f"sampler {name!r} needs {_INPUT_DESCRIPTIONS[attribute]} as `{attribute}`, got None; "
            "pass them, or use another sampler."
        )


def dense_proposals(names: Iterable[str], inputs: SamplerInputs) -> dict[str, FloatArray]:
    """Return the probabilities of all classes under named samplers.

    If ``inputs.logits`` are given, the probabilities of ``softmax`` and ``quadratic`` are computed
    from the logits. The other samplers that depend on vectors need ``inputs.h`` and
    ``inputs.class_embeddings``.

    Parameters
    ----------
    names : iterable of str
        Keys of `SAMPLERS`.
    inputs : SamplerInputs
        Inputs of the samplers, on the CPU. Vectors are converted to float64.

    Returns
    -------
    dict of str to ndarray of float64, shape (n,) or (B, n)
        Probabilities by name: each is at least 1e-300, and each row sums to 1. The shape is (n,) if
        the probabilities do not depend on the example.

    Raises
    ------
    TypeError, ValueError
        If a name is unknown, or a sampler needs a field that the inputs lack.

    References
    ----------
    Blanc and Rendle (2018), Theorem 2.1: of all proposals, only the softmax leaves no bias; section
    3.3: the quadratic kernel of the logit ``tau h . c``. The quadratic kernel of Rawat et al.
    (2019), eq. 15, is a function of ``h . c``, without tau.

    Examples
    --------
    >>> inputs = SamplerInputs(logits=[[0.0, 1.0, 2.0]], counts=[16, 81, 256])
    >>> q = dense_proposals(["uniform", "unigram", "softmax"], inputs)
    >>> q["unigram"].round(3), q["softmax"].round(3)
    (array([0.081, 0.273, 0.646]), array([[0.09 , 0.245, 0.665]]))
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"`names` must be a list of names, got {type(names).__name__} {names!r}.")
    require_instance("inputs", inputs, SamplerInputs)
    require_cpu("dense proposals", inputs.device)
    sampler_names = [as_choice("names", name, SAMPLERS) for name in names]

    # vectors are converted to float64, in which the exact bias is computed
    float64_vectors = {
        field: value.astype(np.float64)
        for field in ("h", "class_embeddings")
        if (value := getattr(inputs, field)) is not None
    }
    inputs = replace(inputs, **float64_vectors)

    return {name: _dense_probs(name, inputs) for name in sampler_names}


def _dense_probs(name: str, inputs: SamplerInputs) -> FloatArray:
    """Return the probabilities, (n,) or (B, n), of all classes under the sampler `name`."""
    spec = SAMPLERS[name]
    # weights from logits need no sampler, whose construction takes time if n is large
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
    # this check is for entries that a user has added to `SAMPLERS`; other weights are valid
    if not (values.min() >= 0.0 and np.isfinite(totals).all() and totals.min() > 0.0):
        raise ValueError(
            f"sampler {name!r} must give weights that are finite, at least 0 and not all 0, got "
            f"weights from {values.min()} to {values.max()} with a sum of {totals.min()}; correct "
            "its `weights`."
        )

    q: FloatArray = np.maximum(values / totals, _MIN_PROB)
    return q
