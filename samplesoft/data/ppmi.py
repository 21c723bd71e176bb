"""Word vectors from co-occurrence counts: an SVD of positive pointwise mutual information."""

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

# exponent of the distribution of next words; without it, PMI is largest for the rarest words
SMOOTHING_EXPONENT = 0.75
# class vectors are divided by this quantile of their norms; the maximum would make all other
# vectors small if a few are very long
NORM_QUANTILE = 0.99
# largest number of classes for a dense SVD, which takes milliseconds; beyond it, subspace iteration
# computes the SVD
MAX_DENSE_SVD_CLASSES = 512
# number of vectors of the subspace iteration in addition to the rank; with 32, singular values have
# three digits after 12 iterations
NUM_EXTRA_VECTORS = 32
SVD_ITERATIONS = 12
_BLOCK_ARRAYS = 6  # number of arrays (n, rank + NUM_EXTRA_VECTORS) in memory at a time
_PAIR_BYTES = 64  # memory of a pair of a word and its next word, in bytes


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
        Maximum number of classes, and dimension of the vectors, as in `ppmi_svd`. If there are more
        distinct words, the rarest become one class, ``<unk>``.
    num_examples : int or None
        Number of positions of the text to draw, without replacement; None takes all.
    rng : int or numpy.random.Generator or None
        Seed of the draw; the vectors do not depend on it.

    Returns
    -------
    Embeddings
        Examples whose context ``h`` is the unit vector of the previous word. Classes are sorted by
        decreasing frequency.

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
    class_indices = {word: i for i, word in enumerate(counts)}
    unknown = class_indices.get(UNK, -1)  # if all words are classes, -1 is never used
    ids = np.fromiter(map(class_indices.get, tokens, repeat(unknown)), np.int64)

    contexts, classes = ppmi_svd(ids, len(counts), dim)
    frequencies = np.array([*counts.values()], float)
    return Embeddings(contexts[ids[positions - 1]], classes, ids[positions], frequencies)


