"""Sampled losses in plain NumPy, right and with each of the usual mistakes, for `check_loss`."""

import numpy as np


def log_uniform(n):
    weights = np.log1p(1.0 / np.arange(1.0, n + 1.0))
    return weights / weights.sum()


LABEL_EXCLUDED = {"negatives", "jackknife", "negative_sampling"}
LABEL_CORRECTED = {"candidate", "candidate_masked", "nce", "nce_masked"}
HITS_KEPT = {"candidate", "importance", "nce", "negative_sampling_kept"}
LOGISTIC = {"nce", "nce_masked", "negative_sampling", "negative_sampling_masked"}
LOGISTIC |= {"negative_sampling_kept"}
SMOOTHING = 0.1


def make(scheme, fault=None, variant=0, shared=False, dtype=float, tau=1.0):
    """Return a loss with a gradient that draws by `log_uniform` and makes one mistake."""

    def loss(class_embeddings, h, labels, num_sampled, seed, biases=0.0):
        rng = np.random.default_rng(seed)
        class_embeddings, h = class_embeddings.astype(dtype), h.astype(dtype)
        q, size = log_uniform(len(class_embeddings)), len(labels)
        scores = tau * h @ class_embeddings.T + biases
        draws = num_sampled
        if fault == "m_off_by_one" and variant >= 2:
            draws += [1, -1][variant - 2]
        one_set = rng.choice(len(q), draws, p=q)
        slopes, rows = np.zeros(scores.shape, dtype), np.arange(size)
        own_draws = 0 if shared else draws
        ids, law, expected = drawn(scheme, q, labels, own_draws, num_sampled, rng)
        if shared:
            ids = np.tile(one_set, (size, 1))
        expected = miscounted(fault, variant, scheme, expected, law, q, num_sampled, labels)
        corrections = miscorrected(fault, variant, scheme, expected, law, num_sampled)
        if fault == "temperature_after":
            corrections = tau * corrections
        own = scores[rows, labels]
        if scheme in LABEL_CORRECTED and fault != "label_uncorrected":
            twice = 2.0 if fault == "label_corrected_twice" else 1.0
            own = own - corrections[rows, labels] * twice
        x = (scores - corrections)[rows[:, None], np.maximum(ids, 0)]
        x = np.where(ids < 0, -np.inf, x)
        of_rows = labels[(rows + [1, -1, -rows][variant]) % size] if variant < 3 else labels
        hits = ids == (of_rows if fault == "hits_of_other_rows" else labels)[:, None]
        if fault == "hits_of_any_row":
            hits = np.isin(ids, labels)
        if fault == "one_hit_left_out":
            first = np.cumsum(hits, axis=1) == 1
            x = np.where(hits & first, -np.inf, x)
        elif fault == "finite_mask":
            x = np.where(hits, x - 2.0 if variant == 0 else -3.0, x)
        elif scheme not in HITS_KEPT and fault != "hits_kept":
            x = np.where(hits, -np.inf, x)
        if fault == "counted_twice":
            ids, x = np.hstack([ids, ids[:, :1]]), np.hstack([x, x[:, :1]])
        if fault == "duplicates_dropped":
            x = np.where(np.tril(ids[:, :, None] == ids[:, None], -1).any(axis=2), -np.inf, x)
        losses, d_own, d_x = terms(
            scheme, own, x, {"label_twice": 2, "label_left_out": 0}.get(fault, 1)
        )
        if fault == "label_bias_twice":
            losses = losses - (variant + 1) * biases[labels]
        if fault == "detached_negatives":
            d_x = np.zeros_like(d_x)
        if fault == "finite_mask" and variant == 1:  # a constant has no derivative
            d_x = np.where(hits, 0.0, d_x)
        if fault in ("label_smoothing", "smoothed_hits"):
            masked = hits & (scheme not in HITS_KEPT)
            shown = np.where(masked, -1e4, x)
            every = x.shape[1] + 1
            losses = losses + SMOOTHING * (own - (own + shown.sum(axis=1)) / every)
            d_own = d_own + SMOOTHING - SMOOTHING / every
            d_x = d_x - np.where(masked & (variant == 0), 0.0, SMOOTHING / every)
        slopes[rows, labels] += d_own
        np.add.at(slopes, (rows[:, None], np.maximum(ids, 0)), d_x)
        dh = tau * slopes @ class_embeddings
        if fault == "divided_by_batch":
            losses = losses / size if variant > 0 else losses
            dh = dh / size if variant < 2 else dh
        return losses, dh

    return loss


