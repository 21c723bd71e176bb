"""``samplesoft train``: train a model that ranks classes, and report on its epochs."""

from __future__ import annotations

import argparse
import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from samplesoft._executors import open_cluster
from samplesoft._files import read_json, unprefixed
from samplesoft._interrupts import set_interrupt_advice
from samplesoft._progress import TimeEstimate, progress_phase
from samplesoft.commands.files import InputFile, check_files, write_json
from samplesoft.commands.options import show_part, show_report
from samplesoft.commands.train_options import (
    DATA,
    MODELS,
    OPTIONS,
    add_model,
    add_run,
    make_task,
    training_settings,
)
from samplesoft.reports.parts import Column, Table
from samplesoft.training import (
    BEST,
    CHECKPOINT,
    LOG,
    Progress,
    load_parameters,
    read_log,
    require_free,
    require_run,
)
from samplesoft.training.lock import locked
from samplesoft.training.run_folder import train_in

_NOT_SAVED = ("command", "run", "out", "resume", "json", "scheduler")
_MAY_CHANGE = ("epochs", "patience", "train", "test")  # training refuses other changes
# what the report shows of a line of the log
_OF_AN_EPOCH = {"epoch", "train_loss", "validation_loss", "examples_per_second"}


def add(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes, and a parser for each model."""
    parser.description = (
        "Train a model and evaluate it by the full softmax after each epoch. A run "
        "that was interrupted or killed continues with --resume, to exactly the same parameters."
    )
    models = parser.add_subparsers(dest="model", required=True, metavar="model")
    for name, model in MODELS.items():
        one = models.add_parser(
            name,
            help=model.help,
            description=model.description,
            epilog="Exit status: 0 if training was completed, 1 if it diverged, 2 for bad usage or "
            "bad input, 130 if it was interrupted.",
        )
        add_model(one, model)
        add_run(one)
        one.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run ``samplesoft train``.

    Divergence raises FloatingPointError. An interrupt raises KeyboardInterrupt, whose message says
    how to continue.
    """
    out = Path(options.out)
    set_interrupt_advice(lambda: _how_to_continue(options))
    if options.resume:
        require_run(out)
    # before the data are read, which may take minutes: an address that does not answer is refused
    # at once
    with open_cluster(options.scheduler) as workers, ExitStack() as lock:
        try:
            return _run(options, out, workers, lock)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_how_to_continue(options)) from None
        except RuntimeError as error:  # of a layer that has lost a worker
            raise ChildProcessError(str(error)) from error


def _run(options: argparse.Namespace, out: Path, workers: Any, lock: ExitStack) -> int:
    """Train and report in ``--out``, which `lock` keeps from others."""
    is_new = not out.exists()
    if not is_new:  # at once, too: another process that trains there
        lock.enter_context(locked(out))
    saved = _saved_options(options, out / OPTIONS) if options.resume else {}
    for name, value in saved.items():
        if getattr(options, name, None) is None:
            setattr(options, name, InputFile(value) if name in DATA else value)
    if saved:
        check_files(options)
    if not options.resume:
        require_free(out)
    model = MODELS[options.model]
    settings = training_settings(options)
    with progress_phase(True, f"preparing {options.out}"):
        task = make_task(model, options, workers)
    if is_new:  # only now: what is refused leaves no folder
        lock.enter_context(locked(out))
        require_free(out)
    values = {
        name: value
        for name, value in vars(options).items()
        if value is not None and name not in _NOT_SAVED
    }
    if saved:  # as the run was begun, but for what may change
        values = saved | {name: values[name] for name in _MAY_CHANGE if name in values}
    if saved or not options.resume:  # a run that was begun from Python gets no options
        write_json(out / OPTIONS, values)
    line = f"{options.model} in {options.out}: {task.num_steps:,} steps in an epoch"
    done = 0
    if options.resume and (out / LOG).exists():
        done = len(_epochs(read_log(out / LOG)))
        line += f", goes on in epoch {done + 1}"
    show_part(line)
    show_part(f"{task.resolved(settings)}")
    # times that are left are told by the epochs of this process
    pace = TimeEstimate(settings.epochs, done)

    def show_epoch(line: dict[str, Any]) -> None:
        show_part(f"{_one_line(line, model.headline)}, {pace.describe(line['epoch'])}")

    at = train_in(out, task, settings, None, options.resume, show_epoch)
    records = _epochs(read_log(out / LOG))
    # the report is on the best epoch, and the parameters in memory are those of the last
    if not (out / BEST).exists():
        raise FileNotFoundError(
            f"{BEST}, with the parameters of the best epoch, is missing from {str(out)!r}; copy "
            f"{CHECKPOINT} to that name to use the parameters of the last epoch instead."
        )
    load_parameters(out / BEST, task)
    best = next((line for line in records if line["epoch"] == at.best_epoch), {})
    results: dict[str, Any] = {
        "config": task.config(),
        "epochs": records,
        "best_epoch": at.best_epoch,
        # the checkpoint knows its loss, and the log, if it is there, the other figures
        "validation": {"loss": at.best_loss, **unprefixed("validation", best, "_")},
        "num_unlabeled": task.num_unlabeled,
    }
    if task.test is not None:
        with progress_phase(True, "evaluating the best epoch"):
            results["test"] = task.evaluate(*task.test)
    if options.json:  # before anything is printed, which may fail
        write_json(options.json, results)
    show_report(_report(results, at, model.headline))
    return 0


