"""Options of ``samplesoft train xc`` and ``items``, and the training task made from them.

Most options set a field of `RetrievalSettings` or `Settings`. Their help names the field's default.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from samplesoft._moving_average import DEFAULT_GAMMA
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
from samplesoft.data.interactions import enlarged_to_shape
from samplesoft.distributed.linear_softmax import require_shardable
from samplesoft.losses.base import LABEL_REDUCTIONS
from samplesoft.losses.registry import LOSSES
from samplesoft.optimizers.registry import OPTIMIZERS
from samplesoft.samplers.registry import SAMPLERS
from samplesoft.training import BEST, CHECKPOINT, LOG
from samplesoft.training.lock import LOCK
from samplesoft.training.retrieval import RetrievalSettings, RetrievalTask
from samplesoft.training.schedules import (
    DEFAULT_RATES_ON_INPUTS,
    RATES,
    SCHEDULES,
    default_learning_rate,
)
from samplesoft.training.settings import Settings

# options that are refused for a loss without draws, because they would have no effect
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

# file in the run folder with the options of the run, which --resume reads
OPTIONS = "options.json"
DATA = {"train": "training data", "test": "data to evaluate at the end"}


class RunFolder(OutputFolder):
    """The folder of a training run, given as the value of an option."""

    files = (BEST, CHECKPOINT, LOCK, LOG, OPTIONS)


@dataclass(frozen=True)
class ModelCommand:
    """The properties of ``train xc`` or ``train items`` in which the two commands differ."""

    help: str
    description: str
    line_format: str  # format of the lines of input files
    # the validation metric that is printed for each epoch, next to the loss
    headline_metric: str
    dropout: float  # default of --dropout
    # function that makes the task from the paths of the files "train" and, optionally, "test", from
    # the settings, and from the workers of a cluster
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
    # the two files may have different users and items: enlarge both matrices to a common shape
    interactions = enlarged_to_shape(data["train"], shape)
    task = RetrievalTask(interactions, interactions, settings, leave_out=True, workers=workers)
    if "test" in data:
        task.test = interactions, enlarged_to_shape(data["test"], shape)
    return task


MODELS = {
    "xc": ModelCommand(
        help="predict labels for sparse inputs",
        description="Train a linear embedding of sparse inputs and a softmax over very many "
        "labels. An example may have several labels. The files are text files in the format of the "
        "extreme classification repository.",
        line_format="a line 'points features labels', then lines 'l,l f:v f:v'",
        headline_metric="precision_at_1",
        dropout=RetrievalSettings.dropout,
        make_task=_make_classification_task,
    ),
    "items": ModelCommand(
        help="recommend items to users, from their interaction histories",
        description="Train a linear embedding of the items in a user's history and a softmax over "
        "all items, to predict further items for the user. Items that a user has in --train are "
        "not predicted for that user.",
        line_format="lines 'user item item ...'",
        headline_metric="recall_at_20",
        dropout=0.5,
        make_task=_make_items_task,
    ),
}


def _model_options(model: ModelCommand) -> Options:
    """Return the options for the fields of `RetrievalSettings`, and ``--no-embedding``."""
    defaults = RetrievalSettings
    # losses with a number for each example take data with one label an example
    losses = [name for name, spec in LOSSES.items() if spec.several_labels or spec.has_log_sums]

    return {
        "loss": Option(
            f"loss to minimise, one of {', '.join(losses)} (default {defaults.loss})",
            choices=losses,
            metavar="NAME",
        ),
        "tau": Option(
            "inverse temperature (default 10, or 1 with --no-normalize)",
            parse=positive_float,
            metavar="N",
        ),
        "normalize": Option(
            "divide contexts and class vectors by their norms (default, except for full-logistic)",
            switch="either",
        ),
        "sampler": Option(
            f"sampler of classes, one of {', '.join(SAMPLERS)} (default {defaults.sampler})",
            choices=SAMPLERS,
            metavar="NAME",
        ),
        "num_sampled": Option(
            "number of draws m per example, or per batch with --shared (default "
            f"{defaults.num_sampled})",
            parse=draw_count,
            metavar="N",
        ),
        "num_certain": Option(
            "number of most frequent classes that are always included, in addition to the draws of "
            f"other classes (default {defaults.num_certain})",
            parse=positive_int,
            metavar="N",
        ),
        "nu": Option(
            f"inverse variance of the Gaussian kernel of the rff samplers (default {defaults.nu})",
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
            "draw one set of classes for all examples of a batch (default if sampler and loss "
            "allow it, as unigram and sampled-masked do)",
            switch="either",
        ),
        "update_every": Option(
            "number of steps between updates of a sampler that uses class vectors (default "
            f"{defaults.update_every})",
            parse=positive_int,
            metavar="N",
        ),
        "embedding_dim": Option(
            f"dimension of embedded inputs and class vectors (default {defaults.embedding_dim})",
            parse=positive_int,
            metavar="N",
        ),
        "alpha": Option(
            "L2 penalty with --no-embedding (default 0.003 divided by the number of classes)",
            parse=positive_float,
            metavar="N",
        ),
        "dropout": Option(
            f"probability that an entry of an input is dropped in a step (default {model.dropout})",
            parse=fraction_below_one,
            metavar="N",
        ),
        "label_reduction": Option(
            "loss of an example with several labels: pal-n, the mean of their losses; pal, the sum "
            f"of their losses; ova, one versus all, for nce or negative-sampling-masked (default "
            f"{defaults.label_reduction})",
            choices=LABEL_REDUCTIONS,
            metavar="NAME",
        ),
        "mask_other_labels": Option(
            "exclude the other labels of an example from the negatives of a label (default)",
            switch="either",
        ),
        "negative_weight": Option(
            "weight of the log-sum-exp of the draws with --loss bilateral (default 1.2)",
            parse=positive_float,
            metavar="N",
        ),
        "gamma": Option(
            "weight of the new draws in the running estimates of --loss moving-average, at most 1 "
            f"(default {DEFAULT_GAMMA}); examples must have one label each",
            parse=positive_float,
            metavar="N",
        ),
        "scent_alpha": Option(
            "step size of the running estimates of --loss moving-average, in place of --gamma: "
            "alpha of SCENT",
            parse=positive_float,
            metavar="N",
        ),
        "batch_size": Option(
            f"number of examples in a batch (default {defaults.batch_size})",
            parse=positive_int,
            metavar="N",
            flag="--batch",
        ),
        "validation": Option(
            "fraction of the examples that are held out; at most 2,000 of them are evaluated after "
            "each epoch; with 0, training examples are evaluated instead (default "
            f"{defaults.validation})",
            parse=fraction_below_one,
            metavar="N",
        ),
        "seed": Option(
            f"seed of all random numbers (default {defaults.seed})", parse=seed, metavar="N"
        ),
        "no_embedding": Option(
            "multiply class vectors with the inputs themselves, such as bags of words; the sampler "
            "must be unigram or uniform; the default learning rate is 2 for adagrad and 0.2 for "
            "adam",
            switch="on",
        ),
    }


_RATES = ", ".join(f"{number} for {name}" for name, number in RATES.items())
_RUN_OPTIONS: Options = {
    "out": Option(
        "folder of the run, for checkpoint.npz, best.npz (best epoch), log.jsonl, options.json",
        parse=RunFolder,
        metavar="DIR",
        required=True,
    ),
    "resume": Option(
        "continue the run in --out with its options; only --epochs, --patience and the paths of "
        "the data may be changed",
        switch="on",
        default=False,
    ),
    "scheduler": Option(
        "address of a Dask scheduler, such as tcp://10.0.0.1:8786: shard the class vectors, their "
        "optimizer and their sampler over its workers; a run can be resumed on any number of "
        "workers, or without them",
        parse=address,
        metavar="ADDRESS",
    ),
    "epochs": Option(
        "number of passes over the training data; a resumed run may have more (default "
        f"{DEFAULTS['epochs']})",
        parse=positive_int,
        metavar="N",
    ),
    "patience": Option(
        "stop after N epochs without a lower validation loss",
        parse=positive_int,
        metavar="N",
    ),
    "optimizer": Option(
        f"optimizer, one of {', '.join(OPTIMIZERS)} (default {DEFAULTS['optimizer']})",
        choices=OPTIMIZERS,
        metavar="NAME",
    ),
    "learning_rate": Option(
        f"learning rate of the optimizer (default {_RATES})",
        parse=positive_float,
        metavar="N",
    ),
    "schedule": Option(
        f"schedule of the learning rate over --epochs, one of {', '.join(SCHEDULES)} (default "
        f"{Settings.schedule}); a run with a decaying rate must be resumed with the same --epochs",
        choices=SCHEDULES,
        metavar="NAME",
    ),
    "warmup_steps": Option(
        "number of first steps in which the learning rate rises linearly (default "
        f"{Settings.warmup_steps})",
        parse=integer_parser(0),
        metavar="N",
    ),
    "checkpoint_every": Option(
        "write a checkpoint after every N steps, in addition to the end of each epoch",
        parse=positive_int,
        metavar="N",
    ),
    "json": Option("write the results as JSON", parse=OutputFile, metavar="FILE"),
}


def add_model_options(parser: argparse.ArgumentParser, model: ModelCommand) -> None:
    """Add the options for the data and the model to a parser; options not given are None."""
    for name, description in DATA.items():
        text = f"{description}: {model.line_format}; also .gz, .xz, .bz2"
        add_options(parser, {name: Option(text, parse=InputFile, metavar="FILE")})
    add_options(parser.add_argument_group("model"), _model_options(model))


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the training run to a parser; options not given are None."""
    add_options(parser.add_argument_group("run"), _RUN_OPTIONS)


