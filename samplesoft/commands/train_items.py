"""``samplesoft train items``: items for users who have taken others."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from samplesoft.commands import retrieval
from samplesoft.training.retrieval import RetrievalSettings

if TYPE_CHECKING:
    from samplesoft.training.retrieval import RetrievalTask
    from samplesoft.training.settings import Settings

HELP = "items for users who have taken others"
DESCRIPTION = (
    "What a user has taken goes in, what else the user might take comes out: a linear embedding of "
    "the items under a softmax layer over them. Items of --train are left out of the lists."
)
DEFAULTS = RetrievalSettings(dropout=0.5)
EPOCHS, CHECKPOINT_EVERY, LEARNING_RATE = 20, None, retrieval.LEARNING_RATE
HEADLINE = "recall_at_20"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the model; None stands for what is not given."""
    retrieval.add_options(parser, DEFAULTS, "lines 'user item item ...'")


def make_task(options: argparse.Namespace) -> RetrievalTask:
    """Read the interactions and make the model.

    Parameters
    ----------
    options : argparse.Namespace
        As parsed; paths are made absolute.

    Returns
    -------
    RetrievalTask
        The task, with the interactions of ``--test`` if there are some.

    Raises
    ------
    OSError, TypeError, ValueError
        If a file or an option is bad.
    """
    from samplesoft.data.interactions import load_interactions, padded
    from samplesoft.training.retrieval import RetrievalTask

    settings = retrieval.read_settings(options, DEFAULTS)
    found = retrieval.read_files(options, load_interactions)
    shape = tuple(max(matrix.shape[axis] for matrix in found.values()) for axis in range(2))
    taken = padded(found["train"], shape)
    task = RetrievalTask(taken, taken, settings, leave_out=True)
    if "test" in found:
        task.test = taken, padded(found["test"], shape)
    return task


def make_settings(options: argparse.Namespace) -> Settings:
    """Return how the model is trained."""
    return retrieval.make_settings(options, EPOCHS)


def final(task: RetrievalTask) -> dict[str, Any]:
    """Return figures of the best epoch's parameters on the test interactions."""
    return {} if task.test is None else {"test": task.evaluate(*task.test)}
