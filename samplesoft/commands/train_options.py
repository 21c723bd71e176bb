"""Options of ``samplesoft train xc`` and ``items``, and the training task made from them.

Each option sets a field of the settings; its help names the default of that field.
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
    fraction_below_one,
    given_options,
    integer_parser,
    positive_float,
    positive_int,
    seed,
    show_remark,
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

# options without effect for a loss that draws nothing
DRAW_OPTIONS = (
    "sampler",
    "num_sampled",
    "num_certain",
    "shared",
    "nu",
    "num_features",
    "update_every",
)
DEFAULTS = {"epochs": 20, "optimizer": "adagrad"}

OPTIONS = "options.json"  # file in the run folder, so that --resume needs no options
DATA = {"train": "training data", "test": "data to evaluate at the end"}


class RunFolder(OutputFolder):
    """The folder of a training run."""

    files = (BEST, CHECKPOINT, LOCK, LOG, OPTIONS)


@dataclass(frozen=True)
class ModelCommand:
    """The differences between ``train xc`` and ``train items``."""

    help: str
    description: str
    line_format: str  # format of the lines of its files
    headline_metric: (
        str  # validation metric that is printed for each epoch, in addition to the loss
    )
    dropout: float  # default
    # makes the task from the files "train" and, optionally, "test"
    make_task: Callable[[dict[str, str], RetrievalSettings, Any], RetrievalTask]


def _make_classification_task(
    files: dict[str, str], settings: RetrievalSettings, workers: Any
) -> RetrievalTask:
    data = {name: load_xml_repository(path) for name, path in files.items()}
    train = data["train"]
    test = data.get("test")
    if test is not None:
        kinds = ("features", "labels")
        for name, train_matrix, test_matrix in zip(kinds, train, test, strict=True):
            if train_matrix.shape[1] != test_matrix.shape[1]:
                raise ValueError(
                    f"--test must have the {train_matrix.shape[1]:,} {name} of --train, got "
                    f"{test_matrix.shape[1]:,}."
                )
    task = RetrievalTask(train.inputs, train.labels, settings, workers=workers)
    task.test = test
    if task.num_unlabeled:
        show_remark(f"{task.num_unlabeled:,} examples have no label and are left out.")
    return task


def _make_items_task(
    files: dict[str, str], settings: RetrievalSettings, workers: Any
) -> RetrievalTask:
    data = {name: load_interactions(path) for name, path in files.items()}
    shape = tuple(max(matrix.shape[axis] for matrix in data.values()) for axis in range(2))
    # either file may have users and items that the other lacks
    interactions = padded(data["train"], shape)
    task = RetrievalTask(interactions, interactions, settings, leave_out=True, workers=workers)
    if "test" in data:
        task.test = interactions, padded(data["test"], shape)
    return task


MODELS = {
    "xc": ModelCommand(
        help="labels for sparse inputs",
        description="Train a linear embedding of sparse inputs and a softmax over very many "
        "labels, of which an example may have several. The files are text files of the extreme "
        "classification repository.",
        line_format="lines 'l,l f:v f:v' after one 'points features labels'",
        headline_metric="precision_at_1",
        dropout=RetrievalSettings.dropout,
        make_task=_make_classification_task,
    ),
    "items": ModelCommand(
        help="further items for users, from those that they have taken",
        description="Train a linear embedding of the items that a user has taken and a softmax "
        "over all items, to predict what else the user may take. Items of --train do not appear in "
        "the predictions for their user.",
        line_format="lines 'user item item ...'",
        headline_metric="recall_at_20",
        dropout=0.5,
        make_task=_make_items_task,
    ),
}


def _model_options(model: ModelCommand) -> Options:
    """Return the options for the fields of `RetrievalSettings`."""
    defaults = RetrievalSettings
    losses = [name for name, spec in LOSSES.items() if spec.several_labels]
    return {
        "loss": Option(
            f"loss that is minimised, one of {', '.join(losses)} (default {defaults.loss})",
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
            f"what draws classes, one of {', '.join(SAMPLERS)} (default {defaults.sampler})",
            choices=SAMPLERS,
            metavar="NAME",
        ),
        "num_sampled": Option(
            "draws m for each example, or for the batch with --shared (default "
            f"{defaults.num_sampled})",
            parse=draw_count,
            metavar="N",
        ),
        "num_certain": Option(
            "so many of the most frequent classes are in each set for certain, beside draws of "
            f"the others (default {defaults.num_certain})",
            parse=positive_int,
            metavar="N",
        ),
        "nu": Option(
            "sharpness of the Gaussian kernel of the rff samplers, 1 over its variance (default "
            f"{defaults.nu})",
            parse=positive_float,
            metavar="N",
        ),
        "num_features": Option(
            "random frequencies of the rff samplers, and features of positive (default "
            f"{defaults.num_features})",
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
            f"{defaults.update_every})",
            parse=positive_int,
            metavar="N",
        ),
        "embedding_dim": Option(
            f"length of embedded inputs and of class vectors (default {defaults.embedding_dim})",
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
            parse=fraction_below_one,
            metavar="N",
        ),
        "label_reduction": Option(
            "loss of an example with several labels: pal-n, the mean of theirs; pal, their sum; "
            f"ova, one versus all, with nce or negative-sampling-masked (default "
            f"{defaults.label_reduction})",
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
            f"examples in a batch (default {defaults.batch_size})",
            parse=positive_int,
            metavar="N",
            flag="--batch",
        ),
        "validation": Option(
            "share of the examples that are held out, of which at most 2,000 are evaluated after "
            "each epoch; with 0 as many of the training data are (default "
            f"{defaults.validation})",
            parse=fraction_below_one,
            metavar="N",
        ),
        "seed": Option(
            f"seed of everything random (default {defaults.seed})", parse=seed, metavar="N"
        ),
        "no_embedding": Option(
            "class vectors on the inputs themselves, for labels of bags of words; draws are by "
            "counts (--sampler unigram) or uniform, and the learning rate is 2 for adagrad and 0.2 "
            "for adam",
            switch="on",
        ),
    }


_RATES = ", ".join(f"{number} for {name}" for name, number in RATES.items())
_RUN_OPTIONS: Options = {
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
        parse=integer_parser(0),
        metavar="N",
    ),
    "checkpoint_every": Option(
        "write a checkpoint after so many steps of an epoch too, and not only at its end",
        parse=positive_int,
        metavar="N",
    ),
    "json": Option("write the results as JSON", parse=OutputFile, metavar="FILE"),
}


def add_model_options(parser: argparse.ArgumentParser, model: ModelCommand) -> None:
    """Add the options of data and model; options that are not given are None."""
    for name, description in DATA.items():
        text = f"{description}: {model.line_format}; also .gz, .xz, .bz2"
        add_options(parser, {name: Option(text, parse=InputFile, metavar="FILE")})
    add_options(parser.add_argument_group("model"), _model_options(model))


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the run; options that are not given are None."""
    add_options(parser.add_argument_group("run"), _RUN_OPTIONS)


