"""Context and class vectors from counts: positive pointwise mutual information and an SVD."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from samplesoft._memory import require_bytes, require_memory
from samplesoft._validation import FloatArray, IntArray, as_array, as_count, as_labels
from samplesoft.data.embeddings import Embeddings, choose_indices
from samplesoft.data.text import UNK, as_words, count_words

SMOOTHING = 0.75  # exponent of the next words' distribution: raw PMI ranks the rarest words first
NORM_QUANTILE = 0.99  # a few very long class vectors would otherwise flatten all others
DENSE_SVD = 512  # number of classes up to which LAPACK takes milliseconds
OVERSAMPLING = 32  # extra vectors; singular values then have three digits after 12 iterations
ITERATIONS = 12
_BLOCK_ARRAYS = 6  # arrays (n, rank) in memory at a time
_PAIR_BYTES = 64  # bytes of a pair of words


def examples_from_corpus(
    tokens: Sequence[str],
    *,
    vocabulary_size: int = 10_000,
    dim: int = 64,
    num_examples: int | None = 1000,
    rng: int | np.random.Generator | None = None,
) -> Embeddings:
    """Make next-word examples from a text: vectors from `ppmi_svd`, and the next words as labels.

    Parameters
    ----------
    tokens : sequence of str
        The text.
    vocabulary_size, dim : int
        Maximum number of classes, one of which is ``<unk>`` if words are left out; `dim` is passed
        to `ppmi_svd`.
    num_examples : int or None
        Number of positions of the text to draw, without replacement; None takes all.
    rng : int or numpy.random.Generator or None
        Seed of the draw; the vectors do not depend on it.

    Returns
    -------
    Embeddings
        ``h`` is the unit vector of the previous word; classes are sorted by decreasing frequency.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed or the text too short.
    MemoryError
        If the vectors do not fit in memory.

    Examples
    --------
    >>> text = "the cat sat on the mat <eos> the cat ran <eos>".split() * 20
    >>> examples = examples_from_corpus(text, dim=6, num_examples=4, rng=0)
    >>> examples.h.shape, examples.class_embeddings.shape
    ((4, 6), (7, 6))
    """
    tokens = as_words("tokens", tokens)
    positions = choose_indices(len(tokens) - 1, num_examples, rng) + 1
    counts = count_words(tokens, as_count("vocabulary_size", vocabulary_size, 2))
    classes_of = {word: i for i, word in enumerate(counts)}
    unknown = classes_of.get(UNK, -1)  # -1 is not used if no word was left out
    ids = np.fromiter(map(classes_of.get, tokens, repeat(unknown)), np.int64)
    contexts, classes = ppmi_svd(ids, len(counts), dim)
    frequencies = np.array([*counts.values()], float)
    return Embeddings(contexts[ids[positions - 1]], classes, ids[positions], frequencies)


def ppmi_svd(ids: ArrayLike, num_classes: int, dim: int) -> tuple[FloatArray, FloatArray]:
    r"""Embed words and next words so that their inner products follow co-occurrence.

    The matrix of :math:`\max(0, \log [P(i \mid c) / P_{0.75}(i)])`, with `P_0.75` the next words'
    distribution to the power 0.75, is truncated to rank ``dim - 1`` by its singular value
    decomposition. Context vectors are then divided by their norms, which gives each context its own
    temperature. Class vectors cannot be normalised the same way, because their norms carry the
    frequency of each word. They are divided by one number, the 99th percentile of their norms,
    clipped to the unit ball, and lifted to the sphere by one more coordinate, which is 0 in every
    context.

    Parameters
    ----------
    ids : array_like of int, shape (T,)
        The text as classes.
    num_classes : int
        Number of classes n.
    dim : int
        Dimension of the vectors, at least 2; at most ``n + 1`` is used.

    Returns
    -------
    contexts : ndarray of float64, shape (n, d)
        Unit vector of each word as context. A word that no other follows more often than by chance
        has the direction of the average context.
    class_embeddings : ndarray of float64, shape (n, d)
        Unit vector of each word as next word. A word that follows none more often than by chance
        has the last basis vector, and so an inner product of 0 with every context.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or the text has no two words.
    MemoryError
        If the vectors, or the pairs of words, do not fit in memory.

    References
    ----------
    Levy, Goldberg and Dagan (2015), "Improving distributional similarity with lessons learned
    from word embeddings", sections 2.2 and 3.2: PPMI, the SVD and the power 0.75.
    Halko, Martinsson and Tropp (2011), "Finding structure with randomness", Algorithm 4.4: the
    truncated SVD of large vocabularies.
    Neyshabur and Srebro (2015), "On symmetric and asymmetric LSHs for inner product search",
    section 4: unit vectors that keep the dot products.

    Examples
    --------
    >>> contexts, classes = ppmi_svd([0, 1, 2, 0, 1, 2, 0], num_classes=3, dim=8)
    >>> (contexts @ classes.T).argmax(axis=1)
    array([1, 2, 0])
    """
    n = as_count("num_classes", num_classes)
    rank = min(as_count("dim", dim, 2) - 1, n)
    values_of_ids = as_array("ids", ids)
    text = as_labels("ids", values_of_ids, n, values_of_ids.shape)
    if text.ndim != 1 or len(text) < 2:
        raise ValueError(
            f"`ids` must be 1-D and hold at least 2 words, got shape {text.shape}; give a longer "
            "text."
        )
    require_memory("num_classes", n, _BLOCK_ARRAYS * 8.0 * n * (rank + OVERSAMPLING))
    require_bytes(
        "the pairs of words in `ids`", _PAIR_BYTES * float(len(text)), "give a shorter text"
    )
    matrix = _ppmi(text, n)
    left, values, right = _truncated_svd(matrix, rank)
    root = np.sqrt(values)  # shared equally by both sides [Levy et al., section 3.3]
    contexts = np.zeros((n, rank + 1))  # the last coordinate is for the lift
    contexts[:, :rank] = left * root
    return _unit_rows(contexts), _lift(right.T * root)


def _ppmi(text: IntArray, n: int) -> Any:
    """Return the (n, n) CSR matrix of positive, smoothed mutual information."""
    from scipy.sparse import coo_array

    before = text[:-1]
    after = text[1:]
    # conversion to CSR and back sums repeated pairs
    joint = coo_array((np.ones(len(after)), (before, after)), shape=(n, n)).tocsr().tocoo()
    rows, columns = joint.coords
    smoothed = np.bincount(after, minlength=n) ** SMOOTHING
    # P(i | c) / P_0.75(i) is the joint count over the row's sum times P_0.75
    expected = np.bincount(before, minlength=n)[rows] * (smoothed / smoothed.sum())[columns]
    information = np.log(joint.data / expected)
    is_positive = information > 0.0
    return coo_array(
        (information[is_positive], (rows[is_positive], columns[is_positive])), shape=(n, n)
    ).tocsr()


def _truncated_svd(matrix: Any, rank: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the leading `rank` singular triplets of a sparse (n, n) matrix, deterministically.

    Subspace iteration needs a few products of whole blocks. Lanczos (``scipy.sparse.linalg.svds``)
    and QR make thousands of products with single vectors, whose threads wait for each other if
    other work shares the cores: up to 16 s then, instead of 1 s.
    """
    n = matrix.shape[0]
    block = rank + OVERSAMPLING
    if n <= max(DENSE_SVD, block):
        left, values, right = np.linalg.svd(matrix.toarray())
    else:
        transposed = matrix.T.tocsr()
        basis = np.random.default_rng(0).standard_normal((n, block))
        for _ in range(ITERATIONS):
            basis = transposed @ (matrix @ basis)
            # otherwise all columns approach the first vector
            basis = basis @ _principal_axes(basis)[0]
        image = matrix @ basis
        axes, values = _principal_axes(image)
        left = image @ axes
        right = (basis @ (axes * values)).T
    return left[:, :rank], values[:rank], right[:rank]


