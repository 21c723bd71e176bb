"""``"auto"`` in the parameters of the classifier: a pilot on the data of `fit`."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, count, islice
from typing import Any

from samplesoft._progress import progress_bar, progress_line
from samplesoft._validation import FloatArray, IntArray
from samplesoft.losses.registry import LOSSES
from samplesoft.sklearn.label_codec import LabelCodec
from samplesoft.sklearn.learner import Learner
from samplesoft.sklearn.parameters import learning_rate, model_settings, num_draws
from samplesoft.training.task import NUM_EXAMPLES
from samplesoft.tuning.pilot import PILOT, choose, pilot_steps


def auto_choice(
    classifier: Any,
    X: Any,
    codec: LabelCodec,
    codes: Any,
    weights: FloatArray,
    rows: IntArray,
    counts: FloatArray,
    seed: int,
) -> dict[str, Any]:
    """Return loss, sampler, number of draws and `shared` for some rows, and the verdict in words.

    The pilot is a learner of its own.
    """
    settings = model_settings(classifier, codec.multilabel, len(codec.classes), PILOT)
    settings = replace(settings, **PILOT)
    learner = Learner(codec, X.shape[1], settings, counts, X.dtype, seed, classifier.optimizer)
    size, verbose = classifier.batch_size, bool(classifier.verbose)
    steps = pilot_steps(classifier.max_iter * -(-len(rows) // size))
    progress_line(verbose, f"pilot of {steps:,} steps, by which the sampler is chosen")
    batches = chain.from_iterable(learner.next_batches(rows, size) for _ in count())
    with progress_bar(verbose, total=steps, unit="step", desc="pilot") as bar:
        for batch in islice(batches, steps):
            learner.step(X[batch], codes[batch], weights[batch], learning_rate(classifier, 1.0))
            bar.update()
    some = learner.next_batches(rows, max(size, NUM_EXAMPLES))[0]
    loss = classifier.loss
    choice = choose(
        learner.tune_inputs(X[some], codes[some]),
        LOSSES[loss].masked or loss if codec.multilabel else loss,
        classifier.sampler,
        num_draws(classifier),
        shared=classifier.shared,
        nu=classifier.nu,
        num_features=classifier.num_features,
        batch=size,
        progress=verbose,
        rng=seed,
    )
    progress_line(verbose, f"auto: {choice.verdict}")
    return {**choice.settings, "verdict": choice.verdict}