def make_task(model: ModelCommand, options: argparse.Namespace, workers: Any) -> RetrievalTask:
    """Read the data and make the task; make the paths in `options` absolute."""
    values = given_options(options, RetrievalSettings)
    loss = LOSSES[values.get("loss", RetrievalSettings.loss)]
    if options.no_embedding:
        refuse_useless_options(values, ["embedding_dim"], "--no-embedding")
        # the default sampler needs embedded inputs
        values = {**({"sampler": "unigram"} if loss.draws else {}), **values, "embedding_dim": None}
    else:
        refuse_useless_options(values, ["alpha"], "an embedding, but is for --no-embedding")
    settings = make_settings({"dropout": model.dropout, **values}, workers is not None)
    if options.train is None:
        raise ValueError("--train must name a file, got none; add it.")
    files = {}
    for name in DATA:
        if getattr(options, name) is not None:
            # absolute, because --resume may be called from another folder
            files[name] = str(Path(getattr(options, name)).resolve())
            setattr(options, name, files[name])
    return model.make_task(files, settings, workers)


def make_settings(values: dict[str, Any], sharded: bool) -> RetrievalSettings:
    """Make settings from the given options; errors name command-line options."""
    loss = values.get("loss", RetrievalSettings.loss)
    sampler = values.get("sampler", RetrievalSettings.sampler)
    if loss != "bilateral":
        refuse_useless_options(values, ["negative_weight"], f"--loss {loss}")
    if LOSSES[loss].draws:
        spec = SAMPLERS[sampler]
        unused = {"nu", "num_features"} - set(spec.reads)
        refuse_useless_options(values, sorted(unused), f"--sampler {sampler}")
        if not spec.follows_vectors:
            by = f"--sampler {sampler}, which does not use class vectors"
            refuse_useless_options(values, ["update_every"], by)
    else:
        refuse_useless_options(values, DRAW_OPTIONS, f"--loss {loss}, which draws nothing")
        # replace the defaults, which are for losses with draws
        values = {**values, "sampler": None, "num_sampled": None}
    try:
        settings = RetrievalSettings(**values)
        if sharded:
            require_shardable(settings)
        return settings
    except ValueError as error:  # its message names Python arguments
        names = "|".join(field.name for field in fields(RetrievalSettings))
        message = re.sub(f"`({names})`", lambda name: flag(name[1]), str(error))
        raise ValueError(message) from None


def refuse_useless_options(values: dict[str, Any], useless: Iterable[str], by: str) -> None:
    """Raise ValueError if options are given that have no effect with the option `by`."""
    options = [flag(name) for name in useless if name in values]
    if options:
        verb, it = ("has", "it") if len(options) == 1 else ("have", "them")
        raise ValueError(f"{', '.join(options)} {verb} no effect with {by}; leave {it} out.")


def training_settings(options: argparse.Namespace) -> Settings:
    """Return the training settings of the options, with a default learning rate."""
    values = {**DEFAULTS, **given_options(options, Settings)}
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
