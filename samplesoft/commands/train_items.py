"""``samplesoft train items``: items that users may want, from those that they have taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samplesoft.commands.retrieval import retrieval_model
from samplesoft.training.retrieval import RetrievalSettings

if TYPE_CHECKING:
    from samplesoft.training.retrieval import RetrievalTask


def _make_task(files: dict[str, str], settings: RetrievalSettings) -> RetrievalTask:
    from samplesoft.data.interactions import load_interactions, padded
    from samplesoft.training.retrieval import RetrievalTask

    found = {name: load_interactions(path) for name, path in files.items()}
    shape = tuple(max(matrix.shape[axis] for matrix in found.values()) for axis in range(2))
    taken = padded(found["train"], shape)
    task = RetrievalTask(taken, taken, settings, leave_out=True)
    if "test" in found:
        task.test = taken, padded(found["test"], shape)
    return task


MODEL = retrieval_model(
    help="further items for users, from those that they have taken",
    description="Train a linear embedding of the items that a user has taken and a softmax over "
    "all items, to predict what else the user may take. Items of --train do not appear in the "
    "predictions for their user.",
    headline="recall_at_20",
    defaults=RetrievalSettings(dropout=0.5),
    form="lines 'user item item ...'",
    make_task=_make_task,
)
