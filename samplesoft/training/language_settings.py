"""Settings of a language model."""

from __future__ import annotations

from dataclasses import dataclass

from samplesoft._validation import as_count, as_nonnegative, as_positive
from samplesoft.models.softmax_settings import SoftmaxSettings


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
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("embedding_dim", "num_layers", "batch_size", "num_steps"):
            as_count(name, getattr(self, name))
        as_count("seed", self.seed, 0)
        as_positive("init_scale", self.init_scale)
        as_nonnegative("dropout", self.dropout, below=1.0)
