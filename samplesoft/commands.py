"""What the commands do, apart from parsing their options."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samplesoft._files import write_text
from samplesoft._validation import FloatArray, IntArray
from samplesoft.data import (
    Embeddings,
    examples_from_corpus,
    load_embeddings,
    load_logits,
    read_tokens,
    stdlib_tokens,
)
from samplesoft.proposals import PAPERS, PROPOSALS, Model, dense_proposals
from samplesoft.verification.plots import FORMATS
from samplesoft.verification.verify import verify

ALPHA = 100.0  # of the quadratic sampler


@dataclass(frozen=True)
class Source:
    """Where the logits came from."""

    title: str
    logits: FloatArray
    labels: IntArray
    embeddings: Embeddings | None


def run_verify(options: argparse.Namespace) -> int:
    """Run ``samplesoft verify``.

    Parameters
    ----------
    options : argparse.Namespace
        As parsed by `samplesoft.cli`.

    Returns
    -------
    int
        0 if Monte Carlo agrees with the exact values and the finite-m bounds hold, 1 if not.

    Raises
    ------
    OSError, TypeError, ValueError
        If the input or an option is bad, or an output cannot be written.
    """
    _check_options(options)
    source = _load(options)
    vectors = source.embeddings
    model = Model(
        source.logits,
        None if vectors is None else vectors.h,
        None if vectors is None else vectors.class_embeddings,
        None if vectors is None else vectors.counts,
        tau=options.tau,
        nu=options.nu,
        num_features=options.num_features,
        alpha=ALPHA,
        seed=options.seed,
    )
    _say(f"Computing the proposals over {source.logits.shape[1]:,} classes.")
    proposals, left_out = _proposals(options.samplers, model)
    report = verify(
        source.logits,
        source.labels,
        proposals,
        options.num_sampled,
        h=model.h,
        class_embeddings=model.class_embeddings,
        tau=options.tau if vectors is not None else 1.0,
        wrt=options.wrt,
        scheme=options.scheme,
        num_trials=options.trials,
        rng=options.seed,
        progress=True,
        settings=_settings(options, source, model, left_out),
    )
    _print(report.to_markdown())
    if options.json:
        write_text(options.json, json.dumps(report.to_dict(), indent=1, allow_nan=False) + "\n")
    if options.figure:
        report.plot(options.figure)
    return 0 if report.ok else 1


def _check_options(options: argparse.Namespace) -> None:
    """Find what is wrong with the options before the long work."""
    if (options.logits is None) != (options.labels is None):
        given, absent = ("--logits", "--labels") if options.logits else ("--labels", "--logits")
        raise ValueError(f"{given} needs {absent} with it; give both, or neither.")
    for name in options.samplers or ():
        if name not in PROPOSALS:
            raise ValueError(
                f"--samplers must be of {', '.join(PROPOSALS)}; got {name!r}; correct the name."
            )
    for name in options.wrt:
        if name not in ("logits", "h", "class_embeddings"):
            raise ValueError(f"--wrt must be of logits, h, class_embeddings; got {name!r}.")
    if options.logits and "logits" not in options.wrt:
        raise ValueError(
            f"--wrt must include logits for --logits, got {','.join(options.wrt)}; h and "
            "class_embeddings need vectors: use --corpus or --embeddings."
        )
    if len(set(options.num_sampled)) < len(options.num_sampled):
        raise ValueError(
            f"--num-sampled must hold different numbers, got {options.num_sampled}; name each once."
        )
    if options.scheme == "jackknife" and min(options.num_sampled) < 2:
        raise ValueError("--num-sampled must be at least 2 for --scheme jackknife, got 1.")
    if options.trials < 2:
        raise ValueError("--trials must be at least 2, got 1; the default is 2000.")
    if options.figure and Path(options.figure).suffix.lower() not in FORMATS:
        raise ValueError(
            f"--figure must end in {', '.join(FORMATS)}; got {options.figure!r}; "
            "rename it, for example report.png."
        )
    if options.json and options.figure:
        if Path(options.json).resolve() == Path(options.figure).resolve():
            raise ValueError(
                f"--json and --figure must name two files, got {options.json!r} for both; "
                "rename one."
            )
    for option in ("json", "figure"):
        path = getattr(options, option)
        if path:
            _check_writable(f"--{option}", Path(path))


def _check_writable(option: str, path: Path) -> None:
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError(
            f"{option} must name a file in a folder that can be written to, got {str(path)!r}; "
            "create the folder first, or choose another."
        )


def _load(options: argparse.Namespace) -> Source:
    if options.logits:
        logits, labels = load_logits(options.logits, options.labels)
        count = options.examples
        return Source(f"logits of {options.logits}", logits[:count], labels[:count], None)
    if options.embeddings:
        _say(f"Reading {options.embeddings}.")
        title = f"embeddings of {options.embeddings}"
        vectors = load_embeddings(
            options.embeddings, num_examples=options.examples, rng=options.seed
        )
    else:
        version = ".".join(map(str, sys.version_info[:3]))
        title = f"text of {options.corpus}" if options.corpus else f"Python {version}'s library"
        _say(f"Reading and embedding: {title}.")
        tokens = read_tokens(options.corpus) if options.corpus else stdlib_tokens()
        vectors = examples_from_corpus(tokens, num_examples=options.examples, rng=options.seed)
        title += f" ({len(tokens):,} tokens)"
    logits = options.tau * (vectors.h @ vectors.class_embeddings.T)
    return Source(title, logits, vectors.labels, vectors)


def _proposals(
    names: list[str] | None, model: Model
) -> tuple[dict[str, FloatArray], dict[str, str]]:
    """Return the proposals asked for, or those of the papers that the model allows."""
    if names is not None:
        return dense_proposals(names, model), {}
    proposals: dict[str, FloatArray] = {}
    left_out: dict[str, str] = {}
    for name in PAPERS:
        try:
            proposals |= dense_proposals([name], model)
        except ValueError as error:
            left_out[name] = str(error)
            _say(f"Left out: {error}")
    return proposals, left_out


def _settings(
    options: argparse.Namespace, source: Source, model: Model, left_out: dict[str, str]
) -> dict[str, Any]:
    settings: dict[str, Any] = {"input": source.title}
    if source.embeddings is not None:
        settings |= {"d": source.embeddings.h.shape[1], "tau": options.tau}
        settings |= {"rff nu": options.nu, "random features": options.num_features}
    settings |= {"quadratic alpha": model.alpha, "unigram power": model.power}
    settings["seed"] = options.seed
    if left_out:
        settings["samplers left out"] = ", ".join(left_out)
    return settings


def _print(text: str) -> None:
    """Print to a reader that may have had enough, as `head` has; the exit status stays."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit


def _say(message: str) -> None:
    """Tell a waiting reader what is being done; a script that reads stdout is not disturbed."""
    if sys.stderr.isatty():
        print(message, file=sys.stderr)
