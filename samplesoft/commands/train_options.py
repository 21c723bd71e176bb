"""Options of ``samplesoft train xc`` and ``items``, and the task that they make.

An option stands for a field of the settings: its type, default and help are those of the field.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from samplesoft.commands.files import InputFile, OutputFile, OutputFolder, flag
from samplesoft.commands.options import (
    add_fields,
    address,
    draw_count,
    given,
    rate,
    say,
    seed,
)
from samplesoft.data import load_interactions, load_xml_repository
from samplesoft.data.interactions import padded
from samplesoft.losses.base import LABEL_REDUCTIONS
from samplesoft.losses.registry import LOSSES
from samplesoft.models.optimizers import OPTIMIZERS
from samplesoft.samplers.registry import SAMPLERS
from samplesoft.training import BEST, CHECKPOINT, LOG
from samplesoft.training.lock import LOCK
from samplesoft.training.retrieval import RetrievalSettings, RetrievalTask
from samplesoft.training.settings import Settings

# options of draws, which a loss that draws nothing does not have
OF_DRAWS = ("sampler", "num_sampled", "num_certain", "shared", "nu", "num_features", "update_every")
DEFAULTS = {"epochs": 20, "optimizer": "adagrad"}
RATES = {"adagrad": 0.1, "adam": 0.01}  # others must be given
RATES_OF_INPUTS = {"adagrad": 2.0}  # without an embedding

OPTIONS = "options.json"  # of a run, beside its checkpoint, so that --resume needs none of them
DATA = {"train": "training data", "test": "data to evaluate at the end"}


class RunFolder(OutputFolder):
    """A folder of a run."""

    files = (BEST, CHECKPOINT, LOCK, LOG, OPTIONS)


# how options are read, where their type does not say it
_KINDS: dict[str, Any] = {
    "loss": [name for name, spec in LOSSES.items() if spec.several_labels],
    "sampler": SAMPLERS,
    "label_reduction": LABEL_REDUCTIONS,
    "optimizer": OPTIMIZERS,
    "num_sampled": draw_count,
    "dropout": rate,
    "validation": rate,
    "seed": seed,
}


@dataclass(frozen=True)
class Model:
    """In what the two commands differ."""

    help: str
    description: str
    form: str  # of the lines of its files
    headline: str  # the figure of the validation, beside the loss, that is printed for each epoch
    dropout: float  # by default
    # makes the task of the files "train" and perhaps "test", which becomes its attribute `test`
    make_task: Callable[[dict[str, str], RetrievalSettings, Any], RetrievalTask]


def _classification(
    files: dict[str, str], settings: RetrievalSettings, workers: Any
) -> RetrievalTask:
    parts = {name: load_xml_repository(path) for name, path in files.items()}
    train, test = parts["train"], parts.get("test")
    if test is not None:
        for name, of_train, of_test in zip(("features", "labels"), train, test, strict=True):
            if of_train.shape[1] != of_test.shape[1]:
                raise ValueError(
                    f"--test must have the {of_train.shape[1]:,} {name} of --train, got "
                    f"{of_test.shape[1]:,}."
                )
    task = RetrievalTask(train.inputs, train.labels, settings, workers=workers)
    task.test = test
    if task.num_unlabeled:
        say(f"{task.num_unlabeled:,} examples have no label and are left out.")
    return task


def _items(files: dict[str, str], settings: RetrievalSettings, workers: Any) -> RetrievalTask:
    parts = {name: load_interactions(path) for name, path in files.items()}
    shape = tuple(max(matrix.shape[axis] for matrix in parts.values()) for axis in range(2))
    # users and items of either file may be missing from the other
    taken = padded(parts["train"], shape)
    task = RetrievalTask(taken, taken, settings, leave_out=True, workers=workers)
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
        dropout=RetrievalSettings.dropout,
        make_task=_classification,
    ),
    "items": Model(
        help="further items for users, from those that they have taken",
        description="Train a linear embedding of the items that a user has taken and a softmax "
        "over all items, to predict what else the user may take. Items of --train do not appear in "
        "the predictions for their user.",
        form="lines 'user item item ...'",
        headline="recall_at_20",
        dropout=0.5,
        make_task=_items,
    ),
}


def add_model(parser: argparse.ArgumentParser, model: Model) -> None:
    """Add the options of data and model; those that are not given are None."""
    for name, what in DATA.items():
        text = f"{what}: {model.form}; also .gz, .xz, .bz2"
        parser.add_argument(f"--{name}", type=InputFile, metavar="FILE", help=text)
    group = parser.add_argument_group("model")
    names = [field.name for field in fields(RetrievalSettings)]
    add_fields(group, RetrievalSettings, names, _KINDS, dropout=model.dropout)
    group.add_argument(
        "--no-embedding",
        action="store_true",
        default=None,
        help="class vectors on the inputs themselves, for labels of bags of words; draws are by "
        "counts (--sampler unigram) or uniform, and the learning rate is 2 for adagrad",
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the options of the run; those that are not given are None."""
    group = parser.add_argument_group("run")
    group.add_argument(
        "--out",
        required=True,
        type=RunFolder,
        metavar="DIR",
        help="folder for checkpoint.npz, best.npz (of the best epoch), log.jsonl, options.json",
    )
    group.add_argument(
        "--resume",
        action="store_true",
        help="continue the run in --out; options that are left out keep their values, and only "
        "--epochs, --patience and paths of data may be changed",
    )
    group.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        type=address,
        help="keep the class vectors, their optimizer and their sampler on the workers of a "
        "cluster of Dask, a part on each: the address of its scheduler, such as "
        "tcp://10.0.0.1:8786; a run is resumed on any number of workers, or without",
    )
    rates = ", ".join(f"{number} for {name}" for name, number in RATES.items())
    names = ("epochs", "patience", "optimizer", "learning_rate", "checkpoint_every")
    add_fields(group, Settings, names, _KINDS, **DEFAULTS, learning_rate=rates)
    group.add_argument("--json", type=OutputFile, metavar="FILE", help="write the results as JSON")


