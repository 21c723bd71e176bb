"""Find what a sampled loss estimates: compare any implementation with exact means of all schemes.

The package has three central classes. An `estimators.Estimator` describes how a loss is computed
from its draws. A `faults.Fault` turns a right estimator into wrong ones. A `candidates.Candidate`
is a hypothesis about the loss: a right or wrong estimator, its exact means on a test problem, and
whether the observed means allow it.

=============== ===================================================================
file            contents
=============== ===================================================================
`check`         `check_loss`: calls the loss, tests the candidates, and returns the report
`problems`      small test problems on which candidates differ most, and extreme problems
`calls`         calls of the user's loss and proposal; which frames of an error are the user's
`observe`       checked results of the loss on a problem: their means, and bounds on their rounding
`estimators`    `Estimator`, the random sum S of a loss, and the list of known estimators
`faults`        the usual mistakes; a new mistake is an entry of `FAULTS`
`candidates`    `Candidate`, a hypothesis with its exact means
`known`         candidates that do not depend on the observations, with zero, one or two mistakes
`fitted`        candidates with a constant that is fitted to the observations
`families`      families of candidates, simplest first; a new family is an entry of `FAMILIES`
`memory`        candidates for losses with a running estimate of the sum for each example
`batches`       candidates whose negatives are the labels of the batch
`exact`         the exact mean of a loss and of its gradient, by the integral of
                `samplesoft.bias.plain`
`spread`        standard deviation and skewness of single calls, and the moments of a loss
`report`        the result, as text, JSON, HTML and a plot
=============== ===================================================================
"""
