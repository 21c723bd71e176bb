"""The file of ``--input``: examples in the format of the training data of a linear softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from samplesoft.data.xml_repository import SparseExamples
    from samplesoft.training.trained import TrainedLinearSoftmax


def read_inputs(path: str, trained: TrainedLinearSoftmax) -> SparseExamples:
    """Read inputs (N, v) and labels; of items, which a model leaves out, both are the same."""
    from samplesoft.data.interactions import load_interactions, padded
    from samplesoft.data.xml_repository import SparseExamples, load_xml_repository

    width = trained.num_inputs
    if trained.leave_out:
        taken = load_interactions(path)
        taken = padded(taken, (taken.shape[0], max(taken.shape[1], width)))
        found = SparseExamples(taken, taken)
    else:
        found = load_xml_repository(path)
    if found.inputs.shape[1] != width:
        raise ValueError(
            f"--input must have the {width:,} columns that the model was trained on, got "
            f"{found.inputs.shape[1]:,}."
        )
    return found