def make_task(model: Model, options: argparse.Namespace, workers: Any) -> RetrievalTask:
    """Read the data and make the task; paths in `options` become absolute."""
    values = given(options, RetrievalSettings)
    loss = LOSSES[values.get("loss", RetrievalSettings.loss)]
    if options.no_embedding:
        refuse(values, ["embedding_dim"], "--no-embedding")
        # the default sampler follows embedded inputs
        values = {**({"sampler": "unigram"} if loss.draws else {}), **values, "embedding_dim": None}
    else:
        refuse(values, ["alpha"], "an embedding, but is for --no-embedding")
    settings = make_settings({"dropout": model.dropout, **values}, workers is not None)
    if options.train is None:
        raise ValueError("--train must name a file, got none; add it.")
    files = {}
    for name in DATA:
        if getattr(options, name) is not None:
            # absolute, for --resume may be called from another folder
            files[name] = str(Path(getattr(options, name)).resolve())
            setattr(options, name, files[name])
    return model.make_task(files, settings, workers)


def make_settings(values: dict[str, Any], sharded: bool) -> RetrievalSettings:
    """Make settings of options that are given; refuse in words of the command line."""
    loss = values.get("loss", RetrievalSettings.loss)
    sampler = values.get("sampler", RetrievalSettings.sampler)
    if LOSSES[loss].draws:
        spec = SAMPLERS[sampler]
        unread = {"nu", "num_features"} - set(spec.reads)
        refuse(values, sorted(unread), f"--sampler {sampler}")
        if not spec.follows_vectors:
            by = f"--sampler {sampler}, which does not use class vectors"
            refuse(values, ["update_every"], by)
    else:
        refuse(values, OF_DRAWS, f"--loss {loss}, which draws nothing")
        # the defaults of the settings are those of a loss that draws
        values = {**values, "sampler": None, "num_sampled": None}
    try:
        settings = RetrievalSettings(**values)
        if sharded:
            settings.require_shardable()
        return settings
    except ValueError as error:  # which names arguments of Python
        names = "|".join(field.name for field in fields(RetrievalSettings))
        in_words = re.sub(f"`({names})`", lambda name: flag(name[1]), str(error))
        raise ValueError(in_words) from None


def refuse(values: dict[str, Any], useless: Iterable[str], by: str) -> None:
    """Raise ValueError if options are given that have no effect with another one."""
    options = [flag(name) for name in useless if name in values]
    if options:
        verb, it = ("has", "it") if len(options) == 1 else ("have", "them")
        raise ValueError(f"{', '.join(options)} {verb} no effect with {by}; leave {it} out.")


def training_settings(options: argparse.Namespace) -> Settings:
    """Return how the task is trained."""
    values = {**DEFAULTS, **given(options, Settings)}
    if "learning_rate" not in values:
        # numbers of features that are rare see few steps, and must take large ones
        rates, optimizer = RATES_OF_INPUTS if options.no_embedding else RATES, values["optimizer"]
        if optimizer not in rates:
            raise ValueError(
                f"--learning-rate must be given with --optimizer {optimizer}, which has no default."
            )
        values["learning_rate"] = rates[optimizer]
    return Settings(**values)
