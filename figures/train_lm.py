"""Train the language model of the figures in a folder, with any setting; an aborted run goes on.

The defaults are the small model of Zaremba et al. (2014) with a sampled softmax over vectors of
norm 1; their own model is ``--loss full --no-normalize --optimizer sgd --learning-rate 1``::

    python figures/train_lm.py --corpus ptb --out run
    python figures/train_lm.py --corpus ptb --out run --resume

References
----------
W. Zaremba, I. Sutskever and O. Vinyals, "Recurrent Neural Network Regularization",
arXiv:1409.2329.
"""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from language_model.task import LanguageModelSettings, LanguageModelTask
from language_model.text import VOCABULARY_SIZE, read_corpus

from samplesoft.losses.registry import LOSSES
from samplesoft.optimizers import OPTIMIZERS
from samplesoft.training import BEST, Settings, load_parameters, train

# with vectors of norm 1 the first gradients are so large that sgd saturates the LSTM
OPTIMIZER, LEARNING_RATE = "adam", 0.003
TYPES: dict[str, Any] = {"int": int, "float": float, "str": str, "Any": str}


def main() -> None:
    """Read the command line, train, and print the perplexity of the test text."""
    options = parser().parse_args()
    values = {field.name: getattr(options, field.name) for field in fields(LanguageModelSettings)}
    values = {name: value for name, value in values.items() if value is not None}
    if not LOSSES[values.get("loss", LanguageModelSettings.loss)].draws:
        values |= {"sampler": None, "num_sampled": None}
    corpus = read_corpus(options.corpus, vocabulary_size=options.vocabulary)
    task = LanguageModelTask(corpus, LanguageModelSettings(**values))
    settings = Settings(
        options.epochs,
        options.optimizer,
        options.learning_rate,
        checkpoint_every=500,
        patience=options.patience,
    )
    at = train(
        task,
        settings,
        options.out,
        resume=options.resume,
        schedule=task.schedule,
        progress=show,
    )
    load_parameters(options.out / BEST, task)
    test = task.evaluate(corpus.test)["perplexity"]
    print(f"best epoch {at.best_epoch}: test perplexity {test:.2f}")


def parser() -> argparse.ArgumentParser:
    """Return the options: those of the run, and one for each setting of the model."""
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--corpus", required=True, help="a text, or a folder of three")
    made.add_argument("--out", required=True, type=Path, help="folder of checkpoints and log")
    made.add_argument("--resume", action="store_true", help="go on, with the same settings")
    made.add_argument("--vocabulary", type=int, default=VOCABULARY_SIZE, help="most classes")
    made.add_argument("--epochs", type=int, default=13, help="default: 13")
    made.add_argument("--patience", type=int, help="epochs without a lower validation loss")
    made.add_argument("--optimizer", choices=OPTIMIZERS, default=OPTIMIZER)
    made.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    for field in fields(LanguageModelSettings):
        name, kind = f"--{field.name.replace('_', '-')}", str(field.type).split(" | ")[0]
        if kind == "bool":
            made.add_argument(name, action=argparse.BooleanOptionalAction)
        else:
            made.add_argument(name, type=TYPES[kind], help=f"default: {field.default}")
    return made


def show(line: dict[str, Any]) -> None:
    """Print a line of the log."""
    print(
        f"epoch {line['epoch']}: train loss {line['train_loss']:.4f}, validation perplexity "
        f"{line['validation_perplexity']:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
