"""A recurrent language model: embedding, LSTM and softmax layer over a text in parallel rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from language_model.clipping import clip_by_global_norm
from language_model.layers import Dropout, Embedding, check_array, check_finite
from language_model.lstm import LSTM
from language_model.text import Corpus, Windows
from samplesoft._files import with_prefixes, without_prefix
from samplesoft._random import stream_key
from samplesoft._validation import (
    IntArray,
    as_array_dict,
    as_count,
    as_nonnegative,
    as_positive,
    require_instance,
)
from samplesoft.losses import LOSSES
from samplesoft.models import SoftmaxSettings
from samplesoft.models.linear import uniform_weights
from samplesoft.training import Task
from samplesoft.training.checkpoint import Arrays, plain
from samplesoft.training.task import NUM_EXAMPLES, Gradient, derive_seed
from samplesoft.training.trained import softmax_config

_EVALUATED = 512  # steps at a time, without a backward pass
_EMBEDDING, _LSTM, _SOFTMAX, _SAMPLER, _STEP = range(5)  # streams of the seed


@dataclass(frozen=True)
class LanguageModelSettings(SoftmaxSettings):
    """A language model; the defaults are the small model of [1]_, with a sampled softmax.

    Parameters
    ----------
    embedding_dim : int
        Length d of word vectors, of the LSTM's state and of class vectors.
    num_layers : int
        LSTMs on top of each other.
    batch_size, num_steps : int
        Rows that are read side by side, and the length of a window of them.
    dropout : float
        Probability to drop an input of a layer or of the softmax.
    init_scale : float
        All parameters start uniform in [-init_scale, init_scale].
    clip : float
        Largest global norm of the gradients of a step; larger ones are scaled down to it.
    hold, decay : int, float
        Epochs with the full learning rate, and what divides it at the start of each that follows.
    seed : int
        Of parameters, dropout and draws.
    loss, tau, normalize, sampler, num_sampled, num_certain, nu, num_features, shared, update_every
        Of the softmax layer, as in `SoftmaxSettings`.

    Raises
    ------
    TypeError, ValueError
        If a value is malformed, or the loss and the sampler do not go together.

    References
    ----------
    .. [1] W. Zaremba, I. Sutskever and O. Vinyals, "Recurrent Neural Network Regularization",
       arXiv:1409.2329.
    """

    embedding_dim: int = 200
    num_layers: int = 2
    batch_size: int = 20
    num_steps: int = 35
    dropout: float = 0.0
    init_scale: float = 0.1
    clip: float = 5.0
    hold: int = 4
    decay: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if LOSSES[self.loss].has_log_sums:
            raise ValueError(
                f"`loss` must not keep a number for each example, got {self.loss!r}; take another "
                "such as 'sampled-masked'."
            )
        for name in ("embedding_dim", "num_layers", "batch_size", "num_steps", "hold"):
            as_count(name, getattr(self, name))
        as_count("seed", self.seed, 0)
        for name in ("init_scale", "clip", "decay"):
            as_positive(name, getattr(self, name))
        as_nonnegative("dropout", self.dropout, below=1.0)


class LanguageModelTask(Task):
    """Predict each word of a text from those before it.

    The loss of a step is summed over the steps of the window and averaged over its rows, as in
    [1]_; what is reported is the mean over all words. The hidden state goes from window to window
    and starts each epoch at 0.

    Parameters
    ----------
    corpus : Corpus
        The text.
    settings : LanguageModelSettings
        The model.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or the text too short.
    MemoryError
        If the parameters would not fit.

    References
    ----------
    .. [1] W. Zaremba, I. Sutskever and O. Vinyals, "Recurrent Neural Network Regularization",
       arXiv:1409.2329.

    Examples
    --------
    >>> import numpy as np
    >>> from language_model.text import Vocabulary
    >>> ids = np.random.default_rng(0).integers(0, 4, 500)
    >>> corpus = Corpus(Vocabulary(("a", "b", "c", "d"), np.bincount(ids)), ids, ids, ids)
    >>> settings = LanguageModelSettings(embedding_dim=5, num_steps=8, sampler="unigram")
    >>> task = LanguageModelTask(corpus, settings)
    >>> loss, gradients = task.step(0, 0)
    >>> gradients["softmax.class_embeddings"].ids, task.num_steps
    (array([0, 1, 2, 3]), 3)
    """

    def __init__(self, corpus: Corpus, settings: LanguageModelSettings) -> None:
        require_instance("corpus", corpus, Corpus)
        require_instance("settings", settings, LanguageModelSettings)
        self.corpus, self.settings = corpus, settings.resolved()
        self._key = stream_key(as_count("seed", settings.seed, 0))
        self._windows = Windows(
            corpus.train, settings.batch_size, settings.num_steps, keep_short=False
        )
        n, size = len(corpus.vocabulary.words), settings.embedding_dim
        options: dict[str, Any] = {"init_scale": settings.init_scale, "dtype": np.float32}
        self.embedding = Embedding(n, size, rng=derive_seed(self._key, _EMBEDDING), **options)
        self.lstm = LSTM(
            size,
            size,
            num_layers=settings.num_layers,
            dropout=settings.dropout,
            rng=derive_seed(self._key, _LSTM),
            **options,
        )
        self.dropout = Dropout(settings.dropout)
        stream, dtype = np.uint64(derive_seed(self._key, _SOFTMAX)), np.dtype(np.float32)
        self.softmax = settings.make_layer(
            uniform_weights((n, size), settings.init_scale, dtype, stream),
            corpus.vocabulary.counts,
            derive_seed(self._key, _SAMPLER),
            reduction="sum",
        )
        self.parameters = with_prefixes(
            {
                "embedding": self.embedding.parameters,
                "lstm": self.lstm.parameters,
                "softmax": self.softmax.parameters,
            }
        )
        self.num_steps = len(self._windows)
        self.num_examples = settings.batch_size * settings.num_steps  # words
        shape = (settings.num_layers, settings.batch_size, size)
        self._state = np.zeros(shape, np.float32), np.zeros(shape, np.float32)

    def config(self) -> dict[str, Any]:
        """Return the settings, and a fingerprint of vocabulary and text."""
        text = hashlib.sha256("\n".join(self.corpus.vocabulary.words).encode())
        for ids in (self.corpus.train, self.corpus.valid):
            text.update(ids.tobytes())
        return {
            "model": "language model",
            "text": text.hexdigest()[:16],
            **plain(asdict(self.settings)),
            "softmax": softmax_config(self.softmax),
        }

    def step(self, epoch: int, index: int) -> tuple[float, dict[str, Gradient]]:
        """Go forward and back over one window."""
        key = derive_seed(self._key, _STEP, epoch * self.num_steps + index)
        input_seed, lstm_seed, output_seed, draw_seed = (derive_seed(key, k) for k in range(4))
        inputs, targets = self._windows[index]
        steps, rows = inputs.shape
        x, embedding_cache = self.embedding.forward(inputs)
        x, input_cache = self.dropout.forward(x, rng=input_seed, training=True)
        y, self._state, lstm_cache = self.lstm.forward(
            x, self._state if index else None, rng=lstm_seed, training=True
        )
        y, output_cache = self.dropout.forward(y, rng=output_seed, training=True)
        contexts = y.reshape(steps * rows, -1)
        labels, kept = targets.ravel(), slice(None)  # type: tuple[Any, Any]
        if self.settings.normalize and self.settings.dropout:
            kept = (contexts != 0.0).any(axis=1)  # nothing may be left of one
        loss, softmax_cache = self.softmax.forward(
            contexts[kept],
            labels[kept],
            weights=np.full(len(labels[kept]), 1.0 / rows),
            rng=draw_seed,
        )
        dh = np.zeros_like(contexts)
        dh[kept], of_softmax = self.softmax.backward(softmax_cache)
        dy, _ = self.dropout.backward(output_cache, dh.reshape(y.shape))
        dx, of_lstm = self.lstm.backward(lstm_cache, dy)
        dx, _ = self.dropout.backward(input_cache, dx)
        _, of_embedding = self.embedding.backward(embedding_cache, dx)
        parts: dict[str, Mapping[str, Gradient]] = {
            "embedding": of_embedding,
            "lstm": of_lstm,
            "softmax": of_softmax,
        }
        gradients = with_prefixes(parts)
        try:
            clip_by_global_norm(gradients, self.settings.clip)
        except ValueError as error:  # of gradients that are not finite: the run has diverged
            raise FloatingPointError(str(error)) from error
        return loss / steps, gradients

    def schedule(self, step: int) -> float:
        """Return the factor of the learning rate in a step, counted from 1.

        It is 1 in the first `hold` epochs, and divided by `decay` at the start of each after them.

        The small model of Zaremba et al. has ``hold=4, decay=2``, the medium one 6 and 1.2, the
        large one 14 and 1.15: section 4.1.
        """
        epoch = (step - 1) // self.num_steps
        late = max(epoch + 1 - self.settings.hold, 0.0)
        return pow(self.settings.decay, -late)

    def after_step(self, gradients: dict[str, Gradient]) -> None:
        """Let the sampler follow the class vectors that have changed."""
        self.softmax.update(getattr(gradients["softmax.class_embeddings"], "ids", None))

    def refresh(self) -> None:
        """Make the sampler anew from the class vectors."""
        self.softmax.refresh()

    def validate(self) -> dict[str, float]:
        """Return mean loss in nats and perplexity of the validation text."""
        return self.evaluate(self.corpus.valid)

    def evaluate(self, ids: IntArray) -> dict[str, float]:
        """Return loss and perplexity of the full softmax over a text.

        Parameters
        ----------
        ids : ndarray of int64, shape (N,)
            The text, read as one row: each word but the first is predicted from all before it.

        Returns
        -------
        dict
            ``loss``, the mean in nats, and ``perplexity``.
        """
        state, total, count = None, 0.0, 0
        for inputs, targets in Windows(ids, 1, _EVALUATED, keep_short=True):
            y, state, _ = self.lstm.forward(self.embedding.forward(inputs)[0], state)
            found = self.softmax.evaluate(y.reshape(targets.size, -1), targets.ravel())
            total += found.loss * targets.size
            count += targets.size
        loss = total / count
        with np.errstate(over="ignore"):  # of a model that has diverged
            return {"loss": loss, "perplexity": float(np.exp(loss))}

    def examples(self) -> Arrays:
        """Return contexts and labels of the validation text, and counts of the classes.

        Contexts are those of the last steps of a window, with more words before them.
        """
        rows = min(self.settings.batch_size, len(self.corpus.valid) // 2)
        inputs, targets = next(
            iter(Windows(self.corpus.valid, rows, self.settings.num_steps, keep_short=True))
        )
        y, _, _ = self.lstm.forward(self.embedding.forward(inputs)[0])
        last = -min(-(-NUM_EXAMPLES // rows), len(y))
        return {
            "h": y[last:].reshape(-1, y.shape[2]),
            "labels": targets[last:].ravel(),
            "counts": self.corpus.vocabulary.counts,
        }

    def state(self) -> Arrays:
        """Return the hidden state between windows, and what the sampler has learned."""
        hidden, cells = self._state
        return {
            "hidden": hidden,
            "cells": cells,
            **with_prefixes({"sampler": self.softmax.state()}),
        }

    def load_state(self, state: Arrays) -> None:
        """Load a hidden state, and what a sampler has learned."""
        state = as_array_dict("state", state)
        like = self._state[0]
        for name in ("hidden", "cells"):
            check_array(name, state.get(name), like.shape, like.dtype)
            check_finite(name, state[name])
        self.softmax.load_state(without_prefix("sampler", state))
        self._state = state["hidden"], state["cells"]
