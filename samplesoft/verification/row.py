"""`VerificationRow`: one row of a verification report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class VerificationRow:
    """Results for one sampler, one number of draws and one block of parameters.

    Norms are averaged over the examples, and counts are summed. A field is None if it is not
    defined for the block or the scheme, or if it is not finite.

    Attributes
    ----------
    sampler, num_sampled, wrt : str, int, str
        The keys of the row; `wrt` is ``logits``, ``h`` or ``class_embeddings``.
    num_coordinates : int
        Number of coordinates of the block, over all examples.
    max_bias, l1_bias : float
        Largest absolute value and sum of absolute values of the exact bias, in units of the
        gradient.
    resolved : bool
        Whether `l1_bias` is larger than its numerical error in every example; if not, it may be 0.
    monte_carlo_max, monte_carlo_l1 : float or None
        Unbiased estimates of `max_bias` and `l1_bias`, for ``logits`` only.
    monte_carlo_max_stderr, monte_carlo_l1_stderr : float or None
        Standard errors of `monte_carlo_max` and `monte_carlo_l1`.
    max_abs_z : float or None
        Largest ``|Monte Carlo - exact|`` in standard errors, or None if nothing was tested. For
        ``class_embeddings`` it is the value of the logits, whose bias times h is their bias.
    num_tested, num_untested : int
        Numbers of statistics that were tested, and that have too few effective draws to be tested.
    p_value : float or None
        p-value of `max_abs_z`, with Bonferroni's correction for `num_tested`.
    printed_max : float or None
        Largest absolute value that the printed LB and UB allow for a coordinate.
    outside_printed, outside_printed_limit : int or None
        Numbers of coordinates outside the printed bounds at this m, and in the limit of many draws.
    outside_with_sign : int or None
        Number of coordinates outside the printed bounds at this m that have g >= 0, which is a
        condition of the printed upper bound.
    sign_condition : int or None
        Number of examples with g >= 0 in every coordinate.
    corrected_max : float or None
        The bound of the corrected theorem on every coordinate, in its form without g.
    corrected_outside : int or None
        Number of coordinates outside the bounds of the corrected theorem, in its form with g.
    finite_hold : bool or None
        Whether all coordinates are within the finite-m bounds.
    finite_outside : int or None
        Number of coordinates outside the finite-m bounds.
    draws_per_moment : float or None
        m / rho with ``rho = E[r^2] / Z^2``, averaged over the examples. The bias can be large only
        if this ratio is small.
    finite_tightness : float or None
        Sum of the widths of the finite-m intervals divided by the L1 norm of the bias.
    finite_min_max, finite_max_max : float or None
        Bounds on `max_bias` that follow from the finite-m bounds.
    finite_max_l1 : float or None
        Bound on `l1_bias` that follows from the finite-m bounds.
    leading_ratio, agapiou_ratio : float or None
        L1 norm of the leading term of the bias, and the bound ``12 rho / m``, both from
        `self_normalized_terms`, divided by the L1 norm of the bias; for ``logits`` only.
    effective_sample_size : float or None
        m / rho with ``rho = 1 + Var[r] / Z^2``, in draws; for ``logits`` only.
    loss_bias : float
        Exact E[L'] - L in nats, averaged over the examples.
    loss_z : float or None
        Largest ``|z|`` of the loss.
    squared_bias, variance, mse : float or None
        Exact moments of the gradient in h, summed over coordinates, averaged over examples.
    certified_error : float or None
        Proved bound on the error of the exact bias, in the L1 norm, the largest of the examples;
        for ``logits`` only, as the next four.
    certified_finite_inside, certified_finite_outside : int or None
        Numbers of coordinates that are proved to be within the finite-m bounds, and outside.
    certified_printed_inside, certified_printed_outside : int or None
        Numbers of coordinates that are proved to be within the printed bounds, and outside.
    draws_needed : int or None
        The smallest m of this sampler whose `l1_bias` in the logits is at most 0.01; None if no m
        is enough, or if the bias of the scheme is not known to decrease with m.
    """

    sampler: str
    num_sampled: int
    wrt: str
    num_coordinates: int
    max_bias: float
    l1_bias: float
    resolved: bool
    monte_carlo_max: float | None = None
    monte_carlo_max_stderr: float | None = None
    monte_carlo_l1: float | None = None
    monte_carlo_l1_stderr: float | None = None
    max_abs_z: float | None = None
    num_tested: int
    num_untested: int
    p_value: float | None = None
    printed_max: float | None = None
    outside_printed: int | None = None
    outside_printed_limit: int | None = None
    outside_with_sign: int | None = None
    sign_condition: int | None = None
    corrected_max: float | None = None
    corrected_outside: int | None = None
    finite_hold: bool | None = None
    finite_outside: int | None = None
    draws_per_moment: float | None = None
    finite_tightness: float | None = None
    finite_min_max: float | None = None
    finite_max_max: float | None = None
    finite_max_l1: float | None = None
    leading_ratio: float | None = None
    agapiou_ratio: float | None = None
    effective_sample_size: float | None = None
    loss_bias: float
    loss_z: float | None = None
    squared_bias: float | None = None
    variance: float | None = None
    mse: float | None = None
    certified_error: float | None = None
    certified_finite_inside: int | None = None
    certified_finite_outside: int | None = None
    certified_printed_inside: int | None = None
    certified_printed_outside: int | None = None
    draws_needed: int | None = None
