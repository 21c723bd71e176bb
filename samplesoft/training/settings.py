"""Settings of a training run in a folder."""

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
    """Settings of a training run.

    Parameters
    ----------
    epochs : int
        Number of passes over the training data; may be larger when a run is resumed.
    optimizer : str
        A key of `samplesoft.optimizers.OPTIMIZERS`.
    learning_rate : float
        Base rate of the optimizer, before the schedule.
    optimizer_options : mapping
        Further keyword arguments of `make_optimizer`, as values that JSON can store.
    schedule : str
        A key of `samplesoft.training.SCHEDULES`. Any but ``"constant"`` depends on the number of
        epochs, which must then be the same when a run is resumed.
    warmup_steps : int
        Length of the linear warm-up, in steps.
    patience : int or None
        Stop after this many epochs without a lower validation loss; None never stops early.
    checkpoint_every : int or None
        Steps between checkpoints within an epoch; None writes one at the end of each epoch only.
    log_every : int
        Steps between lines of the log within an epoch.

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

        # make an optimizer only to validate its options, before the data are read
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
        """Return the settings that must be equal when a run is resumed.

        These are all settings except those that only determine when the run ends.
        """
        config = plain(asdict(self))
        # `patience` only determines when the run ends, as `epochs` does if the schedule ignores it
        del config["patience"]
        if self.schedule in ENDLESS:
            del config["epochs"]

        # omit defaults, because older checkpoints do not have these keys
        for name in ("schedule", "warmup_steps"):
            if config[name] == getattr(Settings, name):
                del config[name]
        return config
