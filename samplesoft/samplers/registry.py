"""Samplers by name, with what each needs and can do, and what they are made from.

A new sampler is a file, and an entry of `SAMPLERS`. The command line, the classifier, the settings
of a layer and the tests read the declarations here.
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
from samplesoft._random import as_key
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

_LOST_NATS = 0.1  # nats of a log-likelihood: what ranks in another order cost may be as much
_LEAST_MASS = 1e-300  # a softmax may underflow, and a class without mass has no importance weight
_WHAT = {
    "class_embeddings": "class vectors (n, d)",
    "counts": "class counts (n,)",
    "h": "context vectors (B, d)",
}


@dataclass(frozen=True, eq=False)
class SamplerInputs:
    """What `make_sampler` and `dense_proposals` may use.

    Each sampler reads some of it and says which: ``SAMPLERS[name].reads``.

    Parameters
    ----------
    class_embeddings : array_like or None, shape (n, d)
        Class vectors, float32 or float64; of norm 1 for the ``rff`` samplers.
    counts : array_like or None, shape (n,)
        How often each class occurs, in any unit. ``log-uniform`` ranks classes by them where they
        are given; else the number of a class must be its rank.
    tau : float or None
        Inverse temperature; None for the default of each sampler, which is 10 where it takes
        vectors of norm 1 only, and 1 elsewhere.
    nu : float
        Sharpness of the Gaussian kernel of the ``rff`` samplers; 4 did best in the paper.
    num_features : int
        Random frequencies of the ``rff`` samplers, features of ``positive``.
    alpha : float
        Weight of the square of the logit in ``quadratic``.
    power : float
        Distortion of the counts: 1 for the counts as they are, near 0 for uniform.
    rng : int, numpy.random.Generator or None
        Seed of random features and candidates.
    device : {"cpu", "cuda"}
        Where the layer works that the sampler serves: one with ``SAMPLERS[name].cuda`` draws
        there, and one that does not look at vectors draws on the processor for it.
    h : array_like or None, shape (B, d)
        Context vectors, for `dense_proposals`.
    logits : array_like or None, shape (B, n) or (n,)
        Logits of B examples, for `dense_proposals`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, shapes disagree, or nothing says how many classes there are.
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
        # those that may be None are the ones with this default; nu=None is a mistake
        for name, check in checks.items():
            value = getattr(self, name)
            if value is not None or name in ("nu", "alpha", "power", "num_features"):
                object.__setattr__(self, name, check(name, value))  # of a frozen class
        if not isinstance(self.rng, np.random.Generator):  # of which a key would be drawn
            as_key(self.rng)
        if self.class_embeddings is self.counts is self.logits is None:
            raise ValueError(
                "one of `class_embeddings`, `counts` and `logits` must be given, for they say how "
                "many classes there are, got None for each."
            )
        # before counts, whose number must be that of the classes
        self._require_same_sizes()
        if self.counts is not None:
            object.__setattr__(self, "counts", as_counts("counts", self.counts, self.num_classes))

    @property
    def num_classes(self) -> int:
        """Number of classes n."""
        if self.class_embeddings is not None:
            return int(self.class_embeddings.shape[0])
        return int(self.logits.shape[1]) if self.logits is not None else len(self.counts)

    def _require_same_sizes(self) -> None:
        rows = self.class_embeddings
        h = self.h
        if self.logits is not None:
            batch, n = self.logits.shape
            for name, vectors, wanted in (("h", h, batch), ("class_embeddings", rows, n)):
                if vectors is not None and vectors.shape[0] != wanted:
                    raise ValueError(
                        f"`{name}` must have {wanted} rows to match `logits` of shape "
                        f"{self.logits.shape}, got shape {vectors.shape}."
                    )
        if h is not None and rows is not None and h.shape[1] != rows.shape[1]:
            raise ValueError(
                "`h` and `class_embeddings` must have the same dimension d, got shapes "
                f"{h.shape} and {rows.shape}."
            )


