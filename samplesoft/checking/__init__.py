"""What a sampled loss estimates: any implementation, held against the exact means of all schemes.

=============== ===================================================================
file            what is in it
=============== ===================================================================
`check`         `check_loss`
`problem`       the small problems on which hypotheses differ most
`observe`       calls of the loss, checked, and the means of what it returned
`faults`        how draws are meant to become a loss, and the usual mistakes: a new one is an
                entry of `FAULTS`
`recipe`        a scheme with a mistake: law of the draws, their weights, the label's
`expectation`   the exact mean of the loss and of its gradient under a recipe
`spread`        how widely single calls spread under a recipe, and exact moments where it is right
`hypotheses`    all schemes with all mistakes, and those with an unknown number or proposal
`distinct`      draws without replacement, whose means are simulated
`batch`         losses whose negatives are the labels of the batch, alone or with draws beside
`verdict`       which hypotheses the observed means allow
`report`        the result, as a table, JSON, a page and a plot
=============== ===================================================================
"""
