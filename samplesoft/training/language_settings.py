"""What a language model is made of."""

from __future__ import annotations

from dataclasses import dataclass

from samplesoft._validation import as_choice, as_count, as_positive
from samplesoft.losses.registry import LOSSES, make_loss
from samplesoft.losses.sampled import SampledLoss
from samplesoft.samplers.registry import SAMPLERS


@dataclass(frozen=True)
class LanguageModelSettings:
    """A language model; the defaults are the small model of [1]_, with a sampled softmax.

    Parameters
    ----------
    hidden_size, num_layers : int
        Of the LSTM; word vectors and class vectors are of the same length.
    batch_size, num_steps : int
        Rows that are read side by side, and the length of a window of them.
    dropout : float
        Probability to drop an input of a layer or of the softmax.
    init_scale : float
        All parameters start uniform in [-init_scale, init_scale].
    loss : str
        A key of `samplesoft.losses.LOSSES`.
    tau : float
        Inverse temperature; the default is that of [2]_, for vectors of norm 1.
    normalize : bool
        Divide contexts and class vectors by their norms.
    sampler : str or None
        A key of `samplesoft.samplers.SAMPLERS`; None for a loss that draws nothing.
    num_sampled : int or None
        Draws for each word, or for the batch if `shared`; None where there is no sampler.
    nu, num_features : float, int
        Of the sampler; see `SamplerInputs`.
    shared : bool
        Draw once for all words of a window.
    update_every : int
        Steps from one update of the sampler to the next.
    seed : int
        Of parameters, dropout and draws.

    Raises
    ------
    TypeError, ValueError
        If a value is malformed, or the loss and the sampler do not go together.

    References
    ----------
    .. [1] W. Zaremba, I. Sutskever and O. Vinyals, "Recurrent Neural Network Regularization",
       arXiv:1409.2329.
    .. [2] A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019,
       section 4.
    """

    hidden_size: int = 200
    num_layers: int = 2
    batch_size: int = 20
    num_steps: int = 35
    dropout: float = 0.0
    init_scale: float = 0.1
    loss: str = "sampled"
    tau: float = 1.0 / 0.3**2
    normalize: bool = True
    sampler: str | None = "rff"
    num_sampled: int | None = 100
    nu: float = 4.0
    num_features: int = 1024
    shared: bool = False
    update_every: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in (
            *("hidden_size", "num_layers", "batch_size", "num_steps"),
            *("num_features", "update_every"),
        ):
            as_count(name, getattr(self, name))
        as_count("seed", self.seed, 0)
        for name in ("init_scale", "tau", "nu"):
            as_positive(name, getattr(self, name))
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"`dropout` must lie in [0, 1), got {self.dropout}.")
        loss = make_loss(as_choice("loss", self.loss, LOSSES))
        if not isinstance(loss, SampledLoss):
            if self.sampler is not None or self.num_sampled is not None:
                raise ValueError(
                    f"`sampler` and `num_sampled` must be None for loss={self.loss!r}, which draws "
                    f"nothing, got {self.sampler!r} and {self.num_sampled}."
                )
            return
        as_choice("sampler", self.sampler, SAMPLERS)
        as_count("num_sampled", self.num_sampled)
        if self.shared and loss.excludes_label:
            raise ValueError(
                f"`shared` must be False with loss={self.loss!r}, for one set of draws cannot "
                "leave out the label of each word; take loss='sampled-masked'."
            )
