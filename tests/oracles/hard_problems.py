"""Hard problems with certified answers, by which exact functions and their error bounds are judged.

300 of them are frozen in ``tests/data/hard_problems.json``, with the error of each function as it
was when they were frozen, so that a later loss of digits shows although it is below a general
tolerance. In tests/ ``python -m oracles.hard_problems`` freezes them anew; this needs python-flint.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import samplesoft
from samplesoft.schemes import SCHEMES, exact_schemes

FILE = Path(__file__).parents[1] / "data" / "hard_problems.json"
NUM_FROZEN = 300
SEED = 20261129
UNITS = 32.0  # of the last digit, which are no loss of digits
WITH_BOUNDS = ("negatives", "masked")
SCHEMES_OF_PROBLEMS = (*exact_schemes(), *exact_schemes(distinct=True))


@dataclass(frozen=True)
class HardProblem:
    scheme: str
    logits: np.ndarray
    label: int
    q: np.ndarray
    num_sampled: int

    @property
    def arguments(self):
        return self.logits, self.label, self.q, self.num_sampled


@dataclass(frozen=True)
class Answer:
    """Certified ends of the bias (n,) and of the loss bias, as float64."""

    lower: np.ndarray
    upper: np.ndarray
    loss_lower: float
    loss_upper: float

    def distance(self, bias):
        """Return how far a bias is from the interval in the L1 norm: at least its error."""
        return float(np.maximum(self.lower - bias, bias - self.upper).clip(min=0.0).sum())

    def loss_distance(self, loss_bias):
        return max(self.loss_lower - loss_bias, loss_bias - self.loss_upper, 0.0)


def hard_problem(rng, scheme):
    """Return a random problem of one of several kinds that have cost digits."""
    properties = SCHEMES[scheme]
    most = 7 if properties.distinct else 12
    n = int(rng.integers(2, most + 1))
    logits = rng.normal(size=n) * rng.choice([0.0, 1e-6, 0.1, 1.0, 4.0, 30.0])
    kind = rng.integers(6)
    if kind == 0:  # one class far above or below the others
        logits[rng.integers(n)] += rng.choice([-1.0, 1.0]) * 10.0 ** rng.uniform(0.0, 2.5)
    elif kind == 1:  # two levels
        logits = rng.choice([0.0, 10.0 ** rng.uniform(-3.0, 2.0)], size=n)
    elif kind == 2:  # a common offset
        logits += rng.choice([-1e4, 1e4])

    kind = rng.integers(6)
    if kind == 0:
        q = np.full(n, 1.0 / n)
    elif kind == 1:  # the softmax but for a relative error
        p = np.exp(logits - logits.max())
        q = np.maximum(p, 1e-290) * (1.0 + 10.0 ** rng.uniform(-12.0, -1.0) * rng.normal(size=n))
        q = np.maximum(q, 1e-290)
    elif kind == 2:  # one class that is rarely drawn
        q = np.ones(n)
        q[rng.integers(n)] = 10.0 ** -rng.uniform(1.0, 30.0)
    elif kind == 3:  # over many magnitudes
        q = 10.0 ** -(rng.choice([3.0, 20.0, 200.0]) * rng.random(n))
    elif kind == 4:  # one class that nearly all draws are
        q = 10.0 ** -rng.uniform(3.0, 14.0, size=n)
        q[rng.integers(n)] = 1.0
    else:
        q = rng.dirichlet(np.ones(n)) + 1e-12
    q = q / q.sum()
    if properties.independent:
        q = np.minimum(q * rng.choice([1.0, n / 3.0, n]), 1.0)

    m = int(10.0 ** rng.uniform(0.0, rng.choice([1.0, 3.0, 9.0])))
    if properties.distinct:
        m = int(rng.integers(1, n))
    return HardProblem(scheme, logits, int(rng.integers(n)), q, max(m, properties.min_draws))


def fresh_problems(seed, count):
    """Return problems of all schemes in turn."""
    rng = np.random.default_rng(seed)
    names = SCHEMES_OF_PROBLEMS
    return [hard_problem(rng, names[i % len(names)]) for i in range(count)]


def certified_answer(problem):
    """Return the certified ends, by balls."""
    from samplesoft.bias.certified import certified_bias

    proved = certified_bias(*problem.arguments, scheme=problem.scheme)
    return Answer(proved.lower, proved.upper, proved.loss_lower, proved.loss_upper)


def exact(problem):
    """Return the exact bias, whose warnings of lost digits are not of interest here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return samplesoft.exact_bias(*problem.arguments, scheme=problem.scheme)


def bounds(problem):
    """Return the bounds for this number of draws, or None if the scheme has none."""
    if problem.scheme not in WITH_BOUNDS:
        return None
    return samplesoft.finite_sample_bounds(*problem.arguments, scheme=problem.scheme)


def judge(problem, answer, record=None):
    """Assert that exact values are within their own errors, and bounds around the certified bias.

    A frozen problem has a `record` of the errors when it was frozen. Four times that, or some units
    of the last digit of the bias, are allowed.
    """
    result = exact(problem)
    off = answer.distance(result.bias)
    loss_off = answer.loss_distance(result.loss_bias)
    assert off <= result.error, problem
    assert loss_off <= result.loss_error, problem
    if record is not None:
        rounding = UNITS * 2.0**-53
        size = np.abs(result.bias).sum()
        assert off <= 4.0 * record["recorded_error"] + rounding * size, problem
        allowed = 4.0 * record["recorded_loss_error"] + rounding * abs(result.loss_bias)
        assert loss_off <= allowed, problem

    proved = bounds(problem)
    if proved is not None:
        assert (proved.lower <= answer.upper).all() and (answer.lower <= proved.upper).all(), (
            problem
        )


def hexadecimal(values):
    return [float(x).hex() for x in values]


def from_hexadecimal(values):
    return np.array([float.fromhex(x) for x in values])


def freeze():
    """Write the problems, their answers, and the errors that functions have now."""
    records = []
    for problem in fresh_problems(SEED, NUM_FROZEN):
        answer = certified_answer(problem)
        result = exact(problem)
        records.append(
            {
                "scheme": problem.scheme,
                "logits": hexadecimal(problem.logits),
                "label": problem.label,
                "q": hexadecimal(problem.q),
                "num_sampled": problem.num_sampled,
                "lower": hexadecimal(answer.lower),
                "upper": hexadecimal(answer.upper),
                "loss": hexadecimal([answer.loss_lower, answer.loss_upper]),
                "recorded_error": answer.distance(result.bias),
                "recorded_loss_error": answer.loss_distance(result.loss_bias),
            }
        )
    lines = ",\n".join(json.dumps(record) for record in records)
    FILE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def frozen_problems():
    """Return (problem, answer, record) of each frozen problem."""
    found = []
    for record in json.loads(FILE.read_text(encoding="utf-8")):
        problem = HardProblem(
            record["scheme"],
            from_hexadecimal(record["logits"]),
            record["label"],
            from_hexadecimal(record["q"]),
            record["num_sampled"],
        )
        loss_lower, loss_upper = from_hexadecimal(record["loss"])
        lower = from_hexadecimal(record["lower"])
        upper = from_hexadecimal(record["upper"])
        found.append((problem, Answer(lower, upper, loss_lower, loss_upper), record))
    return found


if __name__ == "__main__":
    freeze()
