"""The scikit-learn estimator: its parameters, and how it is fitted, asked, measured and saved."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.pipeline import Pipeline
from sklearn.utils import check_consistent_length, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from samplesoft._jit import report_compilation
from samplesoft._memory import require_bytes
from samplesoft._progress import progress_phase
from samplesoft._validation import (
    FloatArray,
    in_wide_type,
    native,
    require_plain,
    require_well_formed,
    scale_by_power_of_two,
    short_repr,
)
from samplesoft.bias.inputs import is_dask
from samplesoft.sklearn import saving
from samplesoft.sklearn.calibration import Calibration
from samplesoft.sklearn.labels import (
    LISTS,
    SINGLE,
    LabelCodec,
    check_sample_weight,
    class_counts,
    class_weights,
    example_weights,
    examples_and_ids,
    infer_codec,
)
from samplesoft.sklearn.learner import (
    Learner,
    auto_choice,
    in_order,
    mean_norm,
    resolved_for,
    train,
)
from samplesoft.sklearn.parameters import (
    check_parameters,
    model_fields,
    require_same_model,
    wants_pilot,
)
from samplesoft.training.linear_task import Examples
from samplesoft.training.loop import Callback, require_callbacks, unchanged_on_error
from samplesoft.training.resolved import scores_all
from samplesoft.tuning.report import TuneReport
from samplesoft.tuning.tune import tune

_LONGEST_REASON = 500  # characters of an error that is told on
_IN_PIPELINES = (
    "a pipeline transforms no inputs of an `eval_set`, or its labels too: pass `X_val` and `y_val` "
    "to it, which has transform_input=['X_val']."
)
_TRANSFORMED = "a pipeline transforms `X_val` if it has transform_input=['X_val']."


@dataclass(eq=False, repr=False)
class SampledSoftmaxClassifier(ClassifierMixin, BaseEstimator):
    """A linear embedding under a softmax over very many classes, trained on a few of them a step.

    Scores are ``tau * (x @ U + u) . c_j``, by default of vectors divided by their norms. A step
    of training costs what a batch touches: the entries of its inputs, its labels, and draws from
    a sampler; not n.

    Parameters
    ----------
    embedding_dim : int or None
        Length d of the embedding of an input and of a class vector. None for scores ``tau *
        (x @ W + b)``, a linear model without a bottleneck, for inputs such as tf-idf: a step
        touches only features that occur in it, and classes that are labels or drawn. It needs
        v times n numbers, and draws by counts or uniform ones.
    alpha : float, optional
        Of an L2 penalty ``alpha / 2 * sum(W**2)`` on the mean loss, for an `embedding_dim` of None;
        by default 0.003 divided by the number of classes. It is worth a search; see Notes.
    loss : str
        ``"sampled"`` for sampled softmax, ``"jackknife"`` for the same with its bias of order 1/m
        removed, ``"multilevel"`` for no bias at all, from 4.4 m draws in the mean, or
        ``"negative-sampling"``, each with draws that leave out the label; the same names with
        ``-masked`` for draws in which the label has no weight; ``"nce"`` for noise-contrastive
        estimation; ``"importance"`` for draws without a term for the label; ``"gbce"``, ``"bpr"``
        and ``"warp"``, which recommenders are compared with, and which are meant for uniform draws;
        ``"full"``; ``"full-logistic"``, a logistic regression of each class; or ``"hierarchical"``,
        a softmax over cells of classes of similar frequency and one over the classes of a cell.
        Negative sampling learns how much more often a class is the label than a draw: with draws by
        counts it puts rare classes too far up, the more so the more classes. Where draws cannot
        leave out the label, as examples share them or have several labels, a name without
        ``-masked`` stands for the one with it. ``"full"`` has no bias, and takes twice as long with
        600 classes, 6 times with 10,000.
    sampler : str, callable or sampler
        A key of `samplesoft.samplers.SAMPLERS`; not used by ``loss="full"``. Samplers that draw by
        counts, such as the default, go by those of the data that `fit` is given. ``"auto"``
        chooses between draws by counts and by clusters; see Notes. One of your own is a function
        that makes a sampler from a `samplesoft.samplers.SamplerInputs`, for `fit` alone knows the
        class vectors and their number, such as
        ``lambda inputs: make_sampler("quadratic", dataclasses.replace(inputs, alpha=1.0))``; or a
        sampler, of which each `fit` takes a copy.
    num_sampled : int or "auto", optional
        Draws m for each batch, or for each example if not `shared`. By default 100; where one set
        serves a batch, and costs little, a thirty-second of the classes up to 1,000; and no draws
        but the full softmax for up to 100 classes, where that is as quick and has no bias, unless
        `loss` is another than the softmax. ``"auto"`` chooses a number.
    shared : bool, optional
        Draw one set for the whole batch, which makes a step faster; by default where that loses
        little, as in `samplesoft.models.SoftmaxSettings`: with samplers that do not look at
        contexts, such as the default, and losses whose draws may contain the label.
    tau : float, optional
        Inverse temperature of the scores in training; by default ``max(10, 1.5 log n)`` if
        `normalize`, else 1. Scores of vectors of norm 1 lie from -tau to tau, and with more classes
        must be larger for one of them to be probable.
    normalize : bool, optional
        Divide embeddings and class vectors by their norms, which some samplers need; by default
        unless `embedding_dim` is None or the loss ``"full-logistic"``, for which it must be False.
    nu, num_features : float, int
        Of the sampler; see `samplesoft.samplers.SamplerInputs`.
    update_every : int
        Steps from one update of the sampler to the next, for samplers that follow class vectors.
    dropout : float
        Share of the entries of an input that a step leaves out.
    label_reduction : {"pal-n", "pal", "ova"}
        What the loss of an example with several labels is: the mean of their losses; their sum;
        or one versus all, for ``loss="nce"`` and ``"negative-sampling-masked"``. In theory the mean
        is for recall and the sum for precision; measured, the mean had the better precision at 1.
        See `samplesoft.losses.base.Loss`.
    mask_other_labels : bool
        Leave the other labels of an example out of the negatives of a label.
    max_iter : int, optional
        Times to go over the training data. By default 5; 3 from 262,144 examples on, and up to 20
        where 5 make fewer than 200 steps; 20 with `early_stopping`, which ends them, and for an
        `embedding_dim` of None.
    batch_size : int
        Examples in a step.
    optimizer : str
        A key of `samplesoft.optimizers.OPTIMIZERS`.
    learning_rate : float, optional
        Of the optimizer; by default 0.1, 0.003 for ``"adam"``. Where `embedding_dim` is None 2, 0.2
        for ``"adam"``, divided by the mean norm of the rows of `X` in the first call if that is
        above 1. These suit Adagrad and Adam.
    schedule : {"constant", "linear", "cosine"}
        How the learning rate changes in a `fit`: it stays, or falls to 0 at the end of `max_iter`.
        `partial_fit`, which has no end, takes it as it is.
    warmup : float
        Share of the steps of a `fit`, at its beginning, in which the learning rate rises in a line.
    early_stopping : bool
        Hold out examples, stop when precision at 1 on them no longer rises, and keep the best.
    validation_fraction : float
        How many to hold out, unless `fit` is given an ``eval_set``.
    n_iter_no_change : int
        Stop after so many times over the data without a rise.
    tol : float
        Least rise that counts.
    average : bool
        Let `fit` average the parameters after each round, late rounds weighing more. It costs
        memory for a copy of them, and takes the harm out of a round too many.
    calibrate : bool
        Calibrate `predict_proba` on examples that the model was not trained on: those of
        ``eval_set``; with `early_stopping` those that it holds out; else a share of
        `validation_fraction`, at most 1,000, that the first half of the rounds leaves out and the
        second half learns. Without the first two, only a `fit` from scratch does so. False takes
        the softmax of the scores as they are, and learns all examples in all rounds; see Notes.
    class_weight : dict, "balanced" or None
        Weights of classes; an example with several labels has the mean of theirs, times its
        `sample_weight` in `fit`. One of weight 0 is not trained on, and its class stays one.
    warm_start : bool
        Go on from the parameters of the last `fit`, which must have had the same classes.
    random_state : int, numpy.random.RandomState or None
        Seed of parameters, order, dropout and draws. The same seed gives the same model at any
        number of threads, for sparse inputs, sampled losses and an `embedding_dim`; products of
        dense matrices may change in their last bits with the threads of BLAS, unless under
        ``with threadpoolctl.threadpool_limits(1, "blas"):``. Dense inputs and the same ones
        as a sparse matrix take the same draws, so that the models differ by rounding alone: but
        not with `dropout`, nor with samplers that follow vectors, where rounding changes draws.
    verbose : bool
        Show progress on stderr, the loss and the validation score: a bar if that is a terminal,
        else a line for each round.

    Attributes
    ----------
    classes_ : ndarray, shape (n,)
        Labels in ascending order, or columns of an indicator matrix: their numbers, or the names
        that a dataframe has. They are of the type of the labels: of integers of several types, or
        as objects, int64, else uint64, else objects; of text objects if one has more than 256
        characters, to which NumPy would pad all.
    model_ : LinearSoftmax
        Embedding and softmax layer.
    n_features_in_ : int
        Columns v of the input.
    feature_names_in_ : ndarray of object, shape (v,)
        Their names, if it was a dataframe with names of text.
    n_iter_ : int
        Times gone over the data in the last `fit`.
    num_unlabeled_ : int
        Examples without a label in the last `fit`, which were left out.
    loss_curve_ : list of float
        Mean loss in nats that was minimised, each time.
    resolved_ : samplesoft.training.Resolved
        What the last `fit` did: the loss, sampler, draws, rounds, learning rate and kind of steps
        that the parameters stood for. `verbose` shows it in its first line. Its `step_by_step` says
        why steps were taken one by one; it is None where many of them were one compiled call, which
        makes an epoch on sparse inputs some 2.5 times as quick.
    validation_scores_ : list of float
        Precision at 1 of the examples of ``eval_set``, or of those held out for `early_stopping`,
        each time; empty without both.
    calibration_ : Calibration
        The ``temperature`` that `predict_proba` divides scores by, 1 if nothing was calibrated;
        and, unless the loss is ``"full-logistic"``, ``labels_each``, how many labels it takes an
        example to have, None if each has one.
    auto_choice_ : dict
        What ``"auto"`` stands for, if anything was: ``loss``, ``sampler``, ``num_sampled``,
        ``shared``, and ``verdict``, the reason in words.

    Notes
    -----
    **When to use it.** For more than some hundred classes, with sparse or dense inputs, one label
    or several; up to 100 classes it takes the full softmax, as there is nothing to gain from
    draws. More draws are the first thing to spend time on. Losses, samplers and draws are measured
    in docs/benchmarks.md, section "Losses and samplers of the classifier", and peers such as
    fastText, label trees and one classifier for each label by ``figures/classifier_frontier.py``.

    **Without a bottleneck.** Bags of words with several of some hundred labels are better off with
    an `embedding_dim` of None; with one label each they were not (docs/benchmarks.md, section "The
    classifier without a bottleneck"). ``"full-logistic"`` is a logistic regression of each label,
    as scikit-learn's one-vs-rest; an example with many labels has more to say in it than in a
    softmax, unless `sample_weight` takes that back. Choose `alpha` by a grid search.

    **Calibration.** A model is surer of the examples that it has learned than of new ones. So `fit`
    looks for the temperature of least log loss on examples that are new to the model; a few of them
    move it little from that of training. They are learned too in the second half of the rounds, so
    that accuracy stays as it was. Where examples have several labels, `labels_each` is fitted too.
    Measured in docs/benchmarks.md, section "Calibration of the classifier".

    With ``"auto"`` `fit` trains a pilot, a model that is thrown away, for a tenth of its steps (at
    least 100, at most 1000) with 100 draws by counts. On its vectors `samplesoft.tune` measures
    draws, one set for a batch and for each example unless `shared` says which, and takes the
    quickest with a bias of at most 0.02, or the full softmax if that is quicker. Then the
    model is trained from scratch with what was chosen, and keeps it in `warm_start`, `partial_fit`
    and `save`. Times are those of this machine at this moment: where two settings are about as
    quick, another machine may choose the other with the same seed.

    An input without entries, such as a text of unknown words, is embedded as the intercept, and
    gets what is frequent. An example without a label, an empty list or a row of zeros, is left out
    of training, even where ``"full-logistic"`` would take it as a negative of each, and does not
    count in ``eval_set``; `score` counts it as right if nothing is predicted. Labels that were not
    seen in training are an error in `partial_fit`, never right in `score` and ``eval_set``, and
    ignored in ``exclude``. Missing labels, None, NaN or NA, are an error.

    References
    ----------
    A. S. Rawat et al., "Sampled Softmax with Random Fourier Features", NeurIPS 2019, section 4.2.

    Examples
    --------
    >>> import numpy as np
    >>> from samplesoft.sklearn import SampledSoftmaxClassifier
    >>> X, y = np.eye(4), np.array(["ape", "bee", "cat", "dog"])
    >>> clf = SampledSoftmaxClassifier(num_sampled=2, max_iter=50, random_state=0).fit(X, y)
    >>> clf.predict(X[2:])
    array(['cat', 'dog'], dtype='<U3')
    >>> labels, scores = clf.predict_topk(X[:1], 2)
    >>> labels[0, 0], scores.shape
    (np.str_('ape'), (1, 2))

    The same by inner products, for an index of FAISS or hnswlib:

    >>> vectors, contexts = clf.model_.class_vectors(), clf.embed(X[:1])
    >>> best = (contexts @ vectors.T).argsort(axis=1)[:, :-3:-1]  # what the index does
    >>> bool((clf.classes_[best] == labels).all())
    True
    """

    embedding_dim: int | None = 128
    _: KW_ONLY
    alpha: float | None = None
    loss: str = "sampled-masked"
    sampler: Any = "unigram"
    num_sampled: int | str | None = None
    shared: bool | None = None
    tau: float | None = None
    normalize: bool | None = None
    nu: float = 4.0
    num_features: int = 1024
    update_every: int = 1
    dropout: float = 0.0
    label_reduction: str = "pal-n"
    mask_other_labels: bool = True
    max_iter: int | None = None
    batch_size: int = 128
    optimizer: str = "adagrad"
    learning_rate: float | None = None
    schedule: str = "constant"
    warmup: float = 0.0
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 5
    tol: float = 1e-4
    average: bool = True
    calibrate: bool = True
    class_weight: Any = None
    warm_start: bool = False
    random_state: Any = None
    verbose: bool = False

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        eval_set: tuple[Any, Any] | None = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
        callbacks: Sequence[Callback] = (),
    ) -> Self:
        """Train again, or with `warm_start` go on.

        Parameters
        ----------
        X : array_like, sparse matrix or dataframe, shape (N, v)
            Inputs; sparse ones stay sparse. A row of zeros is an example like others.
        y : array_like, shape (N,), or indicator matrix (N, n), or list of N lists of labels
            One label an example, or several: text, whole numbers of any size, or booleans. Those
            that Python's ``==`` tells apart are different classes, such as 2**60 and 2**60 + 1, in
            a nullable column of pandas too. Examples without any are left out and counted. The
            names of the columns of a dataframe with several are its labels, which
            `predict_topk` returns; `predict` returns an array of zeros and ones, as
            scikit-learn's own classifiers do.
        sample_weight : array_like, shape (N,), optional
            Weights of the losses of examples, times those of `class_weight`. An example counts as
            often as its weight says where classes are counted; one of weight 0 is left out.
        eval_set : tuple of X and y, optional
            Other inputs and labels, for `validation_scores_`, and for `early_stopping` and
            `calibrate`, which then hold out nothing. Labels that are not in `y` count as ones that
            were not found; examples without a label do not count. A pipeline hands it over as it
            is, or transforms the labels too.
        X_val, y_val : array_like, optional
            The same in two arguments, for a pipeline with ``transform_input=["X_val"]``, which
            transforms the inputs alone.
        callbacks : sequence of samplesoft.training.Callback
            What else is to be done between steps and after epochs. Their ``task.model`` is the
            model as the last step left it; with `average` it becomes the average in the end.

        Returns
        -------
        SampledSoftmaxClassifier
            The estimator.

        Raises
        ------
        TypeError, ValueError
            If an argument or a parameter is malformed, or training diverges.
        MemoryError
            If a model of such parameters does not fit.

        KeyboardInterrupt
            At Ctrl-C. As after an error, the estimator is then as it was before; with `warm_start`
            its parameters are as the last step left them.

        Warns
        -----
        UserWarning
            If examples are without a label, or `num_sampled` is more than there are classes.
        """
        check_parameters(self)
        require_callbacks(callbacks)
        with report_compilation(bool(self.verbose)), unchanged_on_error(self):
            go_on = self.warm_start and hasattr(self, "model_")
            X = self._checked_examples(X, y, reset=not go_on)
            codec = self._learner.codec if go_on else infer_codec(y)
            codes = codec.encode(y)
            labelled = np.unique(examples_and_ids(codes)[0])
            if not len(labelled):
                raise ValueError("`y` must hold a label for at least one example, got none.")
            sample_weight = check_sample_weight(sample_weight, X.shape[0])
            of_class = class_weights(self.class_weight, codec, codes, sample_weight)
            weights = example_weights(of_class, codes, sample_weight)
            rows = labelled[sample_weight[labelled] > 0.0]
            counted = np.flatnonzero(weights)  # all others are left out, as if they were not there
            if not len(counted):
                name = "class_weight" if len(rows) else "sample_weight"
                raise ValueError(
                    f"`{name}` must be above 0 for an example with a label, got zero for all."
                )
            validation = self._checked_eval_set(eval_set, X_val, y_val, codec)
            if go_on:
                require_same_model(self, resolved_for(self, codec, len(counted)).model)
            else:  # the model takes the type and the width of these inputs
                counts = class_counts(codes, len(codec.classes), sample_weight)
                seed = self._new_seed()
                self.__dict__.pop("auto_choice_", None)
                if wants_pilot(self, len(codec.classes)):
                    examples = Examples(X, codes, weights)
                    self.auto_choice_ = auto_choice(self, examples, counted, codec, counts, seed)
                self._begin(X, codec, counts, seed)
                X = in_order(X)
                self._learner.row_norm = mean_norm(X, counted)
            self.num_unlabeled_ = X.shape[0] - len(labelled)
            if self.num_unlabeled_:
                warnings.warn(
                    f"{self.num_unlabeled_:,} of {X.shape[0]:,} examples are without a label and "
                    "were left out.",
                    stacklevel=2,
                )
            learner, apart = self._learner, rows[:0]
            if validation is None and self.early_stopping:
                # scores are of examples as they are, and not as `class_weight` weighs them
                left, held_out = learner.split(rows, self.validation_fraction)
                validation = Examples(X, codes, sample_weight).rows(held_out)
                counted = left[weights[left] > 0.0]
                if not len(counted):
                    raise ValueError(
                        "`class_weight` must be above 0 for an example that is not held out, got "
                        "zero for all; give more examples, or an `eval_set`."
                    )
            elif validation is None and self.calibrate and not go_on:
                # all examples are old to a model that goes on
                counted, apart = learner.split_to_calibrate(counted, self.validation_fraction)
            train(
                self,
                Examples(X, codes, weights),
                counted,
                validation,
                apart,
                of_class,
                callbacks,
            )
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Take one step on a batch.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (B, v)
            Inputs. Of Dask, as `y` and `sample_weight` then are, each block of rows is a batch.
        y : array_like or matrix
            Labels, as in `fit`.
        classes : array_like, shape (n,)
            All labels, or what the columns of `y` are called; needed in the first call, unless `y`
            is an indicator matrix. Samplers that draw by counts go by those of the first batch,
            one more for each class.
        sample_weight : array_like, shape (B,), optional
            Weights of the examples, as in `fit`.

        Returns
        -------
        SampledSoftmaxClassifier
            The estimator.

        Raises
        ------
        TypeError, ValueError
            If an argument or a parameter is malformed, or classes differ from those of before.
        MemoryError
            If a model of such parameters does not fit.

        Warns
        -----
        UserWarning
            If `num_sampled` is more than there are classes, in the first call.
        """
        if is_dask(X):  # one step for each block, of which one is in memory
            if not is_dask(y):
                raise TypeError(f"`y` must be of Dask where `X` is, got {type(y).__name__}.")
            given = [blocks_of(one) for one in (X, y, sample_weight) if one is not None]
            if len({len(blocks) for blocks in given}) > 1:
                raise ValueError(
                    "`X`, `y` and `sample_weight` must have as many blocks of rows, got "
                    f"{', '.join(str(len(blocks)) for blocks in given)}; rechunk them alike."
                )
            for blocks in zip(*given, strict=True):
                x, labels, *weights = import_module("dask").compute(*blocks)
                self.partial_fit(x, labels, classes, *weights)
            return self
        check_parameters(self)
        if isinstance(self.class_weight, str):
            raise ValueError(
                "`class_weight` must not be 'balanced' for partial_fit, which sees one batch at a "
                "time; pass the weights as a dict."
            )
        with unchanged_on_error(self):
            first = not hasattr(self, "model_")
            X = self._checked_examples(X, y, reset=first)
            sample_weight = check_sample_weight(sample_weight, X.shape[0])
            codec = infer_codec(y, classes) if first else self._learner.codec
            codes = codec.encode(y)
            if first:
                if classes is None and codec.form in (SINGLE, LISTS):
                    raise ValueError(
                        "`classes` must hold all labels in the first call of partial_fit, got None."
                    )
                if wants_pilot(self, len(codec.classes)):
                    raise ValueError(
                        "`sampler` and `num_sampled` must not be 'auto' in the first call of "
                        "partial_fit, which sees one batch; call fit on some of the data first, or "
                        "name them."
                    )
                # one more, for classes that this batch lacks will come too
                counts = class_counts(codes, len(codec.classes), sample_weight) + 1.0
                self._begin(X, codec, counts, self._new_seed())
                X = in_order(X)
                self.n_iter_ = 0
            else:
                if classes is not None and not codec.has_same_classes(classes):
                    raise ValueError(
                        "`classes` must be those of the first call of partial_fit; leave it out."
                    )
                require_same_model(self, resolved_for(self, codec, X.shape[0]).model)
                X = X.astype(self.model_.dtype, copy=False)
            of_class = class_weights(self.class_weight, codec, codes, sample_weight)
            weights = example_weights(of_class, codes, sample_weight)
            rows = np.flatnonzero(weights)
            if len(rows):
                if not self._learner.steps_taken:  # batches before, if any, were left out
                    self._learner.row_norm = mean_norm(X, rows)
                row_norm = self._learner.row_norm
                optimizer = self._learner.optimizer
                resolved = resolved_for(self, codec, len(rows), row_norm=row_norm)
                optimizer.learning_rate = resolved.learning_rate
                batch = Examples(X, codes, weights).select(rows)
                self._learner.learn(optimizer, *batch)
            self.n_iter_ = getattr(self, "n_iter_", 0) + 1  # none in a copy made while `fit` ran
        return self

    @property
    def calibration_(self) -> Calibration:
        """How `predict_proba` makes probabilities of scores."""
        return self._learner.calibration

    def predict(self, X: Any) -> Any:
        """Return the most probable label of each input, or all of at least even odds.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (N, v)
            Inputs.

        Returns
        -------
        ndarray, shape (N,), or labels in the form in which `fit` got several for an example
            Labels. Of several, those with a probability of `predict_proba` of at least 1/2.
        """
        X = self._check_fitted_inputs(X)
        if not self._learner.codec.multilabel:
            return self.classes_[self.model_.top_k(X, 1)[0][:, 0]]
        # by the block, of which few entries are left: no matrix of all probabilities
        chosen = [sparse.csr_array(proba >= 0.5) for _, proba in self._learner.probabilities(X)]
        matrix = sparse.csr_array(sparse.vstack(chosen, format="csr"))
        return self._learner.codec.decode_matrix(matrix)

    def predict_topk(
        self, X: Any, k: int | None = None, *, exclude: Any = None
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the labels of the largest scores, without a matrix of all scores.

        `samplesoft.sklearn.predict_topk` does the same for a pipeline.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (N, v)
            Inputs. Of a Dask array or dataframe the results are Dask arrays, computed by blocks of
            rows, without `exclude`.
        k : int, optional
            How many labels, at most n; by default 5, or all of fewer.
        exclude : sparse matrix, shape (N, n), or list of N lists of labels, optional
            Labels that are not wanted, such as those that are known; columns are in the order of
            `classes_`. Labels that are no class are ignored.

        Returns
        -------
        labels : ndarray, shape (N, k)
            The best first.
        scores : ndarray, shape (N, k)
            Their scores: logits of the softmax; -inf for labels that are not wanted, where fewer
            than k are left.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        check_is_fitted(self)
        k = min(5, len(self.classes_)) if k is None else k
        if is_dask(X):
            if exclude is not None:
                raise ValueError("`exclude` must be None for Dask; call predict_topk by the block.")
            kinds = [(k, self.classes_.dtype), (k, self.model_.dtype)]
            labels, scores = self._by_blocks(X, "predict_topk", kinds, k)
            return labels, scores
        X = self._check_fitted_inputs(X)
        if exclude is not None:
            exclude = self._learner.codec.encode_unwanted("exclude", exclude, X.shape[0])
        ids, scores = self.model_.top_k(X, k, leave_out=exclude)
        return self.classes_[ids], scores

    def embed(self, X: Any) -> NDArray[Any]:
        """Return contexts, which class vectors are compared with.

        Scores are their inner products with the rows of ``model_.class_vectors()``, times
        ``model_.settings.tau``. An index of these rows for the largest inner product, such as
        ``IndexFlatIP`` of FAISS or ``space="ip"`` of hnswlib, finds the labels of `predict_topk`.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (N, v)
            Inputs.

        Returns
        -------
        ndarray, shape (N, d)
            Contexts, of norm 1 if the model normalises, as its class vectors then are: inner
            products are cosines.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        X = self._check_fitted_inputs(X)
        return self.model_.embed(X.astype(self.model_.dtype, copy=False))

    def decision_function(self, X: Any) -> NDArray[Any]:
        """Return scores: logits of the softmax, or of two classes their difference.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (N, v)
            Inputs.

        Returns
        -------
        ndarray, shape (N, n), or (N,) with two classes
            Scores.

        Raises
        ------
        MemoryError
            If they would not fit.
        ValueError
            If inputs are malformed, or so large that a score is infinite.
        """
        X = self._check_fitted_inputs(X)
        out = self._gathered(X.shape[0], self._learner.scores(X))
        # scikit-learn's convention for two classes
        if len(self.classes_) == 2 and not self._learner.codec.multilabel:
            difference: NDArray[Any] = out[:, 1] - out[:, 0]
            return difference
        return out

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return probabilities.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (N, v)
            Inputs. Of a Dask array or dataframe the result is a Dask array, computed by blocks of
            rows.

        Returns
        -------
        ndarray, shape (N, n)
            The softmax p of the scores divided by the temperature of `calibration_`. Where
            examples may have several labels, ``1 - (1 - p)**L``: that of a label to be among L
            draws, the ``labels_each`` of `calibration_`.

        Raises
        ------
        MemoryError
            If they would not fit.
        ValueError
            If inputs are malformed, or so large that a score is infinite.
        """
        if is_dask(X):
            check_is_fitted(self)
            kinds = [(len(self.classes_), np.float64)]
            return next(self._by_blocks(X, "predict_proba", kinds))
        X = self._check_fitted_inputs(X)
        return self._gathered(X.shape[0], self._learner.probabilities(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of inputs whose label, or set of labels, is predicted.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (N, v)
            Inputs.
        y : array_like or matrix
            Labels, as in `fit`, but ones not seen there too, which are never predicted.
        sample_weight : array_like, shape (N,), optional
            Weights of the inputs, at least 0.

        Returns
        -------
        float
            Accuracy.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        predicted = self.predict(X)
        check_consistent_length(predicted, y)
        codec = self._learner.codec
        codes, wanted = (codec.encode(labels, unseen=True) for labels in (predicted, y))
        if codec.multilabel:  # the whole set
            right = np.diff(sparse.csr_array(codes != wanted).indptr) == 0
        else:
            right = codes == wanted
        weights = check_sample_weight(sample_weight, len(right))
        counted = np.flatnonzero(weights)  # sums with zeros among them have other last bits
        if not len(counted):
            raise ValueError("`sample_weight` must be above 0 for an example, got zero for all.")
        return float(np.average(right[counted], weights=scale_by_power_of_two(weights[counted])))

    def bias_report(self, X: Any, y: Any, **options: Any) -> TuneReport:
        """Measure which sampler and how many draws fit this model: `samplesoft.tune` on it.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (N, v)
            Inputs of examples; `batch_size` of them make a step.
        y : array_like
            Their labels, one of each.
        **options
            Those of `samplesoft.tune`, such as ``samplers`` or ``largest_bias``.

        Returns
        -------
        TuneReport
            Bias, error and time of all settings, and the one to take.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or the model takes several labels of an example.
        """
        check_is_fitted(self)
        if self._learner.codec.multilabel:
            raise ValueError(
                "`y` must hold one label of each example, but this model takes several; pass "
                "vectors and one label of each to samplesoft.tune."
            )
        X = self._checked_examples(X, y, reset=False).astype(self.model_.dtype, copy=False)
        known = self._learner.tune_inputs(X, self._learner.codec.encode(y))
        return tune(**{**known, "batch": self.batch_size, **options})

    def save(self, path: str | Path) -> None:
        """Write the model, as arrays and JSON without any pickled object.

        Parameters
        ----------
        path : str or Path
            An ``.npz`` file; it is written whole or not at all.

        Raises
        ------
        OSError
            If it cannot be written.
        TypeError
            If a parameter or a class is a Python object that JSON does not have, such as a sampler
            of your own.
        """
        check_is_fitted(self)
        saving.write_classifier(path, self)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a model of `save`; `partial_fit` goes on with it.

        Parameters
        ----------
        path : str or Path
            The file.

        Returns
        -------
        SampledSoftmaxClassifier
            The estimator.

        Raises
        ------
        FileNotFoundError
            If there is no such file.
        MemoryError
            If the model would not fit.
        ValueError
            If it is damaged, of another format, or holds another model; of one that ``samplesoft
            train`` has written, `samplesoft.training.read_linear_softmax` makes a model.
        """
        classifier, learner = saving.read_classifier(path, cls)
        classifier._take(learner)
        return classifier

    def __sklearn_tags__(self) -> Any:
        """Say what the estimator can do."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        return tags

    def _checked_inputs(self, X: Any, reset: bool) -> Any:
        """Return inputs (N, v) as an array or a CSR matrix; `reset` for those of a new model."""
        require_plain("X", X)
        if sparse.issparse(X) and hasattr(X, "check_format"):
            require_well_formed("X", X)  # before its indices are followed
        if sparse.issparse(X):  # before repeated entries add up
            X = in_wide_type(X)
        if isinstance(X, np.ndarray):
            X = native(X)  # or scikit-learn would make float64 of a float32 that it does not know
        kinds = [np.float64, np.float32]
        with np.errstate(over="ignore"):  # infinity is refused, here or by the model
            try:
                return validate_data(self, X, accept_sparse="csr", dtype=kinds, reset=reset)
            except OverflowError as error:  # of an integer of Python
                raise ValueError(
                    f"`X` must hold numbers of float64, got one beyond: {error}."
                ) from None

    def _checked_examples(self, X: Any, y: Any, reset: bool) -> Any:
        """Return inputs to train on, once there are as many labels."""
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        X = self._checked_inputs(X, reset)
        check_consistent_length(X, y)
        return X

    def _check_fitted_inputs(self, X: Any) -> Any:
        check_is_fitted(self)
        return self._checked_inputs(X, reset=False)

    def _checked_eval_set(
        self, eval_set: Any, X_val: Any, y_val: Any, codec: LabelCodec
    ) -> Examples | None:
        """Return the examples of `eval_set`, or of `X_val` and `y_val`, that have a label."""
        if X_val is None and y_val is None:
            if eval_set is None:
                return None
            if not isinstance(eval_set, tuple) or len(eval_set) != 2:
                raise TypeError(
                    f"`eval_set` must be a tuple (X, y), got {type(eval_set).__name__} "
                    f"{short_repr(eval_set)}; give one set of inputs, and their labels."
                )
            X_val, y_val = eval_set
            name, remedy = "eval_set", _IN_PIPELINES
        elif eval_set is not None or X_val is None or y_val is None:
            names = {"eval_set": eval_set, "X_val": X_val, "y_val": y_val}
            raise ValueError(
                "`eval_set` must come either as a tuple or as `X_val` and `y_val`, got "
                f"{' and '.join(name for name, value in names.items() if value is not None)}."
            )
        else:
            name, remedy = "X_val` and `y_val` as `eval_set", _TRANSFORMED
        try:
            X = self._checked_examples(X_val, y_val, reset=False)
            codes = codec.encode(y_val, unseen=True)
        except (TypeError, ValueError) as error:
            # an error of scikit-learn would be taken for one of the training data
            kind = TypeError if isinstance(error, TypeError) else ValueError
            reason = str(error).rstrip(".")[:_LONGEST_REASON]
            raise kind(
                f"`{name}` must be inputs and labels as those of the training data: {reason}; "
                f"{remedy}"
            ) from error
        rows = np.unique(examples_and_ids(codes)[0])
        if not len(rows):
            raise ValueError(f"`{name}` must hold a label for at least one example, got none.")
        return Examples(X, codes, np.ones(X.shape[0])).select(rows)

    def _new_seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _begin(self, X: Any, codec: LabelCodec, counts: FloatArray, seed: int) -> None:
        """Make a model with random parameters."""
        settings = resolved_for(self, codec, X.shape[0]).model
        with progress_phase(bool(self.verbose), "making the model"):
            learner = Learner(codec, X.shape[1], settings, counts, X.dtype, seed, self.optimizer)
        self._take(learner)
        m, n = self.num_sampled, len(codec.classes)
        if isinstance(m, (int, np.integer)) and m > n and not scores_all(model_fields(self), n):
            warnings.warn(
                f"`num_sampled` asks for {m:,} draws, more than the {n:,} classes; lower it, or "
                "take loss='full', which is as quick then and has no bias.",
                stacklevel=3,
            )

    def _take(self, learner: Learner) -> None:
        self._learner = learner
        self.classes_, self.model_ = learner.codec.classes, learner.model

    def _by_blocks(self, X: Any, method: str, kinds: Any, *args: Any) -> Any:
        """Yield what a method returns, of columns and types, as Dask arrays that call it later."""
        da, delayed = import_module("dask.array"), import_module("dask").delayed
        ask = delayed(getattr(self, method), traverse=False)  # the model goes to a worker once
        found = [ask(block, *args) for block in blocks_of(X)]
        sizes = X.chunks[0] if hasattr(X, "chunks") else [np.nan] * len(found)
        for place, (columns, dtype) in enumerate(kinds):
            parts = [part[place] if len(kinds) > 1 else part for part in found]
            made = zip(parts, sizes, strict=True)
            yield da.concatenate([da.from_delayed(p, (rows, columns), dtype) for p, rows in made])

    def _gathered(self, num: int, parts: Iterable[tuple[slice, NDArray[Any]]]) -> NDArray[Any]:
        """Return a number for each of some inputs and each class, or raise MemoryError."""
        n = len(self.classes_)
        require_bytes(
            f"{num:,} inputs times {n:,} classes",
            8 * num * n,
            "pass fewer inputs at a time, or take predict_topk",
        )
        out = np.empty((num, n))
        for part, numbers in parts:  # which are made one by one
            out[part] = numbers
        return out


def blocks_of(array: Any) -> list[Any]:
    """Return the rows of a Dask array or dataframe by the block, each with all columns."""
    if not hasattr(array, "rechunk"):
        return list(array.to_delayed())
    if array.ndim > 1:
        array = array.rechunk({1: -1})
    return list(array.to_delayed().ravel())


def predict_topk(
    estimator: Any, X: Any, k: int | None = None, *, exclude: Any = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the best labels of inputs that a pipeline transforms first.

    It is ``pipeline[-1].predict_topk(pipeline[:-1].transform(X), k)``.

    Parameters
    ----------
    estimator : Pipeline, search such as GridSearchCV, or SampledSoftmaxClassifier
        Fitted; the last step of a pipeline is the classifier, or a pipeline that ends in it. Of a
        search its `best_estimator_`.
    X : array_like or sparse matrix, shape (N, v), or whatever the first step takes
        Inputs.
    k, exclude
        As in `SampledSoftmaxClassifier.predict_topk`.

    Returns
    -------
    labels, scores : ndarray, shape (N, k)
        As of `SampledSoftmaxClassifier.predict_topk`.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or the last step has no `predict_topk`.

    Examples
    --------
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> from sklearn.pipeline import make_pipeline
    >>> from samplesoft.sklearn import SampledSoftmaxClassifier, predict_topk
    >>> texts, names = ["red fruit", "red berry", "green leaf"], ["apple", "cherry", "mint"]
    >>> pipe = make_pipeline(CountVectorizer(), SampledSoftmaxClassifier(random_state=0))
    >>> labels, scores = predict_topk(pipe.fit(texts, names), ["red"], 2)
    >>> sorted(labels[0].tolist())
    ['apple', 'cherry']
    >>> predict_topk(pipe, ["red"], 1, exclude=[["apple"]])[0].tolist()
    [['cherry']]
    """
    while not hasattr(estimator, "predict_topk"):
        if isinstance(estimator, Pipeline):
            if len(estimator) > 1:
                X = estimator[:-1].transform(X)
            estimator = estimator[-1]
        elif hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        else:
            raise TypeError(
                "`estimator` must be a SampledSoftmaxClassifier, a pipeline that ends in one, or a "
                f"fitted search (with refit=True) over either, got {type(estimator).__name__}."
            )
    best: tuple[NDArray[Any], NDArray[Any]] = estimator.predict_topk(X, k, exclude=exclude)
    return best
