"""Training: the loop over epochs and steps, runs with checkpoints and a log, and tasks to train."""

from samplesoft.training.checkpoint import (
    Checkpoint,
    read_checkpoint,
    read_shards,
    write_checkpoint,
    write_shards,
)
from samplesoft.training.loop import Callback, Progress, fit
from samplesoft.training.resolved import Resolved
from samplesoft.training.retrieval import RetrievalSettings, RetrievalTask
from samplesoft.training.run_folder import (
    BEST,
    CHECKPOINT,
    LOG,
    load_parameters,
    read_log,
    require_free,
    require_run,
    train,
)
from samplesoft.training.schedules import SCHEDULES, make_schedule
from samplesoft.training.settings import Settings
from samplesoft.training.task import Task
from samplesoft.training.trained import (
    TrainedLinearSoftmax,
    TrainedSoftmax,
    read_examples,
    read_linear_softmax,
)

__all__ = [
    "BEST",
    "CHECKPOINT",
    "LOG",
    "SCHEDULES",
    "Callback",
    "Checkpoint",
    "Progress",
    "Resolved",
    "RetrievalSettings",
    "RetrievalTask",
    "Settings",
    "Task",
    "TrainedLinearSoftmax",
    "TrainedSoftmax",
    "fit",
    "load_parameters",
    "make_schedule",
    "read_checkpoint",
    "read_examples",
    "read_linear_softmax",
    "read_log",
    "read_shards",
    "require_free",
    "require_run",
    "train",
    "write_checkpoint",
    "write_shards",
]