def ppmi_svd(ids: ArrayLike, num_classes: int, dim: int) -> tuple[FloatArray, FloatArray]:
    r"""Return vectors of words and of next words; their inner products follow co-occurrence.

    The matrix of :math:`\max(0, \log [P(i \mid c) / P_{0.75}(i)])` is truncated to rank
    ``dim - 1`` by its singular value decomposition. `P_0.75` is the distribution of next words to
    the power 0.75, normalised. Context vectors are divided by their norms. This changes the
    temperature of each context, but not the order of its next words. The norms of class vectors
    must be kept, because they carry the frequency of each word. So class vectors are divided by the
    99th percentile of their norms and clipped to the unit ball. One more coordinate, which is 0 in
    every context vector, then gives them norm 1.

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
        Unit vector of each word as a context. If no word follows it more often than by chance, this
        is the direction of the sum of all contexts.
    class_embeddings : ndarray of float64, shape (n, d)
        Unit vector of each word as a next word. If it follows no word more often than by chance,
        this is the last basis vector, whose inner product with every context is 0.

    Raises
    ------
    TypeError, ValueError
        If an argument is malformed, or the text has fewer than two words.
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
    id_array = as_array("ids", ids)
    text = as_labels("ids", id_array, n, id_array.shape)
    if text.ndim != 1 or len(text) < 2:
        raise ValueError(
            f"`ids` must be 1-D and hold at least 2 words, got shape {text.shape}; give a longer "
            "text."
        )

    require_memory("num_classes", n, _BLOCK_ARRAYS * 8.0 * n * (rank + NUM_EXTRA_VECTORS))
    require_bytes(
        "the pairs of words in `ids`", _PAIR_BYTES * float(len(text)), "give a shorter text"
    )

    matrix = _ppmi_matrix(text, n)
    left, values, right = _truncated_svd(matrix, rank)

    # multiply both sides by the square roots of the singular values [Levy et al., section 3.3]
    root = np.sqrt(values)
    contexts = np.zeros((n, rank + 1))  # the last coordinate of a context is 0
    contexts[:, :rank] = left * root
    return _unit_rows(contexts), _lift_to_sphere(right.T * root)


def _ppmi_matrix(text: IntArray, n: int) -> Any:
    """Return the PPMI matrix (n, n), with smoothed frequencies, in CSR format.

    `text` (T,) are words as indices below `n`. Rows are words, columns are next words.
    """
    from scipy.sparse import coo_array

    words = text[:-1]
    next_words = text[1:]

    # the conversion to CSR and back adds up repeated pairs
    joint = coo_array((np.ones(len(next_words)), (words, next_words)), shape=(n, n)).tocsr().tocoo()
    rows, columns = joint.coords
    smoothed = np.bincount(next_words, minlength=n) ** SMOOTHING_EXPONENT

    # P(i | c) / P_0.75(i) is the count of the pair (c, i) divided by the count of c times P_0.75(i)
    expected = np.bincount(words, minlength=n)[rows] * (smoothed / smoothed.sum())[columns]
    information = np.log(joint.data / expected)
    is_positive = information > 0.0

    return coo_array(
        (information[is_positive], (rows[is_positive], columns[is_positive])), shape=(n, n)
    ).tocsr()


def _truncated_svd(matrix: Any, rank: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the largest singular values of a sparse matrix (n, n), with their singular vectors.

    The result is deterministic: the left vectors (n, rank), the values (rank,) in decreasing order,
    and the right vectors (rank, n). For many classes they are computed by subspace iteration, which
    takes a few matrix products with all vectors. Lanczos iteration (``scipy.sparse.linalg.svds``)
    or QR would take thousands of products with single vectors. If other programs use the cores, the
    BLAS threads of these products wait for each other, which took up to 16 s instead of 1 s.
    """
    n = matrix.shape[0]
    num_vectors = rank + NUM_EXTRA_VECTORS

    if n <= max(MAX_DENSE_SVD_CLASSES, num_vectors):
        left, values, right = np.linalg.svd(matrix.toarray())
    else:
        transposed = matrix.T.tocsr()
        basis = np.random.default_rng(0).standard_normal((n, num_vectors))

        for _ in range(SVD_ITERATIONS):
            basis = transposed @ (matrix @ basis)
            # without orthonormalisation all columns would approach the first singular vector
            basis = basis @ _orthonormalising_matrix(basis)[0]

        image = matrix @ basis
        axes, values = _orthonormalising_matrix(image)
        left = image @ axes
        right = (basis @ (axes * values)).T

    return left[:, :rank], values[:rank], right[:rank]


def _orthonormalising_matrix(block: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return A (k, k), so that ``block @ A`` has orthonormal columns, and singular values (k,).

    The singular values of `block` (n, k) are in decreasing order. If the rank of `block` is less
    than k, the last columns of ``block @ A`` are 0.
    """
    # eigenvalues are squared singular values, so small singular values have lost half of their
    # digits, and count as 0
    squares, axes = np.linalg.eigh(block.T @ block)
    norms = np.sqrt(np.maximum(squares[::-1], 0.0))
    inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 1e-6 * norms[0])
    scaled: FloatArray = axes[:, ::-1] * inverse
    return scaled, norms


def _unit_rows(vectors: FloatArray) -> FloatArray:
    """Return `vectors` (n, d), each divided by its norm.

    A vector near 0 becomes the direction of the sum of all vectors.
    """
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    is_near_zero = norms[:, 0] <= 1e-12 * norms.max()
    centre = vectors.sum(axis=0)
    if not np.linalg.norm(centre) > 1e-12 * norms.max():
        centre[0] = 1.0

    unit_vectors = vectors / np.where(norms > 0.0, norms, 1.0)
    unit_vectors[is_near_zero] = centre / np.linalg.norm(centre)
    return unit_vectors


def _lift_to_sphere(vectors: FloatArray) -> FloatArray:
    """Return unit vectors (n, d + 1): scaled vectors (n, d), and a coordinate that completes them.

    Vectors are divided by a quantile of their norms; longer ones are clipped to the unit ball. The
    last coordinate gives each vector norm 1.
    """
    norms = np.linalg.norm(vectors, axis=1)
    radius = np.quantile(norms, NORM_QUANTILE) or norms.max() or 1.0
    scaled = vectors / np.maximum(norms, radius)[:, None]
    last_coordinate = np.sqrt(np.maximum(0.0, 1.0 - (scaled**2).sum(axis=1)))
    return np.column_stack([scaled, last_coordinate])
