"""What a sampled loss estimates: any implementation, held against the exact means of all schemes.

=============== ===================================================================
file            what is in it
=============== ===================================================================
`check`         `check_loss`: the calls, and which hypotheses their means allow
`observe`       small problems on which hypotheses differ most, and extreme ones; calls of the loss
                on them, checked, and the means of what it returned
`faults`        how draws are meant to become a loss, and the usual mistakes: a new one is an
                entry of `FAULTS`
`recipe`        a scheme with a mistake: law of the draws, their weights, the label's
`exact`         from one transform: the exact mean of the loss and of its gradient under a recipe,
                its moments, and how widely single calls spread
`hypotheses`    all schemes with no mistake, one and two; losses of the batch; mistakes with an
                unknown number or proposal
`report`        the result, as a table, JSON, a page and a plot
=============== ===================================================================
"""
