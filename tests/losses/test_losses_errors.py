"""What every registered loss refuses, and what it says then."""

import numpy as np
import pytest
from oracles.loss_cases import NAMES, SAMPLED, fitted, make_case, needs_count
from scipy import sparse

from samplesoft.losses.registry import LOSSES, make_loss
from samplesoft.samplers import UniformSampler
from samplesoft.samplers.base import Draw


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def forward(loss, case, **changes):
    arguments = {
        "h": case.h,
        "class_embeddings": case.class_embeddings,
        "labels": case.labels,
        "draw": fitted(loss, case.draw, len(case.class_embeddings), case.labels),
        "label_log_count": case.label_log_count if needs_count(loss) else None,
    } | changes
    return loss.forward(**arguments)


REFUSED = [
    ({"h": np.empty((0, 3))}, "`h` must"),
    ({"h": np.ones((3, 2))}, "`h` must have 3 columns"),
    ({"h": np.array([[1.0] * 3, [1.0, np.nan, 1.0], [1.0] * 3])}, r"`h`.*nan at index \[1, 1\]"),
    ({"labels": np.array([0, 1])}, "`labels` must have shape"),
    ({"labels": np.array([0, 1, 6])}, "`labels` must lie in 0..5"),
    ({"labels": np.array([0, 1, -1])}, "`labels` must lie in 0..5"),
    ({"labels": np.array([0.0, 1.0, 2.0])}, "`labels` must hold integers"),
    ({"labels": sparse.csr_array((3, 6))}, "`labels` must have a label in each row"),
    ({"biases": np.ones(5)}, r"`biases` must have shape \(6,\)"),
    ({"weights": np.ones(2)}, r"`weights` must have shape \(3,\)"),
    ({"weights": np.zeros(3)}, "`weights` must have a finite sum greater than 0"),
]


def test_what_every_loss_refuses(name):
    loss = make_loss(name)
    for changes, message in REFUSED:
        with pytest.raises((TypeError, ValueError), match=message):
            forward(loss, make_case(loss), **changes)


@pytest.mark.thorough(but=3)
def test_class_vectors_that_are_not_finite_are_named(name):
    loss = make_loss(name)
    for shared, bad in ((False, np.nan), (True, np.inf)):
        case = make_case(loss, shared=shared)
        row = case.labels[1]
        case.class_embeddings[row] = bad
        with (
            np.errstate(invalid="ignore"),
            pytest.raises(ValueError, match=f"`class_embeddings` must be finite.*{row}"),
        ):
            case.forward(loss)


@pytest.mark.parametrize("name", SAMPLED)
def test_scores_beyond_the_range_of_float32(name):
    loss = make_loss(name)
    for row in (make_case(loss).labels[0], make_case(loss).ids[0, 1]):
        case = make_case(loss)
        case.h[0], case.class_embeddings[row] = 1e30, -1e30
        with (
            np.errstate(over="ignore", invalid="ignore"),
            pytest.raises(ValueError, match="range of float32"),
        ):
            case.astype(np.float32).forward(loss)


@pytest.mark.parametrize("name", SAMPLED)
def test_draws_that_are_refused(name):
    loss = make_loss(name)
    for draw, message in [
        (None, "`draw` must be a Draw, got NoneType"),
        (np.ones((3, 4), int), "`draw` must be a Draw, got ndarray"),
        (Draw(np.full((2, 4), 5), np.zeros((2, 4))), r"`draw` must hold ids of shape \(3, m\)"),
        (Draw(np.full((3, 0), 5), np.zeros((3, 0))), "`draw` must hold"),
        (Draw(np.full((3, 4), 5), np.zeros((1, 4))), "`draw` must hold log-probabilities"),
        (Draw(np.full((3, 4), 6), np.zeros((3, 4))), "`draw` must hold classes in 0..5"),
        (Draw(np.full((3, 4), -1), np.zeros((3, 4))), "`draw` must hold classes in 0..5"),
        (Draw(np.full((3, 4), 5), np.full((3, 4), -np.inf)), "finite log-prob.*class 5"),
        (Draw(np.full((3, 4), 5), np.full((3, 4), np.nan)), "finite log-prob.*class 5"),
    ]:
        with (
            np.errstate(divide="ignore"),
            pytest.raises((TypeError, ValueError), match=message),
        ):
            forward(loss, make_case(loss), draw=draw)


