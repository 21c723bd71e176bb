"""``samplesoft train xc``: extreme classification."""

from __future__ import annotations

from typing import TYPE_CHECKING

from samplesoft.commands.options import say
from samplesoft.commands.retrieval import retrieval_model
from samplesoft.training.retrieval import RetrievalSettings

if TYPE_CHECKING:
    from samplesoft.training.retrieval import RetrievalTask


def _make_task(files: dict[str, str], settings: RetrievalSettings) -> RetrievalTask:
    from samplesoft.data.xml_repository import load_xml_repository
    from samplesoft.training.retrieval import RetrievalTask

    found = {name: load_xml_repository(path) for name, path in files.items()}
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


MODEL = retrieval_model(
    help="labels for sparse inputs",
    description="Train a linear embedding of sparse inputs and a softmax over very many labels, of "
    "which an example may have several. The files are text files of the extreme classification "
    "repository.",
    headline="precision_at_1",
    defaults=RetrievalSettings(),
    form="lines 'l,l f:v f:v' after one 'points features labels'",
    make_task=_make_task,
)