@dataclass(frozen=True)
class SamplerSpec:
    """What a sampler declares: how it is made, what it needs and what it can do.

    Parameters
    ----------
    make : callable
        Makes the sampler from a `SamplerInputs`.
    summary : str
        One line on what it draws by, for the help of the command line.
    reads : tuple of str
        The fields of `SamplerInputs` that `make` reads, beside ``device`` and ``num_classes``.
        Class vectors and counts that are read here must be given.
    unit_vectors : bool
        Whether contexts and class vectors must have norm 1.
    cuda : bool
        Whether there are kernels for CUDA.
    every_class : bool
        Whether each class has a probability above 0 at all times.
    counts_optional : bool
        Whether counts need not be given, though they are read where they are.
    weights : callable, optional
        Where the probabilities follow from the logits (B, n) without a sampler: a function of
        those and of a `SamplerInputs` that returns positive weights, (n,) or (B, n).

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
        """Whether draws depend on context vectors, and follow `update` of class vectors."""
        return "class_embeddings" in self.reads

    @property
    def needs_counts(self) -> bool:
        """Whether it cannot be made without how often each class occurs."""
        return "counts" in self.reads and not self.counts_optional

    def lacks(self, inputs: SamplerInputs, unit_vectors: bool) -> str:
        """Return what it needs and the inputs do not have; empty if there is nothing.

        `unit_vectors` says whether their vectors have norm 1.
        """
        if self.needs_counts and inputs.counts is None:
            return "needs class counts"
        # logits alone serve where the weights follow from them
        if self.weights is not None or not self.follows_vectors:
            return ""
        if inputs.h is None:
            return "needs contexts and class vectors"
        return "needs vectors of norm 1" if self.unit_vectors and not unit_vectors else ""


def _of(sampler: Callable[..., Sampler], summary: str, reads: str, **facts: Any) -> SamplerSpec:
    """Return the spec of what takes the fields of the inputs that it reads by their names."""
    fields = tuple(reads.split())

    def make(inputs: SamplerInputs) -> Sampler:
        names = (*fields, "device") if facts.get("cuda") else fields
        return sampler(**{name: getattr(inputs, name) for name in names})

    return SamplerSpec(make, summary, fields, **facts)


def _paper(frequencies: str) -> SamplerSpec:
    """Return the sampler of Rawat et al.: a tree down to single classes."""
    make = partial(RFSoftmaxSampler, frequencies=frequencies, leaf="kernel", leaf_size=1)
    summary = f"random Fourier features of the Gaussian kernel, {frequencies} frequencies"
    reads = "class_embeddings nu num_features rng"
    return _of(make, summary, reads, unit_vectors=True, cuda=True)


def _learned(kind: type[LearnedUnigramSampler], counts: FloatArray, power: float) -> Sampler:
    """Start as if the counts, of one unit, had been observed, each class once more than that."""
    return kind(len(counts), power=power, initial=counts + 1.0)


def _quadratic(class_embeddings: Rows, tau: float | None, alpha: float) -> Sampler:
    """Weigh the square of the logit tau h . c, as Blanc and Rendle do."""
    tau = as_tau(tau, unit_vectors=False)
    alpha *= tau * tau  # that of the sampler is of h . c
    if not alpha < np.inf:
        raise ValueError(f"`tau` must have a finite square, got {tau:g}; scale the class vectors.")
    sampler = QuadraticSampler(class_embeddings, alpha=alpha, leaf="kernel")
    sampler.tau = tau  # which a kernel has not, but this one is of the logit of the loss
    return sampler


def _two_pass(class_embeddings: Rows, counts: FloatArray, power: float, **options: Any) -> Sampler:
    """Take as many candidates as an eighth of the classes, at least 16, by their counts."""
    num = max(16, len(class_embeddings) // 8)
    first = UnigramSampler(counts, power=power)
    return TwoPassSampler(first, class_embeddings, num_candidates=num, **options)


def _mixture(counts: FloatArray, power: float, **options: Any) -> Sampler:
    """Mix a sampler that follows the model with one that bounds the importance weights."""
    return MixtureSampler(RFSoftmaxSampler(**options), UnigramSampler(counts, power=power))


SAMPLERS: dict[str, SamplerSpec] = {
    "uniform": SamplerSpec(
        lambda inputs: UniformSampler(inputs.num_classes),
        "every class with the same probability",
        weights=lambda logits, inputs: np.ones(logits.shape[1]),
    ),
    # TensorFlow's default, with its formula
    "log-uniform": SamplerSpec(
        lambda inputs: LogUniformSampler(inputs.num_classes, counts=inputs.counts),
        "Zipf's law by the rank of a class in its counts; without counts, by its number",
        ("counts",),
        counts_optional=True,
        weights=lambda logits, inputs: log_uniform_weights(logits.shape[1], inputs.counts),
    ),
    # Mikolov et al. (2013): counts to the power 0.75
    "unigram": _of(
        UnigramSampler,
        "a power of how often each class occurs",
        "counts power",
        weights=lambda logits, inputs: unigram_weights(inputs.counts, inputs.power),
    ),
    "learned-unigram": _of(
        partial(_learned, LearnedUnigramSampler),
        "a power of the counts, which go on with the labels seen in training",
        "counts power",
    ),
    # Yi et al. (2019), Algorithm 2
    "streaming-unigram": _of(
        partial(_learned, StreamingUnigramSampler),
        "a power of the frequencies of late, by the gaps between the labels seen in training",
        "counts power",
    ),
    # Blanc and Rendle (2018), Theorem 2.1: the only proposal without bias
    "softmax": _of(
        SoftmaxSampler,
        "the softmax of all classes: no bias, at the price of all logits",
        "class_embeddings tau",
        # shifted, for a weight may underflow but none may overflow
        weights=lambda logits, inputs: np.exp(logits - logits.max(axis=1, keepdims=True)),
    ),
    # Blanc and Rendle (2018), section 3.3
    "quadratic": _of(
        _quadratic,
        "alpha o^2 + 1 of the logit o",
        "class_embeddings tau alpha",
        weights=lambda logits, inputs: inputs.alpha * logits**2 + 1.0,
    ),
    # Rawat et al. (2019), and the two ways of Yu et al. (2016) to draw frequencies
    "rff": _paper("iid"),
    "rff:orthogonal": _paper("orthogonal"),
    "rff:structured": _paper("structured"),
    "rff+softmax-leaf": _of(
        RFSoftmaxSampler,
        "random Fourier features down to leaves of classes, in which the softmax draws",
        "class_embeddings tau nu num_features rng",
        unit_vectors=True,
        cuda=True,
    ),
    # Choromanski et al. (2021), as proposals: estimates are never negative
    "positive": _of(
        partial(PositiveSampler, leaf="kernel"),
        "positive random features of exp(tau h . c)",
        "class_embeddings tau num_features rng",
        cuda=True,
    ),
    "clusters": _of(
        ClusterSampler,
        "the softmax in leaves of similar classes, reached by the estimated mass of cells",
        "class_embeddings tau rng",
        cuda=True,
    ),
    # Spring and Shrivastava (2017), with the probabilities that draws have
    "lsh": _of(
        LSHSampler,
        "any class of the context's bucket in one of 64 hash tables; half the draws uniform",
        "class_embeddings rng",
    ),
    # Bengio and Senécal (2003), Metropolis-Hastings
    "metropolis": _of(
        MetropolisSampler,
        "the softmax as a Metropolis chain has it after ten steps from a unigram, for study",
        "class_embeddings counts tau power",
    ),
    # Bai et al. (2017), TAPAS
    "two-pass": _of(
        _two_pass,
        "the softmax among candidates that a unigram draws for the batch",
        "class_embeddings counts tau power rng",
        every_class=False,
    ),
    "mixture": _of(
        _mixture,
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
        What it is made from.

    Returns
    -------
    Sampler
        A new sampler.

    Raises
    ------
    TypeError, ValueError
        If the name is unknown, the inputs lack what the sampler reads, or it refuses them.

    Examples
    --------
    >>> inputs = SamplerInputs(class_embeddings=[[1.0, 0.0], [0.6, 0.8]], counts=[1, 16])
    >>> make_sampler("unigram", inputs).probs(None).round(3)
    array([[0.111, 0.889]])
    """
    require_instance("inputs", inputs, SamplerInputs)
    spec = SAMPLERS[as_choice("name", name, SAMPLERS)]
    # what does not look at vectors draws on the processor for a layer on a GPU as well
    if spec.follows_vectors and not spec.cuda:
        require_cpu(name, inputs.device)
    needed = {"class_embeddings": spec.follows_vectors, "counts": spec.needs_counts}
    for attribute, is_needed in needed.items():
        if is_needed:
            require_input(name, inputs, attribute)
    return spec.make(inputs)


