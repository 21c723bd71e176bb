"""How to train in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from samplesoft._validation import as_choice, as_count, as_positive
from samplesoft.optimizers.registry import OPTIMIZERS, make_optimizer
from samplesoft.training.checkpoint import plain
from samplesoft.training.schedules import ENDLESS, SCHEDULES


@dataclass(frozen=True)
class Settings:
    """How to train.

    Parameters
    ----------
    epochs : int
        Passes over the training data; a run may be resumed with more.
    optimizer : str
        What takes the steps; see `samplesoft.optimizers.OPTIMIZERS`.
    learning_rate : float
        Of the optimizer, before the schedule.
    optimizer_options : mapping
        Further arguments of `make_optimizer`, in JSON.
    schedule : str
        How the learning rate changes: a key of `samplesoft.training.SCHEDULES`. One that decays
        depends on the number of epochs, with which the run must then be resumed.
    warmup_steps : int
        Steps at the beginning in which it rises.
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
    schedule: str = "constant"
    warmup_steps: int = 0
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
        as_choice("schedule", self.schedule, SCHEDULES)
        as_count("warmup_steps", self.warmup_steps, 0)
        as_count("log_every", self.log_every)
        for name in ("patience", "checkpoint_every"):
            if getattr(self, name) is not None:
                as_count(name, getattr(self, name))

    def config(self) -> dict[str, Any]:
        """Return the settings that decide the numbers of a run: all but when it stops."""
        config = plain(asdict(self))
        # a run may go on for longer, or stop earlier, and is the same run
        del config["patience"]
        if self.schedule in ENDLESS:
            del config["epochs"]
        # left out where it is the default: older checkpoints do not name it
        for name in ("schedule", "warmup_steps"):
            if config[name] == getattr(Settings, name):
                del config[name]
        return config
