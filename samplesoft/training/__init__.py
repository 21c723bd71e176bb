"""Training: a loop over epochs and steps, its checkpoints and log, and tasks for it."""

from samplesoft.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from samplesoft.training.examples import TrainedSoftmax, read_examples
from samplesoft.training.language_model import LanguageModelTask
from samplesoft.training.language_settings import LanguageModelSettings
from samplesoft.training.linear_model import TrainedLinearSoftmax, read_linear_softmax
from samplesoft.training.log import read_log
from samplesoft.training.retrieval import RetrievalSettings, RetrievalTask
from samplesoft.training.run import BEST, CHECKPOINT, LOG
from samplesoft.training.settings import Progress, Settings
from samplesoft.training.task import Task
from samplesoft.training.toy import ToySettings, ToyTask
from samplesoft.training.trainer import load_parameters, require_free, require_run, train

__all__ = [
    "BEST",
    "CHECKPOINT",
    "LOG",
    "Checkpoint",
    "LanguageModelSettings",
    "LanguageModelTask",
    "Progress",
    "RetrievalSettings",
    "RetrievalTask",
    "Settings",
    "Task",
    "ToySettings",
    "ToyTask",
    "TrainedLinearSoftmax",
    "TrainedSoftmax",
    "load_parameters",
    "read_checkpoint",
    "read_examples",
    "read_linear_softmax",
    "read_log",
    "require_free",
    "require_run",
    "train",
    "write_checkpoint",
]
