"""``samplesoft train``: train a model that ranks classes, and print a report on its epochs."""

from __future__ import annotations

import argparse
import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from samplesoft._executors import open_dask_client
from samplesoft._files import read_json, without_prefix
from samplesoft._interrupts import set_interrupt_advice
from samplesoft._progress import TimeEstimate, progress_phase
from samplesoft.commands.files import InputFile, check_files, write_json
from samplesoft.commands.options import show_list_item, show_report
from samplesoft.commands.train_options import (
    DATA,
    MODELS,
    OPTIONS,
    add_model_options,
    add_run_options,
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
from samplesoft.training.run_folder import train_in_locked_folder

_NOT_SAVED = ("command", "run", "out", "resume", "json", "scheduler")
_MAY_CHANGE = ("epochs", "patience", "train", "test")  # options that may change with --resume
# keys that only the log line at the end of an epoch has
_EPOCH_KEYS = {"epoch", "train_loss", "validation_loss", "examples_per_second"}


def add(parser: argparse.ArgumentParser) -> None:
    """Add description and options of the command to its parser, and a subparser per model."""
    parser.description = (
        "Train a model, and evaluate it by the full softmax after each epoch. A run that was "
        "interrupted or killed can be continued with --resume, and ends with the same parameters."
    )
    models = parser.add_subparsers(dest="model", required=True, metavar="model")

    for name, model in MODELS.items():
        model_parser = models.add_parser(
            name,
            help=model.help,
            description=model.description,
            epilog="Exit status: 0 if training was completed, 1 if it diverged, 2 for bad usage or "
            "bad input, 130 if it was interrupted.",
        )
        add_model_options(model_parser, model)
        add_run_options(model_parser)
        model_parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run ``samplesoft train``.

    Raises FloatingPointError if training diverges, and KeyboardInterrupt, with advice on how to
    continue, if it is interrupted.
    """
    out = Path(options.out)
    set_interrupt_advice(lambda: _interrupt_advice(options))
    if options.resume:
        require_run(out)

    # connect to the cluster before reading the data, which may take minutes, so that a wrong
    # address is reported at once
    with open_dask_client(options.scheduler) as workers, ExitStack() as lock:
        try:
            return _train_and_report(options, out, workers, lock)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_interrupt_advice(options)) from None
        except RuntimeError as error:  # raised if a worker of the sharded layer is lost
            raise ChildProcessError(str(error)) from error


def _train_and_report(options: argparse.Namespace, out: Path, workers: Any, lock: ExitStack) -> int:
    """Train in the folder `out`, which `lock` reserves for this process, and print a report."""
    is_new = not out.exists()
    # lock an existing folder first: this fails at once if another process trains in it
    if not is_new:
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

    # a new folder is created and locked only now, so that invalid options create no folder
    if is_new:
        lock.enter_context(locked(out))
        require_free(out)

    saved_values = {
        name: value
        for name, value in vars(options).items()
        if value is not None and name not in _NOT_SAVED
    }

    # a resumed run keeps its saved options, except for those that may change
    if saved:
        changes = {name: saved_values[name] for name in _MAY_CHANGE if name in saved_values}
        saved_values = saved | changes

    # if a run that Python started is resumed, it has no saved options, and none are written
    if saved or not options.resume:
        write_json(out / OPTIONS, saved_values)

    line = f"{options.model} in {options.out}: {task.num_steps:,} steps in an epoch"
    done = 0
    if options.resume and (out / LOG).exists():
        done = len(_epoch_lines(read_log(out / LOG)))
        line += f", goes on in epoch {done + 1}"

    show_list_item(line)
    show_list_item(f"{task.resolved(settings)}")

    # estimate the remaining time only from epochs of this process, not from those before --resume
    estimate = TimeEstimate(settings.epochs, done)

    def show_epoch(line: dict[str, Any]) -> None:
        show_list_item(
            f"{_format_epoch(line, model.headline_metric)}, {estimate.describe(line['epoch'])}"
        )

    progress = train_in_locked_folder(out, task, settings, None, options.resume, show_epoch)
    records = _epoch_lines(read_log(out / LOG))

    # load the parameters of the best epoch for the report; in memory are those of the last epoch
    if not (out / BEST).exists():
        raise FileNotFoundError(
            f"{BEST}, with the parameters of the best epoch, is missing from {str(out)!r}; copy "
            f"{CHECKPOINT} to that name to use the parameters of the last epoch instead."
        )

    load_parameters(out / BEST, task)
    best_record = next((line for line in records if line["epoch"] == progress.best_epoch), {})

    # metrics of the best epoch come from the log; its loss comes from the checkpoint
    metrics = without_prefix("validation", best_record, "_")
    results: dict[str, Any] = {
        "config": task.config(),
        "epochs": records,
        "best_epoch": progress.best_epoch,
        "validation": {"loss": progress.best_loss, **metrics},
        "num_unlabeled": task.num_unlabeled,
    }

    if task.test is not None:
        with progress_phase(True, "evaluating the best epoch"):
            results["test"] = task.evaluate(*task.test)

    if options.json:  # write the file first, because printing may fail
        write_json(options.json, results)

    show_report(_format_report(results, progress, model.headline_metric))
    return 0


def _saved_options(options: argparse.Namespace, path: Path) -> dict[str, Any]:
    """Return the options saved in the file `path`, which a resumed run keeps; {} without a file."""
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


def _epoch_lines(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the log lines at the ends of epochs."""
    return [line for line in log if _EPOCH_KEYS <= line.keys()]


def _interrupt_advice(options: argparse.Namespace) -> str:
    out = Path(options.out)
    if not (out / CHECKPOINT).exists():
        return "interrupted before the first checkpoint; start again"
    scheduler_option = f" --scheduler {options.scheduler}" if options.scheduler else ""
    return f"interrupted; continue with --out {out} --resume{scheduler_option}"


def _epoch_columns(headline_metric: str) -> list[Column]:
    return [
        Column("epoch", lambda line: line["epoch"]),
        Column("train loss", lambda line: line["train_loss"], ".4f"),
        Column("validation loss", lambda line: line["validation_loss"], ".4f"),
        Column(
            _metric_title(headline_metric),
            lambda line: line.get(f"validation_{headline_metric}"),
            ".4f",
        ),
        Column("examples/s", lambda line: line["examples_per_second"], ",.0f"),
    ]


def _format_epoch(line: dict[str, Any], headline_metric: str) -> str:
    """Return the log line of an epoch as a text to print, without examples per second."""
    epoch, *values, _ = (
        (column.title, column.cell_text(line)) for column in _epoch_columns(headline_metric)
    )
    return f"{' '.join(epoch)}: {', '.join(f'{title} {value}' for title, value in values)}"


def _metric_title(name: str) -> str:
    """Return the printed name of a metric, such as ``recall@20`` for ``recall_at_20``."""
    metric, _, k = name.partition("_at_")
    return f"{metric}@{k}" if k else metric


def _format_report(results: dict[str, Any], progress: Progress, headline_metric: str) -> str:
    rows = results["epochs"]
    best = results["validation"]
    test = results.get("test", {})
    test_text = f", test {test[headline_metric]:.4f}" if test else ""

    test_metrics = ", ".join(
        f"{_metric_title(name)} {test[name]:.4f}" for name in test if name != "loss"
    )

    table_text = "No table: the log of the epochs is missing."
    if rows:
        table_text = Table(rows, _epoch_columns(headline_metric), "Epochs").text()

    return "\n".join(
        [
            table_text,
            "",
            f"Lowest validation loss in epoch {progress.best_epoch}: "
            f"validation {_metric_title(headline_metric)} "
            f"{best.get(headline_metric, math.nan):.4f}{test_text}.",
            *([f"Test: {test_metrics}."] if test_metrics else []),
            f"{progress.step:,} steps in {progress.seconds:.1f} s.",
            "Losses are in nats: in training the one that was minimised, in validation that of all",
            "classes.",
            "",
        ]
    )