def _saved_options(options: argparse.Namespace, path: Path) -> dict[str, Any]:
    """Return the options with which the run in ``--out`` was begun, which a resumed one keeps."""
    try:
        saved = dict(read_json(path.read_bytes())) if path.exists() else {}
    except (TypeError, ValueError):
        raise ValueError(
            f"{str(path)!r} must hold the options of the run as JSON, but does not; delete it, and "
            "give all options of the run with --resume."
        ) from None
    if saved.get("model", options.model) != options.model:
        raise ValueError(
            f"{str(options.out)!r} holds a run of samplesoft train {saved['model']}, but train "
            f"{options.model} was asked to resume it; correct the model or --out."
        )
    return saved


def _epochs(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines at the ends of epochs."""
    return [line for line in log if _OF_AN_EPOCH <= line.keys()]


def _how_to_continue(options: argparse.Namespace) -> str:
    out = Path(options.out)
    if not (out / CHECKPOINT).exists():
        return "interrupted before the first checkpoint; start again"
    where = f" --scheduler {options.scheduler}" if options.scheduler else ""
    return f"interrupted; continue with --out {out} --resume{where}"


def _columns(headline: str) -> list[Column]:
    return [
        Column("epoch", lambda line: line["epoch"]),
        Column("train loss", lambda line: line["train_loss"], ".4f"),
        Column("validation loss", lambda line: line["validation_loss"], ".4f"),
        Column(_words(headline), lambda line: line.get(f"validation_{headline}"), ".4f"),
        Column("examples/s", lambda line: line["examples_per_second"], ",.0f"),
    ]


def _one_line(line: dict[str, Any], headline: str) -> str:
    """Return an epoch's line of the log as it is printed, without its speed."""
    epoch, *others, _ = ((column.title, column.written(line)) for column in _columns(headline))
    return f"{' '.join(epoch)}: {', '.join(f'{title} {value}' for title, value in others)}"


def _words(name: str) -> str:
    """Return the name of a figure as it is printed."""
    what, _, k = name.partition("_at_")
    return f"{what}@{k}" if k else what


def _report(results: dict[str, Any], at: Progress, headline: str) -> str:
    rows = results["epochs"]
    best = results["validation"]
    test = results.get("test", {})
    reached = f", test {test[headline]:.4f}" if test else ""
    lists = ", ".join(f"{_words(name)} {test[name]:.4f}" for name in test if name != "loss")
    return "\n".join(
        [
            Table(rows, _columns(headline), "Epochs").text()
            if rows
            else "No table: the log of the epochs is missing.",
            "",
            f"Lowest validation loss in epoch {at.best_epoch}: "
            f"validation {_words(headline)} {best.get(headline, math.nan):.4f}{reached}.",
            *([f"Test: {lists}."] if lists else []),
            f"{at.step:,} steps in {at.seconds:.1f} s.",
            "Losses are in nats: in training the one that was minimised, in validation that of all",
            "classes.",
            "",
        ]
    )
