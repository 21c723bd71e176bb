"""Options of ``samplesoft train xc`` and ``items``, and the task that they make.

An option stands for a field of the settings, whose default it names.
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
    Option,
    Options,
    add_options,
    address,
    draw_count,
    given,
    integer_of,
    positive_float,
    positive_int,
    rate,
    say,
    seed,
)
from samplesoft.data import load_interactions, load_xml_repository
from samplesoft.data.interactions import padded
from samplesoft.distributed.linear_softmax import require_shardable
from samplesoft.losses.base import LABEL_REDUCTIONS
from samplesoft.losses.registry import LOSSES
from samplesoft.optimizers.registry import OPTIMIZERS
from samplesoft.samplers.registry import SAMPLERS
from samplesoft.training import BEST, CHECKPOINT, LOG
from samplesoft.training.lock import LOCK
from samplesoft.training.retrieval import RetrievalSettings, RetrievalTask
from samplesoft.training.schedules import (
    RATES,
    RATES_OF_INPUTS,
    SCHEDULES,
    default_learning_rate,
)
from samplesoft.training.settings import Settings

# options of draws, which a loss that draws nothing does not have
OF_DRAWS = ("sampler", "num_sampled", "num_certain", "shared", "nu", "num_features", "update_every")
DEFAULTS = {"epochs": 20, "optimizer": "adagrad"}

OPTIONS = "options.json"  # of a run, beside its checkpoint, so that --resume needs none of them
DATA = {"train": "training data", "test": "data to evaluate at the end"}


class RunFolder(OutputFolder):
    """A folder of a run."""

    files = (BEST, CHECKPOINT, LOCK, LOG, OPTIONS)


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
    train = parts["train"]
    test = parts.get("test")
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


def _of_model(model: Model) -> Options:
    """Return the options of `RetrievalSettings`."""
    of = RetrievalSettings
    losses = [name for name, spec in LOSSES.items() if spec.several_labels]
    return {
        "loss": Option(
            f"loss that is minimised, one of {', '.join(losses)} (default {of.loss})",
            choices=losses,
            metavar="NAME",
        ),
        "tau": Option(
            "inverse temperature (default 10, or 1 with --no-normalize)",
            parse=positive_float,
            metavar="N",
        ),
        "normalize": Option(
            "divide contexts and class vectors by their norms (the default but for full-logistic)",
            switch="either",
        ),
        "sampler": Option(
            f"what draws classes, one of {', '.join(SAMPLERS)} (default {of.sampler})",
            choices=SAMPLERS,
            metavar="NAME",
        ),
        "num_sampled": Option(
            f"draws m for each example, or for the batch with --shared (default {of.num_sampled})",
            parse=draw_count,
            metavar="N",
        ),
        "num_certain": Option(
            "so many of the most frequent classes are in each set for certain, beside draws of "
            f"the others (default {of.num_certain})",
            parse=positive_int,
            metavar="N",
        ),
        "nu": Option(
            "sharpness of the Gaussian kernel of the rff samplers, 1 over its variance (default "
            f"{of.nu})",
            parse=positive_float,
            metavar="N",
        ),
        "num_features": Option(
            "random frequencies of the rff samplers, and features of positive (default "
            f"{of.num_features})",
            parse=positive_int,
            metavar="N",
        ),
        "shared": Option(
            "draw one set of classes for all examples of a batch (the default with a sampler such "
            "as unigram and a loss such as sampled-masked)",
            switch="either",
        ),
        "update_every": Option(
            "steps between two updates of a sampler that follows the class vectors (default "
            f"{of.update_every})",
            parse=positive_int,
            metavar="N",
        ),
        "embedding_dim": Option(
            f"length of embedded inputs and of class vectors (default {of.embedding_dim})",
            parse=positive_int,
            metavar="N",
        ),
        "alpha": Option(
            "L2 penalty with --no-embedding (default 0.003 divided by the number of classes)",
            parse=positive_float,
            metavar="N",
        ),
        "dropout": Option(
            "probability with which an entry of an input is left out in a step (default "
            f"{model.dropout})",
            parse=rate,
            metavar="N",
        ),
        "label_reduction": Option(
            "loss of an example with several labels: pal-n, the mean of theirs; pal, their sum; "
            f"ova, one versus all, with nce or negative-sampling-masked (default "
            f"{of.label_reduction})",
            choices=LABEL_REDUCTIONS,
            metavar="NAME",
        ),
        "mask_other_labels": Option(
            "leave the other labels of an example out of the negatives of a label (the default)",
            switch="either",
        ),
        "negative_weight": Option(
            "weight of the log-sum-exp of the draws with --loss bilateral (default 1.2)",
            parse=positive_float,
            metavar="N",
        ),
        "batch_size": Option(
            f"examples in a batch (default {of.batch_size})",
            parse=positive_int,
            metavar="N",
            flag="--batch",
        ),
        "validation": Option(
            "share of the examples that are held out, of which at most 2,000 are evaluated after "
            "each epoch; with 0 as many of the training data are (default "
            f"{of.validation})",
            parse=rate,
            metavar="N",
        ),
        "seed": Option(f"seed of everything random (default {of.seed})", parse=seed, metavar="N"),
        "no_embedding": Option(
            "class vectors on the inputs themselves, for labels of bags of words; draws are by "
            "counts (--sampler unigram) or uniform, and the learning rate is 2 for adagrad and 0.2 "
            "for adam",
            switch="on",
        ),
    }


_RATES = ", ".join(f"{number} for {name}" for name, number in RATES.items())
_OF_RUN: Options = {
    "out": Option(
        "folder for checkpoint.npz, best.npz (of the best epoch), log.jsonl, options.json",
        parse=RunFolder,
        metavar="DIR",
        required=True,
    ),
    "resume": Option(
        "continue the run in --out; options that are left out keep their values, and only "
        "--epochs, --patience and paths of data may be changed",
        switch="on",
        default=False,
    ),
    "scheduler": Option(
        "keep the class vectors, their optimizer and their sampler on the workers of a cluster of "
        "Dask, a part on each: the address of its scheduler, such as tcp://10.0.0.1:8786; a run is "
        "resumed on any number of workers, or without",
        parse=address,
        metavar="ADDRESS",
    ),
    "epochs": Option(
        "passes over the training data; a run may be resumed with more (default "
        f"{DEFAULTS['epochs']})",
        parse=positive_int,
        metavar="N",
    ),
    "patience": Option(
        "stop after so many epochs without a lower validation loss",
        parse=positive_int,
        metavar="N",
    ),
    "optimizer": Option(
        f"what takes the steps, one of {', '.join(OPTIMIZERS)} (default {DEFAULTS['optimizer']})",
        choices=OPTIMIZERS,
        metavar="NAME",
    ),
    "learning_rate": Option(
        f"learning rate of the optimizer (default {_RATES})",
        parse=positive_float,
        metavar="N",
    ),
    "schedule": Option(
        f"how the learning rate changes until --epochs are done, one of {', '.join(SCHEDULES)} "
        f"(default {Settings.schedule}); a run with a decay is resumed with the same --epochs",
        choices=SCHEDULES,
        metavar="NAME",
    ),
    "warmup_steps": Option(
        "steps at the beginning in which the learning rate rises in a line (default "
        f"{Settings.warmup_steps})",
        parse=integer_of(0),
        metavar="N",
    ),
    "checkpoint_every": Option(
        "write a checkpoint after so many steps of an epoch too, and not only at its end",
        parse=positive_int,
        metavar="N",
    ),
    "json": Option("write the results as JSON", parse=OutputFile, metavar="FILE"),
}


def add_model(parser: argparse.ArgumentParser, model: Model) -> None:
    """Add the options of data and model; those that are not given are None."""
    for name, what in DATA.items():
        text = f"{what}: {model.form}; also .gz, .xz, .bz2"
        add_options(parser, {name: Option(text, parse=InputFile, metavar="FILE")})
    add_options(parser.add_argument_group("model"), _of_model(model))


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the options of the run; those that are not given are None."""
    add_options(parser.add_argument_group("run"), _OF_RUN)


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
    if loss != "bilateral":
        refuse(values, ["negative_weight"], f"--loss {loss}")
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
            require_shardable(settings)
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
        # others must be given
        rates = RATES_OF_INPUTS if options.no_embedding else RATES
        optimizer = values["optimizer"]
        if optimizer not in rates:
            raise ValueError(
                f"--learning-rate must be given with --optimizer {optimizer}, which has no default."
            )
        on_inputs = options.no_embedding is True
        values["learning_rate"] = default_learning_rate(optimizer, on_inputs=on_inputs)
    return Settings(**values)