def _principal_axes(block: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return A (k, k) such that ``block @ A`` has orthonormal columns, and their former norms.

    Columns are sorted by decreasing norm; columns of norm 0, for a matrix of lower rank, become 0.
    """
    # eigenvalues are squared norms: small norms have half of the digits, and are set to 0
    squares, axes = np.linalg.eigh(block.T @ block)
    norms = np.sqrt(np.maximum(squares[::-1], 0.0))
    inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 1e-6 * norms[0])
    scaled: FloatArray = axes[:, ::-1] * inverse
    return scaled, norms


def _unit_rows(vectors: FloatArray) -> FloatArray:
    """Return rows divided by their norms; rows near 0 get the direction of the sum of all rows."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    empty = norms[:, 0] <= 1e-12 * norms.max()
    centre = vectors.sum(axis=0)
    if not np.linalg.norm(centre) > 1e-12 * norms.max():
        centre[0] = 1.0
    unit = vectors / np.where(norms > 0.0, norms, 1.0)
    unit[empty] = centre / np.linalg.norm(centre)
    return unit


def _lift(vectors: FloatArray) -> FloatArray:
    """Return rows scaled into the unit ball, with a coordinate that lifts them to the sphere."""
    norms = np.linalg.norm(vectors, axis=1)
    radius = np.quantile(norms, NORM_QUANTILE) or norms.max() or 1.0
    inside = vectors / np.maximum(norms, radius)[:, None]
    height = np.sqrt(np.maximum(0.0, 1.0 - (inside**2).sum(axis=1)))
    return np.column_stack([inside, height])
