"""What losses declare is what they do."""

import numpy as np
import pytest
from oracles.loss_cases import NAMES, SAMPLED, make_case, needs_count
from oracles.naive_losses import ORACLES

from samplesoft.losses import LOSSES, make_loss
from samplesoft.samplers.base import Draw


@pytest.fixture(params=NAMES)
def spec(request):
    return LOSSES[request.param]


def test_every_loss_has_an_oracle():
    assert set(ORACLES) == set(NAMES)


def test_a_loss_draws_or_refuses_draws(spec):
    loss = spec.make(**spec.fixed)
    case = make_case(loss)
    if spec.draws:
        assert (loss.excludes_label, loss.needs_label_count, loss.bias_scheme) == (
            spec.excludes_label,
            spec.needs_label_count,
            spec.bias_scheme,
        )
        case.ids = None
    else:
        case.ids = np.zeros((3, 2), int)
    with pytest.raises(TypeError, match="`draw` must be"):
        case.forward(loss)


def test_either_an_exact_bias_or_a_reason(spec):
    assert (spec.bias_scheme is None) == bool(spec.why_no_bias)


@pytest.mark.parametrize("name", [name for name in NAMES if LOSSES[name].masked])
def test_the_masked_loss_is_the_same_on_draws_without_the_label(name):
    masked = LOSSES[name].masked
    assert LOSSES[name].excludes_label and LOSSES[masked].shares_draws
    case = make_case(make_loss(name))
    assert case.forward(make_loss(name))[0] == case.forward(make_loss(masked))[0]


@pytest.mark.parametrize("name", SAMPLED)
def test_distinct_draws_are_taken_or_refused(name):
    loss = make_loss(name)
    case = make_case(loss, m=max(2, LOSSES[name].min_draws))
    log_q = np.full(case.ids.shape, -1.0)
    draw = Draw(case.ids, log_q, log_inclusion=log_q + 0.5)
    options = {"label_log_count": np.full(3, -0.5)} if needs_count(loss) else {}

    def forward():
        return loss.forward(case.h, case.class_embeddings, case.labels, draw, **options)

    if LOSSES[name].distinct:
        forward()
    else:
        with pytest.raises(ValueError, match="with replacement"):
            forward()


@pytest.mark.parametrize("name", NAMES)
def test_a_device_is_taken_or_refused(name):
    if LOSSES[name].cuda:
        try:
            assert make_loss(name, device="cuda").device == "cuda"
        except RuntimeError as error:  # here is none
            assert "no NVIDIA GPU" in str(error)
    else:
        with pytest.raises(ValueError, match=f"`device` must be 'cpu' for '{name}'"):
            make_loss(name, device="cuda")
