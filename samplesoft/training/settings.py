"""How to train, and how far training has come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from samplesoft._validation import as_choice, as_count, as_positive
from samplesoft.models.optimizers import OPTIMIZERS, make_optimizer
from samplesoft.training.checkpoint import plain


@dataclass(frozen=True)
class Settings:
    """How to train.

    Parameters
    ----------
    epochs : int
        Passes over the training data; a run may be resumed with more.
    optimizer : str
        What takes the steps; see `samplesoft.models.OPTIMIZERS`.
    learning_rate : float
        Of the optimizer; in an epoch it is multiplied by the task's `Task.rate_factor`.
    optimizer_options : mapping
        Further arguments of `make_optimizer`, in JSON.
    patience : int or None
        Stop after so many epochs without a lower validation loss; None goes on to the end.
    checkpoint_every : int or None
        Write a checkpoint after so many steps of an epoch too, and not only at its end.
    log_every : int
        Steps of an epoch from one line of the log to the next.

    Raises
    ------
    TypeError, ValueError
        If a value is malformed.

    Examples
    --------
    >>> Settings(epochs=3, optimizer="momentum", optimizer_options={"momentum": 0.5}).config()
    {'optimizer': 'momentum', 'learning_rate': 1.0, 'optimizer_options': {'momentum': 0.5}, ...}
    """

    epochs: int
    optimizer: str = "sgd"
    learning_rate: float = 1.0
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)
    patience: int | None = None
    checkpoint_every: int | None = None
    log_every: int = 100

    def __post_init__(self) -> None:
        as_count("epochs", self.epochs)
        as_positive("learning_rate", self.learning_rate)
        as_choice("optimizer", self.optimizer, OPTIMIZERS)
        # made and thrown away: wrong options are found here, and not after the data are read
        try:
            make_optimizer(self.optimizer, self.learning_rate, **self.optimizer_options)
        except (TypeError, ValueError) as error:
            raise type(error)(f"`optimizer_options` must fit {self.optimizer}: {error}") from None
        as_count("log_every", self.log_every)
        for name in ("patience", "checkpoint_every"):
            if getattr(self, name) is not None:
                as_count(name, getattr(self, name))

    def config(self) -> dict[str, Any]:
        """Return the settings that decide the numbers of a run: all but when it stops."""
        config = plain(asdict(self))
        # a run may go on for longer, or stop earlier, and is the same run
        del config["epochs"], config["patience"]
        return config


@dataclass
class Progress:
    """How far a run has come; part of each checkpoint.

    Attributes
    ----------
    epoch, index : int
        Whole epochs done, and steps done in the one that is going on.
    step : int
        Steps done since the run began.
    loss_sum, epoch_seconds : float
        Sums over those of the epoch: losses, times.
    seconds : float
        Time of all steps, without validation and checkpoints.
    best_epoch : int or None
        The epoch with the lowest validation loss, counted from 1.
    best_loss : float or None
        That loss.
    """

    epoch: int = 0
    index: int = 0
    step: int = 0
    loss_sum: float = 0.0
    epoch_seconds: float = 0.0
    seconds: float = 0.0
    best_epoch: int | None = None
    best_loss: float | None = None

    @property
    def mean_loss(self) -> float:
        """Mean loss of the steps of the epoch."""
        return self.loss_sum / self.index

    def add(self, loss: float, seconds: float) -> None:
        """Count a step."""
        self.index += 1
        self.step += 1
        self.loss_sum += loss
        self.epoch_seconds += seconds
        self.seconds += seconds

    def end_epoch(self, loss: float) -> bool:
        """Count an epoch with its validation loss; return whether it is the best."""
        self.epoch += 1
        self.index = 0
        self.loss_sum = self.epoch_seconds = 0.0
        # of equal losses the first, so that patience ends a run that stands still
        better = self.best_loss is None or loss < self.best_loss
        if better:
            self.best_epoch, self.best_loss = self.epoch, loss
        return better

    def is_over(self, settings: Settings) -> bool:
        """Return whether all epochs are done, or none has been better for `patience` epochs."""
        # the validation loss before the first epoch does not count
        stale = self.epoch - (self.best_epoch or 0)
        return self.epoch >= settings.epochs or (
            settings.patience is not None and stale >= settings.patience
        )
