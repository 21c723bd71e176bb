"""``--sampler auto`` and ``--num-sampled auto``: a pilot chooses, before the run begins."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from samplesoft._progress import progress_bar, progress_line, progress_phase
from samplesoft.commands.options import flag, given, say, show_part
from samplesoft.commands.train_options import Model, make_settings, make_task, refuse
from samplesoft.losses.registry import LOSSES
from samplesoft.training.retrieval import RetrievalSettings, RetrievalTask
from samplesoft.training.settings import Settings
from samplesoft.training.trainer import Run
from samplesoft.tuning.pilot import PILOT, check_auto, choose, is_auto, pilot_steps

_OF_A_SAMPLER = ("nu", "num_features", "update_every")


def make_chosen_task(
    model: Model, options: argparse.Namespace, settings: Settings
) -> RetrievalTask:
    """Make the task of a model; options that are auto are chosen first, and then have a value.

    ``options.auto`` says which ones these are, and ``options.verdict`` why they have it.
    """
    names = [name for name in ("sampler", "num_sampled") if is_auto(getattr(options, name))]
    if not names:
        return _prepared(model, options)
    if options.resume:
        raise ValueError(
            f"{flag(names[0])} auto is for a new run, and the one in {str(options.out)!r} was not "
            "begun with it; leave it out, or train anew in another folder."
        )
    _check(options, names)
    wanted = {name: getattr(options, name) for name in PILOT}
    of_sampler = {n: getattr(options, n) for n in _OF_A_SAMPLER if getattr(options, n) is not None}
    # the pilot takes quick draws whatever is asked for: it only has to move the vectors
    _set(options, PILOT | dict.fromkeys(_OF_A_SAMPLER))
    task = _prepared(model, options)
    _train(task, settings)
    loss = wanted["loss"] or RetrievalSettings.loss
    # one set for a batch cannot leave out the label of each example
    shared = False if LOSSES[loss].excludes_label else wanted["shared"]
    choice = choose(
        task.tune_inputs(),
        loss,
        wanted["sampler"] or RetrievalSettings.sampler,
        wanted["num_sampled"] or RetrievalSettings.num_sampled,
        shared=shared,
        progress=True,
        rng=options.seed or 0,
        **{name: value for name, value in of_sampler.items() if name != "update_every"},
    )
    chosen = choice.settings | (of_sampler if choice.settings["sampler"] else {})
    _set(options, chosen)
    options.auto, options.verdict = names, choice.verdict
    line = f"{' and '.join(map(flag, names))} auto: {choice.verdict}"
    say(line)
    show_part(line)
    with progress_phase(True, "preparing the run"):
        return task.with_settings(**chosen)


def _prepared(model: Model, options: argparse.Namespace) -> RetrievalTask:
    """Make a task of the options as they are, and say so."""
    with progress_phase(True, f"preparing {options.out}"):
        return make_task(model, options)


def _check(options: argparse.Namespace, names: list[str]) -> None:
    """Raise ValueError for options that do not go together, before any work."""
    values = given(options, RetrievalSettings)
    if options.loss and not LOSSES[options.loss].draws:
        make_settings(values)  # which refuses options of draws
    if options.no_embedding:
        raise ValueError(
            f"{flag(names[0])} auto does not go with --no-embedding, which takes draws that do not "
            "look at inputs; name them, such as --sampler unigram --num-sampled 300."
        )
    check_auto(options.sampler, options.loss)
    refuse(values, ["num_certain"], f"{flag(names[0])} auto, which measures draws alone")
    if "sampler" in names:
        refuse(values, _OF_A_SAMPLER, "--sampler auto")
    # checked with the pilot's values in place of auto
    make_settings({**values, **{name: PILOT[name] for name in names}})


def _set(options: argparse.Namespace, values: dict[str, Any]) -> None:
    """Set options of a softmax layer; where nothing is drawn, there are none of draws."""
    for name, value in values.items():
        setattr(options, name, value)
    if options.sampler is None:
        options.shared = None


def _train(task: RetrievalTask, settings: Settings) -> None:
    """Train a pilot for some steps."""
    run, steps = Run(task, settings, Path()), pilot_steps(settings.epochs * task.num_steps)
    progress_line(True, f"pilot of {steps:,} steps, by which the sampler is chosen")
    with progress_bar(True, desc="pilot", total=steps, unit="step") as bar:
        for _ in range(steps):
            run.step(run.at.index)
            bar.update()
            if run.at.index == task.num_steps:
                run.at.end_epoch(math.inf)
