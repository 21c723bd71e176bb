"""What a sampled loss estimates: any implementation, held against the exact means of all schemes.

=============== ===================================================================
file            what is in it
=============== ===================================================================
`check`         `check_loss`
`problem`       the small problems on which hypotheses differ most
`observe`       calls of the loss, checked, and the means of what it returned
`calls`         one call of the loss, in words where it fails
`drawing`       draws for losses that make none
`methods`       the schemes: how draws are meant to become a loss
`faults`        the usual mistakes; a new one is an entry of `FAULTS`
`recipe`        a scheme with a mistake: law of the draws, their weights, the label's
`expectation`   the exact mean of the loss and of its gradient under a recipe
`spread`        how widely single calls spread under a recipe, linearised
`moments`       exact moments of single losses under a scheme without a mistake
`hypotheses`    all schemes with all mistakes
`fits`          mistakes with an unknown number or proposal, looked for where nothing else fits
`distinct`      draws without replacement, whose means are simulated
`in_batch`      losses whose negatives are the labels of the batch
`mixed`         losses with these negatives and draws beside
`verdict`       which hypotheses the observed means allow
`report`        the result, as a table, JSON, a page and a plot
=============== ===================================================================
"""
