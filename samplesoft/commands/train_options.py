"""Options of ``samplesoft train xc`` and ``items``, and the task that they make."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samplesoft._temperature import TAU_OF_OTHER_VECTORS, TAU_OF_UNIT_VECTORS
from samplesoft.commands.options import (
    RANDOM_FEATURES,
    Options,
    add_options,
    draw_count,
    flag,
    given,
    positive_float,
    positive_int,
    rate,
    say,
)
from samplesoft.data import load_interactions, load_xml_repository
from samplesoft.data.interactions import padded
from samplesoft.losses.base import LABEL_REDUCTIONS
from samplesoft.losses.registry import LOSSES
from samplesoft.models.optimizers import OPTIMIZERS
from samplesoft.samplers.registry import SAMPLERS
from samplesoft.training.retrieval import RetrievalSettings, RetrievalTask
from samplesoft.training.settings import Settings
from samplesoft.tuning.pilot import AUTO, is_auto

EPOCHS = 20
RATES = {"adagrad": 0.1, "adam": 0.01}  # others must be given
RATES_OF_INPUTS = {"adagrad": 2.0}  # without an embedding
SEVERAL_LABELS = [name for name, spec in LOSSES.items() if spec.several_labels]
# options of draws, which a loss that draws nothing does not have
OF_DRAWS = ("sampler", "num_sampled", "num_certain", "shared", "nu", "num_features", "update_every")


@dataclass(frozen=True)
class Model:
    """In what the two commands differ."""

    help: str
    description: str
    form: str  # of the lines of its files
    headline: str  # the figure of the validation, beside the loss, that is printed for each epoch
    defaults: RetrievalSettings
    # makes the task of the files "train" and perhaps "test", which becomes its attribute `test`
    make_task: Callable[[dict[str, str], RetrievalSettings], RetrievalTask]


def _classification(files: dict[str, str], settings: RetrievalSettings) -> RetrievalTask:
    parts = {name: load_xml_repository(path) for name, path in files.items()}
    train, test = parts["train"], parts.get("test")
    if test is not None:
        for name, of_train, of_test in zip(("features", "labels"), train, test, strict=True):
            if of_train.shape[1] != of_test.shape[1]:
                raise ValueError(
                    f"--test must have the {of_train.shape[1]:,} {name} of --train, got "
                    f"{of_test.shape[1]:,}."
                )
    task = RetrievalTask(train.inputs, train.labels, settings)
    task.test = test
    if task.num_unlabeled:
        say(f"{task.num_unlabeled:,} examples have no label and are left out.")
    return task


def _items(files: dict[str, str], settings: RetrievalSettings) -> RetrievalTask:
    parts = {name: load_interactions(path) for name, path in files.items()}
    shape = tuple(max(matrix.shape[axis] for matrix in parts.values()) for axis in range(2))
    # users and items of either file may be missing from the other
    taken = padded(parts["train"], shape)
    task = RetrievalTask(taken, taken, settings, leave_out=True)
    if "test" in parts:
        task.test = taken, padded(parts["test"], shape)
    return task


MODELS = {
    "xc": Model(
        help="labels for sparse inputs",
        description="Train a linear embedding of sparse inputs and a softmax over very many "
        "labels, of which an example may have several. The files are text files of the extreme "
        "classification repository.",
        form="lines 'l,l f:v f:v' after one 'points features labels'",
        headline="precision_at_1",
        defaults=RetrievalSettings(),
        make_task=_classification,
    ),
    "items": Model(
        help="further items for users, from those that they have taken",
        description="Train a linear embedding of the items that a user has taken and a softmax "
        "over all items, to predict what else the user may take. Items of --train do not appear in "
        "the predictions for their user.",
        form="lines 'user item item ...'",
        headline="recall_at_20",
        defaults=RetrievalSettings(dropout=0.5),
        make_task=_items,
    ),
}


def _draw_count_or_auto(text: str) -> int | str:
    return text if is_auto(text) else draw_count(text)


_SWITCH: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
_NUMBER: dict[str, Any] = {"type": positive_int, "metavar": "N"}
_NAMES: dict[str, Any] = {"metavar": "NAME"}
# `add_options` ends a help that does not name the default with that of the settings
_SOFTMAX: Options = {
    "loss": (f"one of {', '.join(SEVERAL_LABELS)}", {"choices": SEVERAL_LABELS, **_NAMES}),
    "tau": (
        f"inverse temperature (default {TAU_OF_UNIT_VECTORS:g}, with --no-normalize "
        f"{TAU_OF_OTHER_VECTORS:g})",
        {"type": positive_float},
    ),
    "normalize": (
        "divide contexts and class vectors by their norms; the default but for full-logistic",
        _SWITCH,
    ),
    "sampler": (
        f"one of {', '.join(SAMPLERS)} (default {RetrievalSettings.sampler}); or auto: a pilot of "
        "a tenth of the steps, from 100 to 1,000, is trained and thrown away, and on its vectors "
        "the quickest draws of little bias are chosen, or the full softmax. It depends on the "
        "speed of the machine; --resume keeps what was chosen",
        {"choices": (*SAMPLERS, AUTO), **_NAMES},
    ),
    "num_sampled": (
        f"draws for each example (default {RetrievalSettings.num_sampled}); or auto, as above",
        {"type": _draw_count_or_auto, "metavar": "M"},
    ),
    "num_certain": (
        "so many of the most frequent classes take part for certain, beside the draws of the "
        "others",
        {"type": positive_int, "metavar": "K"},
    ),
    "shared": (
        "draw one set of classes for all examples of a batch; the default with a sampler such as "
        "unigram and a loss such as sampled-masked",
        _SWITCH,
    ),
    **RANDOM_FEATURES,
    "update_every": (
        "steps between two updates of a sampler that follows the class vectors",
        _NUMBER,
    ),
}
_MODEL: Options = {
    "embedding_dim": ("length of embedded inputs and of class vectors", _NUMBER),
    "batch_size": ("examples in a batch", _NUMBER),
    "alpha": (
        "L2 penalty with --no-embedding (default 0.003 / number of classes)",
        {"type": positive_float, "metavar": "X"},
    ),
    "dropout": (
        "probability with which an entry of an input is dropped in a step",
        {"type": rate, "metavar": "RATE"},
    ),
    "label_reduction": (
        "loss of an example with several labels: pal-n, the mean of theirs, for recall; pal, the "
        "sum, for precision; ova, one versus all, with --loss nce or negative-sampling-masked",
        {"choices": LABEL_REDUCTIONS, **_NAMES},
    ),
    "mask_other_labels": (
        "leave the other labels of an example out of the negatives of a label; the default",
        _SWITCH,
    ),
    "validation": (
        "share of the examples that are held out; after each epoch at most 2,000 of them are "
        "evaluated, or with a share of 0 as many of the training data",
        {"type": rate, "metavar": "SHARE"},
    ),
}


def add_model(parser: argparse.ArgumentParser, model: Model) -> None:
    """Add the options of data and settings; those that are not given are None."""
    for name, what in (("train", "training data"), ("test", "data to evaluate at the end")):
        text = f"{what}: {model.form}; also .gz, .xz, .bz2"
        parser.add_argument(f"--{name}", metavar="FILE", help=text)
    add_options(parser.add_argument_group("softmax"), model.defaults, _SOFTMAX)
    group = parser.add_argument_group("model")
    add_options(group, model.defaults, _MODEL)
    group.add_argument(
        "--no-embedding",
        action="store_true",
        default=None,
        help="class vectors on the inputs themselves, for labels of bags of words; draws are by "
        "counts (--sampler unigram) or uniform, and the learning rate is 2 for adagrad",
    )
    group.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        help=f"one of {', '.join(OPTIMIZERS)} (default adagrad)",
        **_NAMES,
    )


def make_task(model: Model, options: argparse.Namespace) -> RetrievalTask:
    """Read the data and make the task; paths in `options` become absolute."""
    values = given(options, RetrievalSettings)
    defaults = model.defaults
    if options.no_embedding:
        refuse(values, ["embedding_dim"], "--no-embedding")
        # the default sampler follows embedded inputs
        if LOSSES[values.get("loss", defaults.loss)].draws:
            values = {"sampler": "unigram", **values}
        values["embedding_dim"] = None
    else:
        refuse(values, ["alpha"], "an embedding, but is for --no-embedding")
    settings = make_settings({"dropout": defaults.dropout, **values})
    if options.train is None:
        raise ValueError("--train must name a file, got none; add it.")
    files = {}
    for name in ("train", "test"):
        if getattr(options, name) is not None:
            # absolute, for --resume may be called from another folder
            files[name] = str(Path(getattr(options, name)).resolve())
            setattr(options, name, files[name])
    return model.make_task(files, settings)


def make_settings(values: dict[str, Any]) -> RetrievalSettings:
    """Make settings of options that are given; refuse in words of the command line."""
    name, sampler = (
        values.get(option, getattr(RetrievalSettings, option)) for option in ("loss", "sampler")
    )
    if LOSSES[name].draws:
        spec = SAMPLERS[sampler]
        unread = [option for option in ("nu", "num_features") if option not in spec.reads]
        refuse(values, unread, f"--sampler {sampler}")
        if not spec.follows_vectors:
            by = f"--sampler {sampler}, which does not use class vectors"
            refuse(values, ["update_every"], by)
    else:
        refuse(values, OF_DRAWS, f"--loss {name}, which draws nothing")
        # the defaults of the settings are those of a loss that draws
        values = {**values, "sampler": None, "num_sampled": None}
    try:
        return RetrievalSettings(**values)
    except ValueError as error:  # which names arguments of Python
        raise ValueError(re.sub(r"`(\w+)`", _as_flag, str(error))) from None


def _as_flag(name: re.Match[str]) -> str:
    return flag(name[1]) if name[1] in {**_SOFTMAX, **_MODEL} else name[0]


def refuse(values: dict[str, Any], useless: Iterable[str], by: str) -> None:
    """Raise ValueError if options are given that have no effect with another one."""
    options = [flag(name) for name in useless if name in values]
    if options:
        verb, it = ("has", "it") if len(options) == 1 else ("have", "them")
        raise ValueError(f"{', '.join(options)} {verb} no effect with {by}; leave {it} out.")


def training_settings(options: argparse.Namespace) -> Settings:
    """Return how the task is trained."""
    optimizer = options.optimizer or "adagrad"
    # numbers of features that are rare see few steps, and must take large ones
    rates = RATES_OF_INPUTS if options.no_embedding else RATES
    learning_rate = options.learning_rate or rates.get(optimizer)
    if learning_rate is None:
        raise ValueError(
            f"--learning-rate must be given with --optimizer {optimizer}, which has no default."
        )
    return Settings(
        epochs=options.epochs or EPOCHS,
        optimizer=optimizer,
        learning_rate=float(learning_rate),
        patience=options.patience,
        checkpoint_every=options.checkpoint_every,
    )
