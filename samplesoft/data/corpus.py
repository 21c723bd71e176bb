"""A text in three parts, read from a file or a folder into classes of one vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from samplesoft._validation import IntArray
from samplesoft.data.text import EOS, read_tokens
from samplesoft.data.vocabulary import UNK, Vocabulary, build_vocabulary

PARTS = ("train", "valid", "test")
ENDINGS = (".txt", ".txt.gz", ".txt.xz", ".txt.bz2")
VOCABULARY_SIZE = 10_000  # of the Penn Treebank as language models have it


@dataclass(frozen=True, eq=False)
class Corpus:
    """The parts of a text, each (N,), as classes of the training part's vocabulary."""

    vocabulary: Vocabulary
    train: IntArray
    valid: IntArray
    test: IntArray


def read_corpus(path: str | Path, *, vocabulary_size: int = VOCABULARY_SIZE) -> Corpus:
    """Read a training, a validation and a test text of at most `vocabulary_size` classes.

    `path` is a folder that holds one file for each of ``*train*``, ``*valid*`` and ``*test*``, each
    ``.txt``, ``.txt.gz``, ``.txt.xz`` or ``.txt.bz2`` with one sentence a line; or one such file:
    its first 80% of the lines are for training, the next 10% for validation, the rest for the test.

    Where training left no word out, but the other parts have words that it has not, its two
    rarest words become ``<unk>`` with them: a class that is never seen would not be trained.
    """
    if Path(path).is_dir():
        tokens = {part: read_tokens(find_part(path, part)) for part in PARTS}
    else:
        tokens = _split(path, read_tokens(path))
    vocabulary = build_vocabulary(tokens["train"], vocabulary_size)
    unseen = set(tokens["valid"] + tokens["test"]) - set(vocabulary.words)
    if unseen and UNK not in vocabulary.words:
        if len(vocabulary.words) < 3:
            raise ValueError(
                f"the training text of {str(path)!r} must hold more than one word where other "
                f"parts have words such as {min(unseen)!r}; give a longer one."
            )
        vocabulary = build_vocabulary(tokens["train"], len(vocabulary.words) - 1)
    return Corpus(vocabulary, **{part: vocabulary.encode(tokens[part]) for part in PARTS})


def _split(path: str | Path, tokens: list[str]) -> dict[str, list[str]]:
    """Return 80%, 10% and 10% of the lines of a text, in their order."""
    ends = [place + 1 for place, token in enumerate(tokens) if token == EOS]
    if len(ends) < len(PARTS):
        raise ValueError(
            f"{str(path)!r} must have at least {len(PARTS)} lines to be split into training, "
            f"validation and test, got {len(ends)}; give a longer text."
        )
    tenth = max(len(ends) // 10, 1)
    first, second = ends[-2 * tenth - 1], ends[-tenth - 1]
    return {"train": tokens[:first], "valid": tokens[first:second], "test": tokens[second:]}


def training_text(path: str | Path) -> Path:
    """Return the file of the training text: `path` itself, or the one in that folder."""
    return find_part(path, "train") if Path(path).is_dir() else Path(path)


def find_part(folder: str | Path, part: str) -> Path:
    """Return the one text file in `folder` whose name contains `part`, one of `PARTS`."""
    if not Path(folder).is_dir():
        raise FileNotFoundError(
            f"no such folder: {str(folder)!r}; give the folder that holds the texts."
        )
    found = sorted(
        path
        for path in Path(folder).iterdir()
        if fnmatch(path.name, f"*{part}*") and path.name.endswith(ENDINGS)
    )
    if not found:
        raise FileNotFoundError(
            f"{str(folder)!r} must hold a text named *{part}* that ends in "
            f"{', '.join(ENDINGS)}, got none; add or rename it."
        )
    if len(found) > 1:
        raise ValueError(
            f"{str(folder)!r} must hold one text named *{part}*, got "
            f"{', '.join(path.name for path in found)}; leave one of them there."
        )
    return found[0]