def make_certain_sampler(name: str, inputs: SamplerInputs, num_certain: int) -> CertainSampler:
    """Put the most frequent classes into every draw, and draw the others by a sampler's name.

    Parameters
    ----------
    name : str
        A key of `SAMPLERS`. It is made for the other classes alone, in their order.
    inputs : SamplerInputs
        What it is made from, with counts.
    num_certain : int
        How many classes are certain: those of the greatest counts, of equal ones the first.

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
            "`inputs` must have counts, by which the certain classes are chosen, got None; give "
            "them, or make a CertainSampler of classes that you choose."
        )
    if num_certain >= inputs.num_classes:
        raise ValueError(
            f"`num_certain` must be less than the number of classes {inputs.num_classes}, got "
            f"{num_certain}; with all of them take the full softmax."
        )
    # stable, so that of equal counts the first class is certain
    order = np.argsort(-inputs.counts, kind="stable")
    # in their order, as `CertainSampler` numbers the classes of its tail
    rest = np.sort(order[num_certain:])
    counts = inputs.counts[rest]
    if not counts.any():  # classes that never occur are all alike
        counts = np.ones(len(rest))
    rows = inputs.class_embeddings
    tail = replace(
        inputs, counts=counts, class_embeddings=None if rows is None else rows[rest], logits=None
    )
    return CertainSampler(make_sampler(name, tail), order[:num_certain])


def warn_of_ranks(sampler: Sampler, counts: FloatArray) -> None:
    """Warn of a `LogUniformSampler` whose classes are not numbered by falling counts (n,).

    One inside a sampler of the library is looked at as well.
    """
    if isinstance(sampler, CertainSampler):
        rest = np.delete(np.arange(sampler.num_classes), sampler.certain)
        warn_of_ranks(sampler.tail, counts[rest])
    for name in ("first", "second", "candidates"):
        part = getattr(sampler, name, None)
        if isinstance(part, Sampler) and part.num_classes == sampler.num_classes:
            warn_of_ranks(part, counts)
    if not isinstance(sampler, LogUniformSampler) or len(counts) != sampler.num_classes:
        return
    if not counts.any():
        return
    n = len(counts)
    shares = scale_by_power_of_two(counts)
    shares /= shares.sum()
    ranked = log_uniform_weights(n, counts) / np.log(n + 1.0)
    given = sampler.log_prob(None, np.arange(n))[0]
    # By how much draws of the counts are less likely than they might be, and than under uniform
    # draws. Ranks of few examples are off by chance; but those of other data that agree in the main
    # are better than none.
    lost = float(shares @ (np.log(ranked) - given))
    if lost > _LOST_NATS and float(shares @ given) < -np.log(n):
        warnings.warn(
            "the LogUniformSampler takes the number of a class for its rank by frequency, which "
            f"the counts contradict: class {int(np.argmax(counts))} is the most frequent of {n}. "
            "Draws are worse than uniform ones so; make it with `counts`, or take "
            "sampler='log-uniform', which ranks classes by the counts of the data.",
            UserWarning,
            stacklevel=2,
        )


def require_input(name: str, inputs: SamplerInputs, attribute: str) -> None:
    """Raise ValueError if `inputs` lack what the sampler `name` needs."""
    if getattr(inputs, attribute) is None:
        raise ValueError(
            f"sampler {name!r} needs {_WHAT[attribute]} as `{attribute}`, got None; give them, or "
            "take another sampler."
        )


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
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"`names` must be a list of names, got {type(names).__name__} {names!r}.")
    require_instance("inputs", inputs, SamplerInputs)
    require_cpu("dense proposals", inputs.device)
    checked = [as_choice("names", name, SAMPLERS) for name in names]
    # proposals go into the exact bias, whose error is that of float64
    precise = {
        field: value.astype(np.float64)
        for field in ("h", "class_embeddings")
        if (value := getattr(inputs, field)) is not None
    }
    inputs = replace(inputs, **precise)
    return {name: _probabilities(name, inputs) for name in checked}


def _probabilities(name: str, inputs: SamplerInputs) -> FloatArray:
    spec = SAMPLERS[name]
    # from the logits where they are known: no sampler is built, whatever n is
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
    # weights may be of a user's own entry: those of the library cannot fail here
    if not (values.min() >= 0.0 and np.isfinite(totals).all() and totals.min() > 0.0):
        raise ValueError(
            f"sampler {name!r} must give weights that are finite, at least 0 and not all 0, got "
            f"weights from {values.min()} to {values.max()} with a sum of {totals.min()}; correct "
            "its `weights`."
        )
    q: FloatArray = np.maximum(values / totals, _LEAST_MASS)
    return q
