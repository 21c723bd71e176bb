"""The scikit-learn classifier: parameters, fitting, prediction, evaluation and saving."""

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
    integers_to_float64,
    native_byte_order,
    require_host_array,
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
    example_and_class_indices,
    example_weights,
    infer_codec,
)
from samplesoft.sklearn.learner import (
    ClassifierTask,
    canonical_inputs,
    choose_auto_settings,
    mean_row_norm,
    resolve_settings,
    train,
)
from samplesoft.sklearn.parameters import (
    check_parameters,
    linear_softmax_parameters,
    needs_pilot,
    require_same_model,
)
from samplesoft.training.linear_task import Examples
from samplesoft.training.loop import Callback, require_callbacks, unchanged_on_error
from samplesoft.training.resolved import scores_all_classes
from samplesoft.tuning.report import TuneReport
from samplesoft.tuning.tune import tune

_MAX_QUOTED_CHARACTERS = 500  # max length of a quoted error message
_EVAL_SET_REMEDY = (
    "a pipeline transforms no inputs of an `eval_set`, or its labels too: pass `X_val` and `y_val` "
    "to it, which has transform_input=['X_val']."
)
_X_VAL_REMEDY = "a pipeline transforms `X_val` if it has transform_input=['X_val']."


@dataclass(eq=False, repr=False)
class SampledSoftmaxClassifier(ClassifierMixin, BaseEstimator):
    """Linear softmax classifier for very many classes, trained by sampled softmax.

    The score of class j is ``tau * (x @ U + u) . c_j``. By default the embedding ``x @ U + u`` and
    the class vector ``c_j`` are divided by their norms. If that is better on held-out examples, a
    weight of each pair of a feature in x and the class is added; see `pair_weights`. The cost of a
    training step depends on the nonzero inputs of the batch, its labels and the sampled classes,
    but not on the number n of classes.

    Parameters
    ----------
    embedding_dim : int, "auto" or None
        Dimension d of the input embedding and of the class vectors; ``"auto"`` is 256 for up to
        2,000 classes, else 128. None gives the scores ``tau * (x @ W + b)``, a linear model without
        a bottleneck, for sparse inputs such as tf-idf. A step then updates only the entries of W
        for features in the batch and for labels and drawn classes. W has v times n parameters, and
        the sampler must not depend on inputs: it must draw uniformly or by counts.
    alpha : float, optional
        Strength of the L2 penalty ``alpha / 2 * sum(W**2)`` on the mean loss, for `embedding_dim`
        None; by default 0.003 divided by the number of classes. Tuning it is worthwhile; see Notes.
    loss : str
        ``"sampled"``: sampled softmax. ``"jackknife"``: sampled softmax without its bias of order
        1/m. ``"multilevel"``: an unbiased estimate, from 4.4 m draws on average.
        ``"negative-sampling"``: negative sampling. These four exclude the label from the draws. The
        same names followed by ``-masked`` allow draws of the label, and give them weight 0. If the
        draws cannot exclude the label, because examples share draws or have several labels, a name
        without ``-masked`` means the name with ``-masked``. ``"nce"``: noise-contrastive
        estimation. ``"importance"``: importance sampling from draws only, without a separate term
        for the label. ``"gbce"``, ``"bpr"`` and ``"warp"``: losses of recommenders, for comparison,
        meant for uniform draws. ``"full"``: the full softmax, which has no bias. The default loss
        with the default draws becomes the full softmax for up to 1,000 classes, or 1,500 if
        examples may have several labels: it then takes at most about twice the time. With 10,000
        classes it takes some ten times as long. ``"full-logistic"``: one logistic regression per
        class. ``"hierarchical"``: a softmax over cells of classes of similar frequency, and one
        over the classes of a cell. Negative sampling learns the ratio of label frequency to
        proposal; with draws by counts it ranks rare classes too high, the more so the more classes
        there are.
    sampler : str, callable or sampler
        A key of `samplesoft.samplers.SAMPLERS`; ignored by ``loss="full"``. Samplers by counts,
        such as the default, use the class counts of the data in `fit`. ``"auto"`` chooses between
        draws by counts and by clusters; see Notes. A custom sampler may be an object, which each
        `fit` copies. Or it may be a function that makes a sampler from the
        `samplesoft.samplers.SamplerInputs` of the `fit`, which contain the class vectors, such as
        ``lambda inputs: make_sampler("quadratic", dataclasses.replace(inputs, alpha=1.0))``.
    num_sampled : int or "auto", optional
        Number m of draws per batch, or per example if not `shared`. The default is 100; if draws
        are shared and do not depend on vectors, it is n / 32, but from 300 to 1,000, and 1,000 if
        examples may have several labels. With up to 100 classes and a softmax loss, the default is
        the full softmax, which is as fast and has no bias; see also `loss`. ``"auto"`` chooses a
        number; see Notes.
    shared : bool, optional
        Use one set of draws for the whole batch, which makes a step faster. The default is True if
        sharing costs little accuracy: for samplers that do not depend on contexts, such as the
        default, and losses whose draws may contain the label. See also
        `samplesoft.models.SoftmaxSettings`.
    tau : float, optional
        Inverse temperature of the scores in training. By default it is 1 if not `normalize`.
        Otherwise it begins with ``max(10, 1.5 log n)``, and changes after each of the first epochs
        such that the loss on held-out examples falls; see `calibrate`. Scores of normalised vectors
        lie between -tau and tau: the clearer the labels follow from the inputs, the larger a score
        may be. ``model_.settings.tau`` is the result.
    normalize : bool, optional
        Divide embeddings and class vectors by their norms, which some samplers require. The default
        is True, except for `embedding_dim` None and the loss ``"full-logistic"``, where it must be
        False.
    nu, num_features : float, int
        Parameters of the sampler; see `samplesoft.samplers.SamplerInputs`.
    update_every : int
        Number of steps between updates of the sampler, for samplers that use class vectors.
    dropout : float
        Fraction of the entries of an input that a training step sets to 0, at random.
    label_reduction : {"pal-n", "pal", "ova"}
        Loss of an example with several labels: "pal-n" is the mean of the losses of its labels,
        "pal" their sum, and "ova" one versus all, for ``loss="nce"`` and
        ``"negative-sampling-masked"``. In theory the mean improves recall and the sum precision; in
        our measurements the mean had the better precision at 1. See `samplesoft.losses.base.Loss`.
    mask_other_labels : bool
        For a label of an example with several labels, exclude the other labels from the negatives.
    max_iter : int, optional
        Number of epochs. By default it is chosen by the loss on held-out examples, at most 30; see
        `calibrate`. Without held-out examples, or for a loss that is not softmax, it is 10, or more
        if there are fewer than 400 steps. It is 20 for `embedding_dim` None, and at most 30 with
        `early_stopping`.
    batch_size : int
        Number of examples per step.
    optimizer : str
        A key of `samplesoft.optimizers.OPTIMIZERS`.
    learning_rate : float, optional
        Learning rate of the optimizer. The default is 0.1 for ``"adagrad"`` and 0.003 for
        ``"adam"``. For `embedding_dim` None it is 2 for ``"adagrad"`` and 0.2 for ``"adam"``,
        divided by the mean row norm of `X` in the first call if this norm is above 1. Other
        optimizers get the default of ``"adagrad"``, which may not suit them.
    schedule : {"constant", "linear", "cosine", "inverse-sqrt"}, optional
        Learning rate during `fit`: constant, or decreasing to 0 at its end, or falling with the
        square root of the epochs. The default is constant with `max_iter`, else linear after a
        trial run, and ``"inverse-sqrt"`` without one; see Notes. `partial_fit` uses the constant
        rate.
    warmup : float
        Fraction of the steps of `fit` during which the learning rate first rises linearly.
    early_stopping : bool
        Hold out examples, stop when precision at 1 on them no longer rises, and keep the best
        parameters.
    validation_fraction : float
        Fraction of the examples to hold out, unless `fit` is given an ``eval_set``.
    n_iter_no_change : int
        Number of epochs without improvement after which training stops.
    tol : float
        Smallest rise of the validation score that counts as an improvement.
    average : bool
        Use an average of the parameters after each epoch of `fit`, with larger weights for later
        epochs, so that too many epochs do less harm. The average needs memory for a copy of the
        parameters.
    calibrate : bool
        Calibrate `predict_proba` on examples that the model was not trained on. These are the
        examples of ``eval_set``, or the examples held out for `early_stopping`. Without either, a
        `fit` from scratch holds out `validation_fraction` of the examples, at most 1,000. If there
        are at least 32 of them, they also determine `tau` and `max_iter`, where these are not
        given; see Notes. With False, probabilities are the softmax of the scores, all epochs use
        all examples, and `tau` and `max_iter` have fixed defaults.
    pair_weights : bool
        Add to each score a bias of the class, and a weight for each feature of the input and this
        class, if they lower the loss on held-out examples. They are tried only in a trial run (see
        Notes), for sparse inputs, and if all n v weights fit in 256 MiB in training; most of them
        are 0, and are not stored. They help where a few words determine the labels. Such scores are
        no longer inner products of vectors: take False for an index of vectors. `partial_fit`, and
        `fit` with `warm_start`, leave the weights as they are, and a model that was never in a
        trial run has none; ``model_.pair_weights`` is then None.
    class_weight : dict, "balanced" or None
        Weights of classes. The weight of an example is the mean of the weights of its labels, times
        its `sample_weight` in `fit`. Examples whose labels all have weight 0 are not used in
        training, but their classes remain.
    warm_start : bool
        Continue from the parameters of the last `fit`, which must have had the same classes.
    random_state : int, numpy.random.RandomState or None
        Seed of the initial parameters, the order of examples, dropout and draws. For sparse inputs,
        sampled losses and an `embedding_dim`, the same seed gives the same model with any number of
        threads. Otherwise there are products of dense matrices, whose last bits may depend on the
        number of BLAS threads, except inside
        ``with threadpoolctl.threadpool_limits(1, "blas"):``. Dense inputs and the same inputs as a
        sparse matrix use the same draws, so that their models differ only by rounding, and by
        `pair_weights`, which only sparse inputs have. There are larger differences with `dropout`,
        or if the sampler uses class vectors, because rounding then changes draws.
    verbose : bool
        Show loss and validation score on stderr: a progress bar on a terminal, else one line per
        epoch.

    Attributes
    ----------
    classes_ : ndarray, shape (n,)
        Distinct labels in ascending order. For an indicator matrix, the indices of its columns, or
        the names of the columns of a dataframe. The dtype is that of the labels, with two
        exceptions. Integers of several types, or in an object array, become int64 if they fit, else
        uint64, else objects. Text becomes objects if a label has more than 256 characters, because
        NumPy would pad all labels to its length.
    model_ : LinearSoftmax
        The model: input embedding, softmax layer, and ``pair_weights``, which may be None.
    n_features_in_ : int
        Number v of input columns.
    feature_names_in_ : ndarray of object, shape (v,)
        Names of the input columns, if the input was a dataframe whose column names are text.
    n_iter_ : int
        Number of epochs of the last `fit`.
    num_unlabeled_ : int
        Number of examples without a label in the last `fit`, which were left out.
    loss_curve_ : list of float
        Mean training loss in nats, per epoch; without the epochs of a trial run.
    held_out_losses_ : list of float
        Loss in nats on held-out examples after each of the first epochs, until it no longer falls;
        empty if nothing was held out.
    resolved_ : samplesoft.training.Resolved
        Settings of the last `fit` with all defaults resolved: loss, sampler, number of draws,
        epochs and learning rate. With `verbose` they are the first line of the output. Its field
        `runner_up` names the loss that is next best, and its cost. Its field
        `step_by_step` is None if many steps ran in one compiled call, which is about 2.5 times as
        fast on sparse inputs; otherwise it is the reason why they did not.
    validation_scores_ : list of float
        Precision at 1 after each epoch, on ``eval_set`` or on the examples held out for
        `early_stopping`; empty without either.
    calibration_ : Calibration
        Calibration of `predict_proba`. Its field ``temperature`` is the divisor of the scores, 1
        without calibration. Unless the loss is ``"full-logistic"``, its field ``labels_each`` is
        the assumed number of labels per example, or None if each example has one label.
    auto_choice_ : dict
        Result of ``"auto"``: ``loss``, ``sampler``, ``num_sampled``, ``shared``, ``verdict``, the
        reason in words, and ``seconds``, the time that the choice took.

    Notes
    -----
    **When to use it.** Use this classifier for more than a few hundred classes, with sparse or
    dense inputs, and with one or several labels per example. With up to 1,000 classes it uses the
    full softmax by default, because sampling would save at most half of the time. To improve
    accuracy, increase `num_sampled` or `embedding_dim` first. docs/benchmarks.md, section "Losses
    and samplers of the classifier", has measurements of losses, samplers and numbers of draws.
    ``figures/classifier_frontier.py`` compares other methods, such as fastText, label trees and
    one-vs-rest.

    **Without a bottleneck.** For bags of words with several labels out of a few hundred,
    `embedding_dim` None was better; with one label per example it was not (docs/benchmarks.md,
    section "The classifier without a bottleneck"). ``"full-logistic"`` is a logistic regression per
    label, as in scikit-learn's one-vs-rest. With this loss, an example with many labels has more
    influence than in a softmax, unless `sample_weight` compensates. Choose `alpha` by a grid
    search.

    **Calibration.** A model is more confident on its training examples than on new examples. So
    `fit` chooses the temperature that minimises the log loss on examples that are new to the model.
    If there are few such examples, a penalty keeps the temperature near that of training. The model
    is trained on these examples afterwards, so that no accuracy is lost. With several labels per
    example, `labels_each` is fitted as well. Measurements are in docs/benchmarks.md, section
    "Calibration of the classifier".

    **Epochs and tau.** After each epoch `fit` computes the loss on held-out examples, and changes
    tau such that it falls, until two epochs have not lowered it by more than 0.2 %, and for at
    least 100 steps. Let b be the last epoch that lowered it. If more than 5 % of the examples are
    held out, as by default with fewer than 20,000 examples, this was a trial run: the model is then
    trained from scratch on all examples, for 1.5 b + 1 epochs with a learning rate that decays
    linearly. If fewer are held out, training ends after epoch b + 1, and after steps on the
    held-out examples; the learning rate falls with the square root of the epochs, because the end
    is not known. With `max_iter`, held-out examples are left out of the first half of the epochs.
    Measurements are in docs/benchmarks.md, section "Epochs and temperature of the classifier".

    **Pair weights.** In a trial run, a linear model of the full softmax, with a weight for each
    pair of a feature and a class, is trained by four passes of stochastic gradient descent over the
    examples that are not held out. If the sum of both models' scores has a lower loss on the
    held-out examples than the scores of the embedding alone, the linear model makes a pass over the
    held-out examples, and is kept. Before losses are compared, scores are multiplied by the best
    factor. The linear model is not tried if it would take more than about half of the time of the
    fit. Measurements are in docs/benchmarks.md, section "Pair weights of the classifier".

    **Automatic choice.** With ``"auto"``, `fit` first trains a pilot model for a tenth of its steps
    (100 to 1000) with 100 draws by counts. `samplesoft.tune` measures settings on the vectors of
    the pilot, with shared and separate draws unless `shared` is given. `fit` takes the fastest
    setting with a bias of at most 0.02, or the full softmax if that is faster. The model is then
    trained from scratch with this setting, which `warm_start`, `partial_fit` and `save` keep. The
    choice depends on times measured on this machine: if two settings are about equally fast,
    another machine may choose the other setting with the same seed.

    **Edge cases.** The embedding of an input without entries, such as a text of unknown words, is
    the intercept, so that frequent classes are predicted. An example without a label (an empty list
    or a row of zeros) is left out of training, also for ``"full-logistic"``, and ignored in
    ``eval_set``; `score` counts it as correct if no label is predicted. Labels that were not seen
    in training raise an error in `partial_fit`, count as wrong in `score` and ``eval_set``, and are
    ignored in ``exclude``. Missing labels (None, NaN or NA) raise an error.

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

    The same labels found by inner products, as an index of FAISS or hnswlib does:

    >>> vectors, contexts = clf.model_.class_vectors(), clf.embed(X[:1])
    >>> best = (contexts @ vectors.T).argsort(axis=1)[:, :-3:-1]  # the two largest products
    >>> bool((clf.classes_[best] == labels).all())
    True
    """

    embedding_dim: int | str | None = "auto"
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
    schedule: str | None = None
    warmup: float = 0.0
    early_stopping: bool = False
    validation_fraction: float = 0.1
    n_iter_no_change: int = 5
    tol: float = 1e-4
    average: bool = True
    calibrate: bool = True
    pair_weights: bool = True
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
        """Train the model from scratch, or continue with `warm_start`.

        Parameters
        ----------
        X : array_like, sparse matrix or dataframe, shape (N, v)
            Inputs; sparse inputs stay sparse. A row of zeros is a valid example.
        y : array_like, shape (N,), or indicator matrix (N, n), or list of N lists of labels
            One label per example, or several: text, whole numbers of any size, or booleans. Labels
            that differ in Python are different classes, such as 2**60 and 2**60 + 1, also in a
            nullable column of pandas. Examples without labels are left out; `num_unlabeled_` is
            their number. If `y` is a dataframe with several columns, `predict_topk` returns the
            names of columns as labels, and `predict` returns an array of zeros and ones, like
            scikit-learn's classifiers.
        sample_weight : array_like, shape (N,), optional
            Weights of the losses of examples, multiplied by `class_weight`. Class counts are sums
            of these weights; examples of weight 0 are left out.
        eval_set : tuple of X and y, optional
            Validation inputs and labels, for `validation_scores_`, `early_stopping` and
            `calibrate`; no training examples are then held out. Labels that are not in `y` cannot
            be predicted, and count as missed; examples without a label are ignored. A pipeline does
            not transform `eval_set`.
        X_val, y_val : array_like, optional
            The inputs and labels of `eval_set` as two arguments, for a pipeline with
            ``transform_input=["X_val"]``, which transforms the inputs only.
        callbacks : sequence of samplesoft.training.Callback
            Callbacks between steps and after epochs, which are not called in a trial run. In them,
            ``task.model`` is the model after the last step; with `average` its parameters become
            the average only at the end.

        Returns
        -------
        SampledSoftmaxClassifier
            The estimator.

        Raises
        ------
        TypeError, ValueError
            If an argument or a parameter is malformed, or training diverges.
        MemoryError
            If the model does not fit into memory.
        KeyboardInterrupt
            At Ctrl-C. The estimator is then unchanged, as after an error; with `warm_start` it has
            the parameters of the last step.

        Warns
        -----
        UserWarning
            If examples are without a label, or `num_sampled` is more than there are classes.
        """
        check_parameters(self)
        require_callbacks(callbacks)
        with report_compilation(bool(self.verbose)), unchanged_on_error(self):
            continues = self.warm_start and hasattr(self, "model_")
            X = self._checked_example_inputs(X, y, reset=not continues)
            codec = self._learner.codec if continues else infer_codec(y)
            codes = codec.encode(y)

            all_labelled_rows = np.unique(example_and_class_indices(codes)[0])
            if not len(all_labelled_rows):
                raise ValueError("`y` must hold a label for at least one example, got none.")

            sample_weight = check_sample_weight(sample_weight, X.shape[0])
            weights_by_class = class_weights(self.class_weight, codec, codes, sample_weight)
            weights = example_weights(weights_by_class, codes, sample_weight)
            labelled_rows = all_labelled_rows[sample_weight[all_labelled_rows] > 0.0]
            train_rows = np.flatnonzero(weights)  # examples of weight 0 are left out
            if not len(train_rows):
                name = "class_weight" if len(labelled_rows) else "sample_weight"
                raise ValueError(
                    f"`{name}` must be above 0 for an example with a label, got zero for all."
                )

            validation = self._checked_eval_set(eval_set, X_val, y_val, codec)
            if continues:
                require_same_model(self, resolve_settings(self, codec, len(train_rows)).model)
            else:
                # make a new model, with the dtype and the number of inputs of `X`
                counts = class_counts(codes, len(codec.classes), sample_weight)
                seed = self._new_seed()

                self.__dict__.pop("auto_choice_", None)
                if needs_pilot(self, len(codec.classes)):
                    examples = Examples(X, codes, weights)
                    self.auto_choice_ = choose_auto_settings(
                        self, examples, train_rows, codec, counts, seed
                    )

                self._make_learner(X, codec, counts, seed)
                X = canonical_inputs(X)
                self._learner.row_norm = mean_row_norm(X, train_rows)

            self.num_unlabeled_ = X.shape[0] - len(all_labelled_rows)
            if self.num_unlabeled_:
                warnings.warn(
                    f"{self.num_unlabeled_:,} of {X.shape[0]:,} examples are without a label and "
                    "were left out.",
                    stacklevel=2,
                )

            # hold out examples for validation scores, or for calibration
            learner = self._learner
            calibration_rows = labelled_rows[:0]
            if validation is None and self.early_stopping:
                # `class_weight` does not apply to validation scores, so all labelled rows are split
                remaining, held_out = learner.split_for_validation(
                    labelled_rows, self.validation_fraction
                )
                validation = Examples(X, codes, sample_weight).rows(held_out)
                train_rows = remaining[weights[remaining] > 0.0]
                if not len(train_rows):
                    raise ValueError(
                        "`class_weight` must be above 0 for an example that is not held out, got "
                        "zero for all; give more examples, or an `eval_set`."
                    )
            elif validation is None and self.calibrate and not continues:
                # not with `warm_start`, because no example would be new to the model
                train_rows, calibration_rows = learner.split_for_calibration(
                    train_rows, self.validation_fraction
                )

            train(
                self,
                Examples(X, codes, weights),
                train_rows,
                validation,
                calibration_rows,
                weights_by_class,
                callbacks,
                continues=continues,
            )

        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train the model by one step on a batch of examples.

        Steps neither use nor change `pair_weights`: a model of `partial_fit` alone has none, and
        after a `fit` they remain as they are.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (B, v)
            Inputs. If `X`, `y` and `sample_weight` are Dask collections, each block of rows is a
            batch.
        y : array_like or matrix
            Labels, as in `fit`.
        classes : array_like, shape (n,)
            All labels, or the names of the columns of `y`; required in the first call unless `y` is
            an indicator matrix. Samplers by counts use the class counts of the first batch, plus
            one for each class.
        sample_weight : array_like, shape (B,), optional
            Weights of the examples, as in `fit`.

        Returns
        -------
        SampledSoftmaxClassifier
            The estimator.

        Raises
        ------
        TypeError, ValueError
            If an argument or a parameter is malformed, or classes differ from the first call.
        MemoryError
            If the model does not fit into memory.

        Warns
        -----
        UserWarning
            If `num_sampled` is more than there are classes, in the first call.
        """
        # one step for each block, so that only one block is in memory at a time
        if is_dask(X):
            if not is_dask(y):
                raise TypeError(f"`y` must be of Dask where `X` is, got {type(y).__name__}.")

            block_lists = [
                row_blocks(array) for array in (X, y, sample_weight) if array is not None
            ]
            if len({len(blocks) for blocks in block_lists}) > 1:
                raise ValueError(
                    "`X`, `y` and `sample_weight` must have as many blocks of rows, got "
                    f"{', '.join(str(len(blocks)) for blocks in block_lists)}; rechunk them alike."
                )

            for blocks in zip(*block_lists, strict=True):
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
            is_first = not hasattr(self, "model_")
            X = self._checked_example_inputs(X, y, reset=is_first)
            sample_weight = check_sample_weight(sample_weight, X.shape[0])
            codec = infer_codec(y, classes) if is_first else self._learner.codec
            codes = codec.encode(y)

            if is_first:
                if classes is None and codec.form in (SINGLE, LISTS):
                    raise ValueError(
                        "`classes` must hold all labels in the first call of partial_fit, got None."
                    )
                if needs_pilot(self, len(codec.classes)):
                    raise ValueError(
                        "`sampler` and `num_sampled` must not be 'auto' in the first call of "
                        "partial_fit, which sees one batch; call fit on some of the data first, or "
                        "name them."
                    )

                # plus one, so that classes that are not in this batch have a count above 0
                counts = class_counts(codes, len(codec.classes), sample_weight) + 1.0
                self._make_learner(X, codec, counts, self._new_seed())
                X = canonical_inputs(X)
                self.n_iter_ = 0
            else:
                if classes is not None and not codec.has_same_classes(classes):
                    raise ValueError(
                        "`classes` must be those of the first call of partial_fit; leave it out."
                    )
                require_same_model(self, resolve_settings(self, codec, X.shape[0]).model)
                X = X.astype(self.model_.dtype, copy=False)

            weights_by_class = class_weights(self.class_weight, codec, codes, sample_weight)
            weights = example_weights(weights_by_class, codes, sample_weight)

            rows = np.flatnonzero(weights)
            if len(rows):
                if not self._learner.steps_taken:  # first step: earlier batches had weight 0
                    self._learner.row_norm = mean_row_norm(X, rows)

                row_norm = self._learner.row_norm
                optimizer = self._learner.optimizer
                resolved = resolve_settings(self, codec, len(rows), row_norm=row_norm)
                optimizer.learning_rate = resolved.learning_rate
                batch = Examples(X, codes, weights).select(rows)
                self._learner.learn(optimizer, *batch)

            # a copy of the estimator made during `fit` has no `n_iter_`
            self.n_iter_ = getattr(self, "n_iter_", 0) + 1

        return self

    @property
    def calibration_(self) -> Calibration:
        """The calibration with which `predict_proba` converts scores to probabilities."""
        return self._learner.calibration

    def predict(self, X: Any) -> Any:
        """Return the most probable label of each input, or all labels with probability >= 1/2.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (N, v)
            Inputs.

        Returns
        -------
        ndarray, shape (N,), or labels in the form of `y` in `fit`
            Predicted labels. If examples may have several labels, the labels whose probability in
            `predict_proba` is at least 1/2.
        """
        X = self._checked_fitted_inputs(X)
        if not self._learner.codec.multilabel:
            return self.classes_[self.model_.top_k(X, 1)[0][:, 0]]

        # chunk by chunk, so that no matrix of all probabilities is needed
        chosen = [sparse.csr_array(proba >= 0.5) for _, proba in self._learner.probabilities(X)]
        matrix = sparse.csr_array(sparse.vstack(chosen, format="csr"))
        return self._learner.codec.decode_matrix(matrix)

    def predict_topk(
        self, X: Any, k: int | None = None, *, exclude: Any = None
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the k labels with the largest scores for each input.

        No matrix of all scores is made. `samplesoft.sklearn.predict_topk` does the same for a
        pipeline.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (N, v)
            Inputs. For a Dask array or dataframe the results are Dask arrays, computed by blocks of
            rows; `exclude` must then be None.
        k : int, optional
            Number of labels, at most n; by default min(5, n).
        exclude : sparse matrix, shape (N, n), or list of N lists of labels, optional
            Labels to exclude for each input, such as labels that are already known. The columns of
            a matrix are in the order of `classes_`. Labels that are not classes are ignored.

        Returns
        -------
        labels : ndarray, shape (N, k)
            Labels in the order of decreasing scores.
        scores : ndarray, shape (N, k)
            Scores of these labels, the logits of the softmax. If fewer than k labels are not
            excluded, excluded labels follow, with score -inf.

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
            labels, scores = self._map_blocks(X, "predict_topk", kinds, k)
            return labels, scores

        X = self._checked_fitted_inputs(X)
        if exclude is not None:
            exclude = self._learner.codec.encode_excluded("exclude", exclude, X.shape[0])
        ids, scores = self.model_.top_k(X, k, leave_out=exclude)

        return self.classes_[ids], scores

    def embed(self, X: Any) -> NDArray[Any]:
        """Return the embeddings of inputs, which are the context vectors of the softmax.

        Scores are inner products of these embeddings with the rows of ``model_.class_vectors()``,
        times ``model_.settings.tau``, unless the model has `pair_weights`, which are added. Without
        them a maximum-inner-product index of these rows, such as
        ``IndexFlatIP`` of FAISS or ``space="ip"`` of hnswlib, finds the labels of `predict_topk`.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (N, v)
            Inputs.

        Returns
        -------
        ndarray, shape (N, d)
            Context vectors. With `normalize`, context and class vectors have norm 1, so that inner
            products are cosines.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed.
        """
        X = self._checked_fitted_inputs(X)
        return self.model_.embed(X.astype(self.model_.dtype, copy=False))

    def decision_function(self, X: Any) -> NDArray[Any]:
        """Return the scores of all classes, the logits of the softmax.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (N, v)
            Inputs.

        Returns
        -------
        ndarray, shape (N, n), or (N,) with two classes
            Scores. With two classes and one label per example, the score of the second class minus
            the score of the first.

        Raises
        ------
        MemoryError
            If the result does not fit into memory.
        ValueError
            If inputs are malformed, or so large that a score is infinite.
        """
        X = self._checked_fitted_inputs(X)
        out = self._gather_chunks(X.shape[0], self._learner.scores(X))

        # for two classes, scikit-learn expects the difference of the scores
        if len(self.classes_) == 2 and not self._learner.codec.multilabel:
            difference: NDArray[Any] = out[:, 1] - out[:, 0]
            return difference
        return out

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the calibrated probabilities of all classes.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (N, v)
            Inputs. For a Dask array or dataframe the result is a Dask array, computed by blocks of
            rows.

        Returns
        -------
        ndarray, shape (N, n)
            Probabilities p, the softmax of the scores divided by the temperature of `calibration_`.
            If examples may have several labels, the result is ``1 - (1 - p)**L``, with L =
            ``labels_each`` of `calibration_`: the probability that a class is among L draws from p.
            For the loss ``"full-logistic"``, probabilities are sigmoids instead of a softmax; if
            each example has one label, they are divided by their sum.

        Raises
        ------
        MemoryError
            If the result does not fit into memory.
        ValueError
            If inputs are malformed, or so large that a score is infinite.
        """
        if is_dask(X):
            check_is_fitted(self)
            kinds = [(len(self.classes_), np.float64)]
            return next(self._map_blocks(X, "predict_proba", kinds))

        X = self._checked_fitted_inputs(X)
        return self._gather_chunks(X.shape[0], self._learner.probabilities(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy of `predict`: the fraction of inputs whose labels are all correct.

        With several labels, the predicted set of labels must be equal to the true set.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (N, v)
            Inputs.
        y : array_like or matrix
            Labels, as in `fit`. Labels that were not seen in `fit` are allowed, but inputs with
            such labels count as wrong.
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
        codes, targets = (codec.encode(labels, unseen=True) for labels in (predicted, y))

        if codec.multilabel:  # correct if the two rows have the same labels
            is_correct = np.diff(sparse.csr_array(codes != targets).indptr) == 0
        else:
            is_correct = codes == targets

        weights = check_sample_weight(sample_weight, len(is_correct))
        weighted = np.flatnonzero(weights)  # weights 0 could change the last bits
        if not len(weighted):
            raise ValueError("`sample_weight` must be above 0 for an example, got zero for all.")

        return float(
            np.average(is_correct[weighted], weights=scale_by_power_of_two(weights[weighted]))
        )

    def bias_report(self, X: Any, y: Any, **options: Any) -> TuneReport:
        """Measure the bias and the speed of several samplers and numbers of draws for this model.

        This calls `samplesoft.tune` with the class vectors of the model and the embeddings of `X`.

        Parameters
        ----------
        X : array_like or sparse matrix, shape (N, v)
            Inputs; each timed step uses `batch_size` of them.
        y : array_like
            Labels, one per input.
        **options
            Options of `samplesoft.tune`, such as ``samplers`` or ``largest_bias``.

        Returns
        -------
        TuneReport
            Bias, error and time of all settings, and the recommended one.

        Raises
        ------
        TypeError, ValueError
            If an argument is malformed, or examples of the model may have several labels.
        """
        check_is_fitted(self)
        if self._learner.codec.multilabel:
            raise ValueError(
                "`y` must hold one label of each example, but this model takes several; pass "
                "vectors and one label of each to samplesoft.tune."
            )
        X = self._checked_example_inputs(X, y, reset=False).astype(self.model_.dtype, copy=False)
        inputs = self._learner.tune_inputs(X, self._learner.codec.encode(y))
        return tune(**{**inputs, "batch": self.batch_size, **options})

    def save(self, path: str | Path) -> None:
        """Write the estimator to a file of arrays and JSON, without pickled objects.

        Parameters
        ----------
        path : str or Path
            An ``.npz`` file, written atomically.

        Raises
        ------
        OSError
            If the file cannot be written.
        TypeError
            If a parameter or a class cannot be written as JSON, such as a custom sampler.
        """
        check_is_fitted(self)
        saving.write_classifier(path, self)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the estimator in a file written by `save`; `partial_fit` can continue training.

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
            If the model does not fit into memory.
        ValueError
            If the file is damaged, has another format, or holds another kind of model. For a file
            written by ``samplesoft train``, use `samplesoft.training.read_linear_softmax`.
        """
        classifier, learner = saving.read_classifier(path, cls)
        classifier._set_learner(learner)
        return classifier

    def __sklearn_tags__(self) -> Any:
        """Return the scikit-learn tags, with support of sparse inputs and of several labels."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        return tags

    def _checked_inputs(self, X: Any, reset: bool) -> Any:
        """Return inputs (N, v) as an array or a CSR matrix of floats; raise if they are malformed.

        With `reset`, the number and the names of the features are stored; otherwise they are
        compared with the stored ones.
        """
        require_host_array("X", X)
        if sparse.issparse(X) and hasattr(X, "check_format"):
            require_well_formed("X", X)  # before other functions use the indices
        if sparse.issparse(X):
            X = integers_to_float64(X)  # sums of repeated integers could overflow

        if isinstance(X, np.ndarray):
            # scikit-learn would convert float32 in foreign byte order to float64
            X = native_byte_order(X)

        kinds = [np.float64, np.float32]
        with np.errstate(over="ignore"):  # `validate_data` raises for infinite values
            try:
                return validate_data(self, X, accept_sparse="csr", dtype=kinds, reset=reset)
            except OverflowError as error:  # a large Python integer
                raise ValueError(
                    f"`X` must contain numbers in the range of float64, got a larger one: {error}."
                ) from None
            except ValueError as error:
                if "could not convert string" not in str(error):
                    raise
                raise ValueError(
                    "`X` must contain numbers, got text; make numbers of it first, with a "
                    "TfidfVectorizer in a pipeline, for example."
                ) from None

    def _checked_example_inputs(self, X: Any, y: Any, reset: bool) -> Any:
        """Return the checked inputs (N, v); raise if `y` does not have N entries."""
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        X = self._checked_inputs(X, reset)
        check_consistent_length(X, y)
        return X

    def _checked_fitted_inputs(self, X: Any) -> Any:
        """Return the checked inputs (N, v); raise if the estimator is not fitted."""
        check_is_fitted(self)
        return self._checked_inputs(X, reset=False)

    def _checked_eval_set(
        self, eval_set: Any, X_val: Any, y_val: Any, codec: LabelCodec
    ) -> Examples | None:
        """Return the labelled examples of `eval_set`, or of `X_val` and `y_val`.

        Returns None if neither is given.
        """
        if X_val is None and y_val is None:
            if eval_set is None:
                return None
            if not isinstance(eval_set, tuple) or len(eval_set) != 2:
                raise TypeError(
                    f"`eval_set` must be a tuple (X, y), got {type(eval_set).__name__} "
                    f"{short_repr(eval_set)}; pass one set of inputs, and their labels."
                )

            X_val, y_val = eval_set
            name = "eval_set"
            remedy = _EVAL_SET_REMEDY
        elif eval_set is not None or X_val is None or y_val is None:
            names = {"eval_set": eval_set, "X_val": X_val, "y_val": y_val}
            raise ValueError(
                "`eval_set` must come either as a tuple or as `X_val` and `y_val`, got "
                f"{' and '.join(name for name, value in names.items() if value is not None)}."
            )
        else:
            name = "X_val` and `y_val` as `eval_set"
            remedy = _X_VAL_REMEDY

        try:
            X = self._checked_example_inputs(X_val, y_val, reset=False)
            codes = codec.encode(y_val, unseen=True)
        except (TypeError, ValueError) as error:
            # raise an error that names the argument, because the message of scikit-learn would seem
            # to be about the training data
            kind = TypeError if isinstance(error, TypeError) else ValueError
            reason = str(error).rstrip(".")[:_MAX_QUOTED_CHARACTERS]
            raise kind(
                f"`{name}` must be inputs and labels as those of the training data: {reason}; "
                f"{remedy}"
            ) from error

        rows = np.unique(example_and_class_indices(codes)[0])
        if not len(rows):
            raise ValueError(f"`{name}` must hold a label for at least one example, got none.")
        return Examples(X, codes, np.ones(X.shape[0])).select(rows)

    def _new_seed(self) -> int:
        """Return a seed drawn from `random_state`."""
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _make_learner(self, X: Any, codec: LabelCodec, counts: FloatArray, seed: int) -> None:
        """Make a new learner with random parameters, and set the attributes of the model."""
        settings = resolve_settings(self, codec, X.shape[0]).model
        with progress_phase(bool(self.verbose), "making the model"):
            learner = ClassifierTask(
                codec, X.shape[1], settings, counts, X.dtype, seed, self.optimizer
            )

        self._set_learner(learner)

        m = self.num_sampled
        n = len(codec.classes)
        if (
            isinstance(m, (int, np.integer))
            and m > n
            and not scores_all_classes(linear_softmax_parameters(self), n)
        ):
            warnings.warn(
                f"`num_sampled` asks for {m:,} draws, more than the {n:,} classes; lower it, or "
                "use loss='full', which is then as fast and has no bias.",
                stacklevel=3,
            )

    def _set_learner(self, learner: ClassifierTask) -> None:
        """Set the learner, and the attributes `classes_` and `model_`."""
        self._learner = learner
        self.classes_ = learner.codec.classes
        self.model_ = learner.model

    def _map_blocks(self, X: Any, method: str, columns_and_dtypes: Any, *args: Any) -> Any:
        """Call a method on each block of rows of `X`, and yield its results as Dask arrays.

        `columns_and_dtypes` has the number of columns and the dtype of each array that the method
        returns. `args` are further arguments of the method.
        """
        dask_array = import_module("dask.array")
        delayed = import_module("dask").delayed

        # delayed once for all blocks, so that the model is sent to each worker once
        call_method = delayed(getattr(self, method), traverse=False)
        results = [call_method(block, *args) for block in row_blocks(X)]
        block_lengths = X.chunks[0] if hasattr(X, "chunks") else [np.nan] * len(results)

        for index, (num_columns, dtype) in enumerate(columns_and_dtypes):
            outputs = [
                result[index] if len(columns_and_dtypes) > 1 else result for result in results
            ]
            blocks = [
                dask_array.from_delayed(output, (num_rows, num_columns), dtype)
                for output, num_rows in zip(outputs, block_lengths, strict=True)
            ]
            yield dask_array.concatenate(blocks)

    def _gather_chunks(
        self, num_rows: int, chunks: Iterable[tuple[slice, NDArray[Any]]]
    ) -> NDArray[Any]:
        """Return an array (num_rows, n) of scores or probabilities that are computed in chunks.

        `chunks` yields slices of rows and their values. Raises MemoryError before any computation
        if the array does not fit in memory.
        """
        n = len(self.classes_)
        require_bytes(
            f"{num_rows:,} inputs times {n:,} classes",
            8 * num_rows * n,
            "pass fewer inputs at a time, or use predict_topk",
        )

        out = np.empty((num_rows, n))
        for chunk, values in chunks:  # the iterator computes each chunk on demand
            out[chunk] = values
        return out


def row_blocks(array: Any) -> list[Any]:
    """Return the blocks of rows of a Dask array or dataframe, as delayed objects.

    Each block has all columns.
    """
    if not hasattr(array, "rechunk"):
        return list(array.to_delayed())
    if array.ndim > 1:
        array = array.rechunk({1: -1})
    return list(array.to_delayed().ravel())


def predict_topk(
    estimator: Any, X: Any, k: int | None = None, *, exclude: Any = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the k best labels of a pipeline or a search whose last step is the classifier.

    For a pipeline this is ``pipeline[-1].predict_topk(pipeline[:-1].transform(X), k)``.

    Parameters
    ----------
    estimator : Pipeline, search such as GridSearchCV, or SampledSoftmaxClassifier
        A fitted estimator. The last step of a pipeline must be the classifier, or again a pipeline
        or a search. For a search, its `best_estimator_` is used.
    X : array_like or sparse matrix, shape (N, v), or whatever the first step takes
        Inputs.
    k, exclude
        As in `SampledSoftmaxClassifier.predict_topk`.

    Returns
    -------
    labels, scores : ndarray, shape (N, k)
        As returned by `SampledSoftmaxClassifier.predict_topk`.

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