def make_task(model: ModelCommand, options: argparse.Namespace, workers: Any) -> RetrievalTask:
    """Read the data and return the task; replace the paths in `options` by absolute ones."""
    values = given_options(options, RetrievalSettings)
    loss = LOSSES[values.get("loss", RetrievalSettings.loss)]
    if options.no_embedding:
        refuse_useless_options(values, ["embedding_dim"], "--no-embedding")
        # replace the default sampler, which needs embedded inputs, by "unigram"
        values = {**({"sampler": "unigram"} if loss.draws else {}), **values, "embedding_dim": None}
    else:
        refuse_useless_options(values, ["alpha"], "an embedding, but is for --no-embedding")

    settings = make_settings({"dropout": model.dropout, **values}, workers is not None)
    if options.train is None:
        raise ValueError("--train must name a file, got none; add it.")

    files = {}
    for name in DATA:
        if getattr(options, name) is not None:
            # an absolute path is saved, because --resume may be called from another folder
            files[name] = str(Path(getattr(options, name)).resolve())
            setattr(options, name, files[name])

    return model.make_task(files, settings, workers)


def make_settings(values: dict[str, Any], sharded: bool) -> RetrievalSettings:
    """Return the settings for option values; errors name the options, not Python arguments.

    `sharded` says whether class vectors are on the workers of a cluster.
    """
    loss = values.get("loss", RetrievalSettings.loss)
    sampler = values.get("sampler", RetrievalSettings.sampler)
    if loss != "bilateral":
        refuse_useless_options(values, ["negative_weight"], f"--loss {loss}")
    if not LOSSES[loss].has_log_sums:
        refuse_useless_options(values, ["gamma", "scent_alpha"], f"--loss {loss}")

    if LOSSES[loss].draws:
        spec = SAMPLERS[sampler]
        unused = {"nu", "num_features"} - set(spec.reads)
        refuse_useless_options(values, sorted(unused), f"--sampler {sampler}")
        if not spec.follows_vectors:
            with_text = f"--sampler {sampler}, which does not use class vectors"
            refuse_useless_options(values, ["update_every"], with_text)
    else:
        refuse_useless_options(values, DRAW_OPTIONS, f"--loss {loss}, which draws nothing")
        # the default sampler and number of draws are for losses with draws
        values = {**values, "sampler": None, "num_sampled": None}

    try:
        settings = RetrievalSettings(**values)
        if sharded:
            require_shardable(settings)
        return settings
    except ValueError as error:  # replace the Python arguments in its message by options
        names = "|".join(field.name for field in fields(RetrievalSettings))
        message = re.sub(f"`({names})`", lambda name: flag(name[1]), str(error))
        raise ValueError(message) from None


def refuse_useless_options(values: dict[str, Any], useless: Iterable[str], with_text: str) -> None:
    """Raise ValueError if `values` has one of the options `useless`.

    `with_text` names the option with which these options have no effect.
    """
    options = [flag(name) for name in useless if name in values]
    if options:
        verb, it = ("has", "it") if len(options) == 1 else ("have", "them")
        raise ValueError(f"{', '.join(options)} {verb} no effect with {with_text}; leave {it} out.")


def training_settings(options: argparse.Namespace) -> Settings:
    """Return the training settings; raise if there is no learning rate, given or by default."""
    values = {**DEFAULTS, **given_options(options, Settings)}
    if "learning_rate" not in values:
        # optimizers that are not in the table have no default learning rate
        rates = DEFAULT_RATES_ON_INPUTS if options.no_embedding else RATES
        optimizer = values["optimizer"]
        if optimizer not in rates:
            raise ValueError(
                f"--learning-rate must be given with --optimizer {optimizer}, which has no default."
            )
        on_inputs = options.no_embedding is True
        values["learning_rate"] = default_learning_rate(optimizer, on_inputs=on_inputs)

    return Settings(**values)
