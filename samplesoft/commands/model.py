"""What the file of a model that ``samplesoft train`` offers declares."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samplesoft.training.settings import Settings
    from samplesoft.training.task import Task


def _no_results(task: Any) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Model:
    """A model for the command line; its options that are not given are None."""

    help: str
    description: str
    epochs: int  # default
    learning_rate: str  # its default in words
    headline: str  # the figure of the validation, beside the loss, printed for each epoch
    add_options: Callable[[argparse.ArgumentParser], None]
    make_task: Callable[[argparse.Namespace], Task]  # reads the data
    make_settings: Callable[[argparse.Namespace], Settings]  # how the task is trained
    checkpoint_every: int | None = None
    # what to report of the task at its best epoch, such as figures of the test data under "test"
    results: Callable[[Any], dict[str, Any]] = _no_results


def rates_in_words(rates: Mapping[str, float]) -> str:
    """Return default learning rates by optimizer for a help text."""
    return ", ".join(f"{rate} for {name}" for name, rate in rates.items())


def learning_rate(options: argparse.Namespace, optimizer: str, rates: Mapping[str, float]) -> float:
    """Return the learning rate that is given, or else the default of the optimizer."""
    rate = options.learning_rate or rates.get(optimizer)
    if rate is None:
        raise ValueError(
            f"--learning-rate must be given with --optimizer {optimizer}, which has no default."
        )
    return float(rate)
