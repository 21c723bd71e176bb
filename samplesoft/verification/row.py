"""A row of a verification report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class VerificationRow:
    """One sampler, one number of draws, one block of parameters.

    Norms are averaged over the examples, and counts are summed. A field is None if the block or
    the scheme does not have that figure, or if it is not finite.

    Attributes
    ----------
    sampler, num_sampled, wrt : str, int, str
        What the row is about; `wrt` is ``logits``, ``h`` or ``class_embeddings``.
    num_coordinates : int
        Coordinates of the block, over all examples.
    max_bias, l1_bias : float
        Largest absolute value and sum of absolute values of the exact bias, in units of the
        gradient.
    resolved : bool
        Whether `l1_bias` is larger than its numerical error, in every example; if not, it is 0 as
        far as float64 can tell.
    monte_carlo_max, monte_carlo_l1 : float or None
        Unbiased estimates of both norms, for ``logits`` only.
    monte_carlo_max_stderr, monte_carlo_l1_stderr : float or None
        Their standard errors.
    max_abs_z : float or None
        Largest ``|Monte Carlo - exact|`` in standard errors, or None if nothing was tested. For
        ``class_embeddings`` that of the logits, as its bias is a product with theirs.
    num_tested, num_untested : int
        Statistics that were tested, and those that were not as they have too few effective draws.
    p_value : float or None
        p-value of `max_abs_z` by Bonferroni, for the `num_tested` of this row.
    printed_max : float or None
        Largest absolute value that the printed LB and UB allow for a coordinate.
    outside_printed, outside_printed_limit : int or None
        Coordinates outside the printed bounds at this m, and in the limit of many draws.
    outside_with_sign : int or None
        Those outside at this m in which g >= 0, which the printed upper bound asks for.
    sign_condition : int or None
        Number of examples with g >= 0 in every coordinate.
    corrected_max : float or None
        The bound of the corrected theorem on every coordinate, which knows M but not g.
    corrected_outside : int or None
        Number of coordinates outside its bounds, which know g.
    finite_hold : bool or None
        Whether all coordinates are within the finite-m bounds.
    finite_outside : int or None
        Number of coordinates that are not.
    draws_per_moment : float or None
        m / rho with ``rho = E[r^2] / Z^2``, in the mean: a large bias needs a small one.
    finite_tightness : float or None
        Sum of the widths of the finite-m intervals divided by the L1 norm of the bias.
    finite_min_max, finite_max_max : float or None
        Bounds on `max_bias` that follow from the finite-m bounds.
    finite_max_l1 : float or None
        The bound on `l1_bias` that follows from them.
    leading_ratio, agapiou_ratio : float or None
        L1 norm of the leading term of the bias, and the bound ``12 rho / m`` on that of the bias,
        of `self_normalized_terms`, divided by the L1 norm of the bias; for ``logits`` only.
    effective_sample_size : float or None
        Its m / rho with ``rho = 1 + Var[r] / Z^2``, in draws; for ``logits`` only.
    loss_bias : float
        Exact E[L'] - L in nats, averaged over the examples.
    loss_z : float or None
        Largest ``|z|`` of the loss.
    squared_bias, variance, mse : float or None
        Exact moments of the gradient in h, summed over coordinates, averaged over examples.
    draws_needed : int or None
        The least m whose `l1_bias` in the logits is at most 0.01, for this sampler; None where no
        number of draws is enough, or it is not known that more draws never have a larger bias.
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
    draws_needed: int | None = None
