"""Slow oracle for classes that are in S for certain: every sequence of draws, as it stands."""

from itertools import product

import numpy as np
from mpmath import mp, mpf

from oracles.naive import JACKKNIFED, combination, softmax


def enumerate_certain(logits, label, q, m, scheme, certain):
    """E[p'] (n,), E[loss] - full loss and E[p' p'^T] (n, n), as mpf; n**m outcomes."""
    if scheme in JACKKNIFED:
        with mp.workdps(40):
            parts = [
                (weight, enumerate_certain(logits, label, q, draws, JACKKNIFED[scheme], certain))
                for draws, weight in combination(m)
            ]
            return *(sum(weight * part[i] for weight, part in parts) for i in range(2)), None
    with mp.workdps(40):
        e, n = softmax(logits), len(logits)
        sure = {label, *certain}
        tail = [mpf(0) if j in sure else mpf(float(q[j])) for j in range(n)]
        drawn = tail if scheme == "negatives" else [mpf(float(x)) for x in q]
        if not any(drawn):  # nothing is left to draw
            p = np.array(e, dtype=object)
            return p, mpf(0), np.outer(p, p)
        drawn = [x / mp.fsum(drawn) for x in drawn]
        given_kept = [x / mp.fsum(tail) if x else x for x in tail]
        first, loss, second = mpf(0), mpf(0), mpf(0)
        for ids in product(range(n), repeat=m):
            chance = mp.fprod(drawn[j] for j in ids)
            kept = [j for j in ids if j not in sure]
            mass = [e[j] if j in sure else mpf(0) for j in range(n)]
            if not chance:
                continue
            for j in kept:
                count = len(kept) * given_kept[j] if scheme == "reject" else m * drawn[j]
                mass[j] += e[j] / count
            total = mp.fsum(mass)
            p = np.array([x / total for x in mass], dtype=object)
            first, second = first + p * chance, second + np.outer(p, p) * chance
            loss += chance * mp.log(total)
        return first, loss, second


def certain_bias(logits, label, q, m, scheme, certain):
    """E[p'] - p (n,) and the loss bias, as float64."""
    expected, loss, _ = enumerate_certain(logits, label, q, m, scheme, certain)
    with mp.workdps(40):
        return (expected - np.array(softmax(logits), dtype=object)).astype(float), float(loss)
