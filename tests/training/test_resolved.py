"""What a user asks of a fit, and what is done."""

from math import ceil, log

import pytest

from samplesoft.models import LinearSoftmaxSettings
from samplesoft.training.resolved import FitSettings, calibration_epoch, resolve

FIELDS = {"loss": "sampled-masked", "sampler": "unigram", "embedding_dim": 8}


def resolved(
    num_classes=5000,
    num_examples=1000,
    *,
    several_labels=False,
    row_norm=1.0,
    chooses_epochs=False,
    **given,
):
    names = FitSettings.__dataclass_fields__
    fields = {**FIELDS, **{name: value for name, value in given.items() if name not in names}}
    asked = {"batch_size": 10, **{name: given[name] for name in given if name in names}}
    return resolve(
        FitSettings(model=fields, **asked),
        num_classes,
        num_examples,
        several_labels=several_labels,
        row_norm=row_norm,
        chooses_epochs=chooses_epochs,
    )


@pytest.mark.parametrize(
    ("num_classes", "given", "found"),
    [
        (1, {}, ("full", None, None, False)),
        (100, {}, ("full", None, None, False)),
        (100, {"num_sampled": 7}, ("sampled-masked", "unigram", 7, True)),
        (100, {"loss": "nce"}, ("nce", "unigram", 300, True)),
        (1, {"loss": "nce"}, ("full", None, None, False)),
        (1000, {}, ("full", None, None, False)),
        (1001, {}, ("sampled-masked", "unigram", 300, True)),
        (1500, {"several_labels": True}, ("full", None, None, False)),
        (1501, {"several_labels": True}, ("sampled-masked", "unigram", 1000, True)),
        (101, {"sampler": "clusters"}, ("sampled-masked", "clusters", 100, False)),
        (101, {"loss": "jackknife"}, ("jackknife", "unigram", 100, False)),
        (12_800, {}, ("sampled-masked", "unigram", 400, True)),
        (10**6, {}, ("sampled-masked", "unigram", 1000, True)),
        (6400, {"shared": False}, ("sampled-masked", "unigram", 100, False)),
        (6400, {"sampler": "clusters"}, ("sampled-masked", "clusters", 100, False)),
        (6400, {"loss": "sampled"}, ("sampled", "unigram", 100, False)),
        (6400, {"loss": "sampled", "shared": True}, ("sampled-masked", "unigram", 100, True)),
        (6400, {"loss": "full-logistic"}, ("full-logistic", None, None, False)),
    ],
)
def test_the_model_of_a_number_of_classes(num_classes, given, found):
    model = resolved(num_classes, **given).model
    assert (model.loss, model.sampler, model.num_sampled, model.shared) == found


def test_several_labels_take_the_masked_form_of_a_loss():
    assert resolved(loss="sampled", several_labels=True).model.loss == "sampled-masked"
    assert resolved(loss="sampled").model.loss == "sampled"


def test_the_temperature_grows_with_the_classes_of_unit_vectors():
    assert resolved(50_000).model.tau == 1.5 * log(50_000)
    assert resolved(50_000, normalize=False).model.tau == 1.0
    assert resolved(50_000, embedding_dim=None).model.tau == 1.0
    assert resolved(50_000, tau=7.0).model.tau == 7.0


@pytest.mark.parametrize(
    ("num_examples", "given", "epochs"),
    [
        (1000, {}, 10),
        (100, {}, 30),
        (250, {}, 16),
        (1 << 18, {}, 10),
        (1 << 18, {"chooses_epochs": True}, 30),
        (1 << 18, {"early_stopping": True}, 30),
        (1 << 18, {"embedding_dim": None}, 20),
        (1 << 18, {"epochs": 7}, 7),
    ],
)
def test_epochs_by_the_number_of_examples(num_examples, given, epochs):
    assert resolved(num_examples=num_examples, **given).epochs == epochs


def test_learning_rates_by_what_is_trained():
    assert resolved().learning_rate == 0.1
    assert resolved(embedding_dim=None).learning_rate == 2.0
    assert resolved(embedding_dim=None, row_norm=4.0).learning_rate == 0.5
    assert resolved(learning_rate=0.3, row_norm=4.0).learning_rate == 0.3
    adam = [resolved(optimizer="adam", embedding_dim=dim).learning_rate for dim in (8, None)]
    assert adam == [0.003, 0.2]  # as docs/benchmarks.md has them


@pytest.mark.parametrize("epochs", [1, 2, 5])
@pytest.mark.parametrize("held_back", [0, 7, 25])
def test_steps_are_those_of_all_epochs_and_of_examples_that_join_halfway(epochs, held_back):
    asked = FitSettings(model=FIELDS, batch_size=10, epochs=epochs, warmup=0.3, warmup_steps=2)
    found = resolve(asked, 5000, 95, num_held_back=held_back)
    sizes = (
        [95] * calibration_epoch(epochs)
        + [held_back]
        + [95 + held_back] * (epochs - calibration_epoch(epochs))
    )
    assert found.num_steps == sum(ceil(size / 10) for size in sizes)
    assert found.warmup_steps == 2 + ceil(0.3 * found.num_steps)


def test_a_model_that_is_made_stays_as_it_is():
    """The rules by the number of classes are for fields that a user left out."""
    model = LinearSoftmaxSettings(loss="sampled", sampler="unigram", num_sampled=5)
    found = resolve(FitSettings(model=model, batch_size=10), 1, 100).model
    assert found == model.resolved() and found.tau == 10.0


@pytest.mark.parametrize(
    ("num_classes", "given", "found"),
    [
        (500, {}, "300 shared draws, about 0.76 of the time"),
        (5000, {}, "the full softmax, about 8.3 times the time"),
        (5000, {"num_sampled": 50}, None),
        (5000, {"loss": "full"}, None),
        (5000, {"sampler": "clusters"}, None),
    ],
)
def test_the_runner_up_and_its_cost(num_classes, given, found):
    asked = FitSettings(model={**FIELDS, **given}, batch_size=10)
    settings = resolve(asked, num_classes, 1000, labels_each=1.0, entries_each=16.0)
    assert settings.runner_up == found
    assert (f"runner-up: {found}" in str(settings)) == (found is not None)
    assert resolve(asked, num_classes, 1000).runner_up is None  # without the example's size


@pytest.mark.parametrize(("num_classes", "dim"), [(10, 256), (2000, 256), (2001, 128)])
def test_vectors_are_longer_where_classes_are_few(num_classes, dim):
    assert resolved(num_classes, embedding_dim="auto").model.embedding_dim == dim
    assert resolved(num_classes).model.embedding_dim == FIELDS["embedding_dim"]
