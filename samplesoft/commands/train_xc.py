"""``samplesoft train xc``: extreme classification."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from samplesoft.commands import retrieval
from samplesoft.training.retrieval import RetrievalSettings

if TYPE_CHECKING:
    from samplesoft.training.retrieval import RetrievalTask
    from samplesoft.training.settings import Settings

HELP = "labels for sparse inputs"
DESCRIPTION = (
    "A linear embedding of sparse inputs under a softmax layer, for examples with several labels "
    "among very many: text files of the extreme classification repository."
)
DEFAULTS = RetrievalSettings()
EPOCHS, CHECKPOINT_EVERY, LEARNING_RATE = 20, None, retrieval.LEARNING_RATE
HEADLINE = "precision_at_1"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the model; None stands for what is not given."""
    form = "lines 'l,l f:v f:v' after one 'points features labels'"
    retrieval.add_options(parser, DEFAULTS, form)


def make_task(options: argparse.Namespace) -> RetrievalTask:
    """Read the examples and make the model.

    Parameters
    ----------
    options : argparse.Namespace
        As parsed; paths are made absolute.

    Returns
    -------
    RetrievalTask
        The task, with the examples of ``--test`` if there are some.

    Raises
    ------
    OSError, TypeError, ValueError
        If a file or an option is bad.
    """
    from samplesoft.commands.options import say
    from samplesoft.data.xml_repository import load_xml_repository
    from samplesoft.training.retrieval import RetrievalTask

    settings = retrieval.read_settings(options, DEFAULTS)
    found = retrieval.read_files(options, load_xml_repository)
    train, test = found["train"], found.get("test")
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


def make_settings(options: argparse.Namespace) -> Settings:
    """Return how the model is trained."""
    return retrieval.make_settings(options, EPOCHS)


def final(task: RetrievalTask) -> dict[str, Any]:
    """Return figures of the best parameters on the test examples, and how many were left out."""
    found: dict[str, Any] = {"num_unlabeled": task.num_unlabeled}
    return found if task.test is None else {**found, "test": task.evaluate(*task.test)}
