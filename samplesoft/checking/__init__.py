"""What a sampled loss estimates: any implementation, compared with the exact means of all schemes.

Three ideas: an `estimators.Estimator` is how a loss is computed from its draws, as a function of a
problem. A `faults.Fault` makes wrong estimators of a right one. A `candidates.Candidate` is an
estimator, right or wrong, with its exact means on the problem at hand and the verdict on it.

=============== ===================================================================
file            contents
=============== ===================================================================
`check`         `check_loss`: the calls, the tests, and the candidates that these allow
`problems`      small problems on which candidates differ most, and extreme ones
`calls`         calls of the user's loss and proposal, and whose error it is if one fails
`observe`       what the loss returns on a problem: checked, its means, and how far rounding may
                move them
`estimators`    `Estimator`, the random sum S of a loss, and the estimators that are known
`faults`        the usual mistakes: a new one is an entry of `FAULTS`
`candidates`    `Candidate`: an estimator, right or wrong, with its exact means
`known`         candidates that are known before any call: with no mistake, with one and with two
`fitted`        candidates for what was observed: with a number that is fitted, and others like it
`families`      the families of candidates, from simple ones on: a new one is an entry of `FAMILIES`
`batches`       candidates whose negatives are the labels of the batch
`exact`         the exact mean of a loss and of its gradient, by the integral of
                `samplesoft.bias.plain`
`spread`        how widely single calls spread, and the moments of a loss
`report`        the result, as a table, JSON, a page and a plot
=============== ===================================================================
"""