def drawn(scheme, q, labels, draws, m, rng):
    """Return draws (B, k), -1 for none; their law (B, n), and expected counts of all classes."""
    rows, law = np.arange(len(labels)), np.tile(q, (len(labels), 1))
    if scheme in LABEL_EXCLUDED or scheme in ("reject", "poisson"):
        law[rows, labels] = 0.0
        law /= law.sum(axis=1, keepdims=True)
    if scheme == "poisson":
        chances = -np.expm1(m * np.log1p(-q))
        ids = np.where(rng.random(law.shape) < chances, np.arange(len(q)), -1)
        return np.where(ids == labels[:, None], -1, ids), law, np.tile(chances, (len(rows), 1))
    uniforms = rng.random((len(rows), draws))
    if scheme == "reject" or scheme not in LABEL_EXCLUDED:
        ids = np.cumsum(q)[:-1].searchsorted(uniforms, side="right")
    else:
        ends = np.cumsum(law, axis=1)[:, :-1]
        ids = (uniforms[:, :, None] >= ends[:, None, :]).sum(axis=2)
    if scheme == "reject":
        kept = (ids != labels[:, None]).sum(axis=1, keepdims=True)
        return ids, law, kept * np.where(law > 0.0, law, 1.0)
    return ids, law, m * law


def miscounted(fault, variant, scheme, expected, law, q, m, labels):
    """Return expected counts (B, n) that are those of a mistake."""
    if fault == "q_not_conditioned":
        return np.tile(m * q, (len(expected), 1))
    if fault == "q_shifted":
        counts = expected / np.where(law > 0.0, law, np.inf)
        shown = counts.max(axis=1, keepdims=True) * q if scheme != "poisson" else expected
        return np.roll(shown, [1, -1][variant], axis=1)
    if fault == "q_renormalised":
        return expected / (1.0 - q[labels])[:, None]
    if fault == "inclusion_of_repeated":
        return np.tile(-np.expm1(m * np.log1p(-q)), (len(expected), 1))
    if fault in ("q_clipped", "epsilon_in_log"):
        return m * (np.maximum(q, 0.03) if fault == "q_clipped" else q + 0.03) * expected / expected
    if fault == "m_off_by_one" and variant < 2:
        return expected * (m + [1, -1][variant]) / m
    return expected


def miscorrected(fault, variant, scheme, expected, law, m):
    """Return what is taken off the logits (B, n)."""
    number, positive = 1.0 if scheme == "poisson" else m, np.where(law > 0.0, law, 1.0)
    with np.errstate(divide="ignore"):
        logs = np.log(expected)
        if fault == "log_q_added" and scheme == "reject":
            return logs - 2.0 * np.log(positive)
        if fault == "log_q_added":
            parts = np.log(expected / number)
            signs = [(-1.0, -1.0), (-1.0, 0.0), (-1.0, 1.0)][variant]
            return signs[0] * parts + signs[1] * np.log(number)
        if fault == "uncorrected" or scheme.startswith("negative_sampling"):
            return np.zeros_like(expected)
        if fault == "log_m_left_out":
            return np.log(law)
        if fault == "logarithm_missed" and scheme == "reject":
            return law
        if fault == "logarithm_missed":
            return [expected, expected / number][variant]
        if fault == "other_logarithm" and scheme == "reject":
            return logs - np.log(positive) * (1.0 - 1.0 / np.log([10.0, 2.0][variant]))
        if fault == "other_logarithm":
            return [np.log10, np.log2][variant](expected)
    return logs


def terms(scheme, own, x, label_weight):
    """Return losses (B,) of labels' logits and those (B, k) of draws, and derivatives."""
    with np.errstate(over="ignore", divide="ignore"):
        if scheme in LOGISTIC:
            values = np.logaddexp(0.0, -own) + np.logaddexp(0.0, x).sum(axis=1)
            return values, -1.0 / (1.0 + np.exp(own)), 1.0 / (1.0 + np.exp(-x))
        if scheme == "importance":
            total = np.logaddexp.reduce(x, axis=1)
            return total - own, np.full_like(own, -1.0), np.exp(x - total[:, None])
    values, d_own, d_x = softmax_kernel(own, x, label_weight)
    if scheme.startswith("jackknife"):
        m = x.shape[1]
        values, d_own, d_x = m * values, m * d_own, m * d_x
        for left_out in range(m):
            rest = np.delete(x, left_out, axis=1) + np.log(m / (m - 1))
            value, d, d_rest = softmax_kernel(own, rest)
            share = (m - 1) / m
            values, d_own = values - share * value, d_own - share * d
            d_x[:, np.arange(m) != left_out] -= share * d_rest
    return values, d_own, d_x


def softmax_kernel(own, x, label_weight=1):
    with np.errstate(divide="ignore"):
        label = own + np.log(label_weight)
    total = np.logaddexp(label, np.logaddexp.reduce(x, axis=1, initial=-np.inf))
    return total - own, np.exp(label - total) - 1.0, np.exp(x - total[:, None])