@pytest.mark.parametrize("name", [x for x in SAMPLED if LOSSES[x].excludes_label])
def test_a_draw_of_the_label_where_it_must_not_be(name):
    loss = make_loss(name)
    case = make_case(loss, batch=400, n=30, m=200)  # more than a thread takes at once
    label = case.labels[390]
    case.ids[390, 1], case.q[390, label] = label, 0.1
    with pytest.raises(ValueError, match=f"got class {label} for pair 390;.*exclude=labels"):
        case.forward(loss)


@pytest.mark.parametrize("name", [x for x in SAMPLED if LOSSES[x].needs_label_count])
def test_counts_of_labels_that_are_refused(name):
    loss = make_loss(name)
    case = make_case(loss)
    with pytest.raises(TypeError, match="`label_log_count` must be given"):
        forward(loss, case, label_log_count=None)
    with pytest.raises(ValueError, match=r"`label_log_count` must have shape \(3,\), got \(2,\)"):
        forward(loss, case, label_log_count=np.zeros(2))
    with pytest.raises(ValueError, match="`label_log_count` must be finite, got nan.*pair 1"):
        forward(loss, case, label_log_count=np.array([0.0, np.nan, 0.0]))
    absent = np.array([0.0, 0.0, -np.inf])
    if loss.properties.divides_by_accepted:  # where no draw can be of the label, none is rejected
        case.ids[2] = 5
        assert np.isfinite(forward(loss, case, label_log_count=absent)[0])
    else:
        with pytest.raises(ValueError, match="got -inf for label .* of pair 2"):
            forward(loss, case, label_log_count=absent)


def test_options_that_are_refused(name):
    wrong = {"tau": 0.0}, {"tau": "1"}, {"reduction": "max"}, {"scheme": "poisson"}, {"colour": 1}
    for option in wrong:
        with pytest.raises((TypeError, ValueError)):
            make_loss(name, **option)


def test_unknown_names():
    with pytest.raises(ValueError, match="`name` must be one of full, .*; got 'hinge'"):
        make_loss("hinge")


def test_a_vector_without_a_finite_norm_cannot_be_normalised(name):
    loss = make_loss(name, normalize=True)
    case = make_case(loss)
    case.class_embeddings[case.labels[0], 0] = np.inf
    with pytest.raises(ValueError, match=f"`class_embeddings`.*norm.*row {case.labels[0]}"):
        case.forward(loss)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("biases", [None, np.full(20, 3.4e38, np.float32)])
def test_overflow_is_an_error_and_no_warning(shared, biases):
    size = (1e20, 1e21) if biases is None else (1e18, 1e19)
    h, rows = np.full((5, 4), size[0], np.float32), np.full((20, 4), size[1], np.float32)
    draw = UniformSampler(20).sample(h, 6, shared=shared, rng=0)
    with pytest.raises(ValueError, match="must be finite"):
        make_loss("sampled-masked").forward(h, rows, np.arange(5), draw, biases=biases)


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize(
    ("other", "said"),
    [("2", "int and str"), (True, "bool and int"), (2.0, "float and int"), (None, "NoneType and")],
)
def test_labels_of_mixed_kinds_are_refused_in_words(other, said, kind):
    """NumPy makes text of numbers and text, and numbers of True and False."""
    loss, labels = make_loss("full"), kind([0, other])
    with pytest.raises(TypeError, match=f"must hold integers.* a {kind.__name__} of {said}"):
        loss.forward(np.eye(3)[:2], np.eye(3), labels)
    loss.forward(np.eye(3)[:2], np.eye(3), kind([0, np.int32(2)]))
