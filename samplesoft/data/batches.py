"""Language-model batches: a text in rows, read in windows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from samplesoft._validation import IntArray, as_count


class Windows:
    """A text (N,) in B contiguous rows, cut into windows of T tokens with the next ones.

    Row b holds the tokens from ``b * (N // B)`` on, and goes on where the window before ended, so
    that the hidden state of one window starts the next [1]_. The last ``N % B`` tokens are left
    out, and a last window of less than T tokens too unless `keep_short`.

    References
    ----------
    .. [1] W. Zaremba, I. Sutskever and O. Vinyals, "Recurrent Neural Network Regularization",
       arXiv:1409.2329, section 4.1.
    """

    def __init__(
        self, ids: NDArray[np.int64], batch_size: int, num_steps: int, *, keep_short: bool
    ) -> None:
        self.batch_size = as_count("batch_size", batch_size)
        self.num_steps = as_count("num_steps", num_steps)
        length = len(ids) // self.batch_size
        predicted = length - 1  # the last token of a row has no next one
        self._len = -(-predicted // self.num_steps) if keep_short else predicted // self.num_steps
        if self._len < 1:
            needed = self.batch_size * (2 if keep_short else self.num_steps + 1)
            raise ValueError(
                f"`ids` must hold at least {needed} tokens for {self.batch_size} rows of a window "
                f"of {self.num_steps}, got {len(ids)}; give a longer text, or lower `batch_size` "
                "or `num_steps`."
            )
        self._columns = np.ascontiguousarray(
            ids[: length * self.batch_size].reshape(self.batch_size, length).T
        )

    def __len__(self) -> int:
        return self._len

    def __getitem__(self, index: int) -> tuple[IntArray, IntArray]:
        """Return inputs and targets of window `index`, each (T, B)."""
        if not 0 <= index < self._len:
            raise IndexError(f"window {index} of {self._len}")
        start = index * self.num_steps
        stop = min(start + self.num_steps, len(self._columns) - 1)
        return self._columns[start:stop], self._columns[start + 1 : stop + 1]

    def __iter__(self) -> Iterator[tuple[IntArray, IntArray]]:
        return (self[index] for index in range(self._len))
