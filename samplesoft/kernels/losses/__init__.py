"""Logits, losses and gradients of sampled and full softmax; read in this order.

- `candidate_scores`: scores of the label and the drawn classes, and the way back.
- `candidate_logits`: scores corrected for how the classes were drawn.
- `logit_rows`: the weights of a row of logits.
- `softmax_terms`, `logistic_terms`, `jackknife_terms`: a loss and its derivatives from logits.
- `multilevel_terms`: the multilevel estimate, from blocks, halves and all of the draws.
- `coupled_terms`: two Markov chains on sets of draws.
- `br_snis_terms`: a Markov chain through the draws.
- `label_draws`: with several labels an example, which draws are among them.
- `merged_draws`: what the pairs of an example share of its draws, computed once.
- `jackknife_examples`: the jackknife of all pairs of an example from moments of its draws.
- `full_softmax`: sums over all classes, a block of them at a time.
- ``sampled_loss_cuda``: sampled softmax on a GPU, from scores to gradients.
"""
