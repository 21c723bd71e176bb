"""``samplesoft predict``: predict the best classes for the inputs of a file."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, TextIO

from samplesoft._files import atomic_write
from samplesoft._jit import chunks
from samplesoft._progress import progress_bar
from samplesoft.commands.files import InputFile, OutputFile
from samplesoft.commands.options import positive_int, suppress_closed_pipe
from samplesoft.commands.source import read_inputs

_INPUTS_PER_CHUNK = 1024


def add(parser: argparse.ArgumentParser) -> None:
    """Add description and options of the command to its parser."""
    parser.description = (
        "Predict the best classes with a model written by samplesoft train xc or items, or by "
        "SampledSoftmaxClassifier.save. For each input, print a line of JSON with its row (or "
        "user), the best classes, and their scores, which are logits."
    )
    parser.epilog = "Exit status: 0 for success, 2 for bad usage or bad input, 130 if interrupted."

    parser.add_argument(
        "--model",
        required=True,
        type=InputFile,
        metavar="FILE",
        help="the trained model, such as run/best.npz",
    )

    parser.add_argument(
        "--input",
        required=True,
        type=InputFile,
        metavar="FILE",
        help="inputs in the format of the training data, also .gz, .xz, .bz2; labels are ignored",
    )

    parser.add_argument(
        "--k",
        type=positive_int,
        metavar="K",
        help="number of classes for each input (default 5, or all classes if there are fewer)",
    )

    parser.add_argument(
        "--output",
        type=OutputFile,
        metavar="FILE",
        help="file for the predictions (default: stdout)",
    )

    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run ``samplesoft predict``: write the best classes for each input, and return 0."""
    from samplesoft.training.trained import read_linear_softmax

    trained = read_linear_softmax(options.model)
    num_classes = trained.model.num_classes
    k = options.k or min(5, num_classes)
    if k > num_classes:
        raise ValueError(
            f"--k must be at most {num_classes:,}, the classes of the model, got {options.k}."
        )

    inputs, _ = read_inputs(options.input, trained)
    if options.output:  # the file appears only when it is complete
        with (
            atomic_write(options.output) as draft,
            draft.open("w", encoding="utf-8", newline="\n") as stream,
        ):
            _write_predictions(stream, inputs, trained, k)
    elif sys.stdout is not None:  # lines are printed as they are computed
        with suppress_closed_pipe():
            _write_predictions(sys.stdout, inputs, trained, k)

    return 0


def _write_predictions(stream: TextIO, inputs: Any, trained: Any, k: int) -> None:
    name = "user" if trained.leave_out else "row"

    with progress_bar(True, total=inputs.shape[0], unit="input", desc="predict") as bar:
        for chunk in chunks(inputs.shape[0], _INPUTS_PER_CHUNK):
            ids, scores = trained.top_k(inputs[chunk], k)
            labels = ids if trained.classes is None else trained.classes[ids]

            for row in range(len(ids)):
                if trained.leave_out and not inputs[[chunk.start + row]].nnz:
                    # skip a user without items, who has no line in the file
                    continue

                is_candidate = scores[row] > -float("inf")  # items left out have the score -inf
                line = {
                    name: chunk.start + row,
                    "classes": labels[row][is_candidate].tolist(),
                    "scores": [round(float(score), 6) for score in scores[row][is_candidate]],
                }
                stream.write(json.dumps(line, default=str) + "\n")

            bar.update(len(ids))
