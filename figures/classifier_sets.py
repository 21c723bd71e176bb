"""The data sets of ``classifier_frontier.py``; not a script.

Most sets are made of files that every machine has: the code of Python's library and of installed
packages, names and pictures of characters, and digits of scikit-learn. So other versions of Python
and of the packages give other numbers of examples and classes. Three sets are read from folders.
"""

from __future__ import annotations

import ast
import lzma
import re
import sysconfig
import unicodedata
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.ft2font import FT2Font
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfVectorizer
from sklearn.preprocessing import normalize
from table3_xc import found

from samplesoft.data import load_xml_repository

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
PACKAGES = Path(sysconfig.get_paths()["purelib"])
TESTS = {"test", "tests", "idle_test"}  # folders of the library
DOCUMENTED = {  # packages whose functions have long docstrings, and such modules of the library
    *("IPython", "dask", "distributed", "docutils", "matplotlib", "networkx", "numpy", "pandas"),
    *("scipy", "sklearn", "sphinx", "sympy", "asyncio", "concurrent", "email", "http", "importlib"),
    *("json", "logging", "unittest", "xml"),
}
TOKEN = re.compile(r"[A-Za-z_][A-Za-z_0-9]*|[0-9]+|[^\sA-Za-z_0-9]")
WORD = re.compile(r"[A-Za-z]{3,}")
IMPORT = re.compile(
    r"(?m)^[ \t]*(?:from[ \t]+(?P<source>[\w.]+)[ \t]+import\b.*"
    r"|import[ \t]+(?P<names>[A-Za-z_][\w., \t]*).*)$"
)
IDENTIFIER = re.compile(r"[A-Za-z_]\w{4,}")
CONTEXT = 8  # tokens before an identifier
MAX_WORDS = 2000  # of a module
PIXELS = 16  # of a side of the picture of a character
TEST_FRACTION = 0.2
MAX_TEST = 20_000  # examples
MAX_TRAIN = 200_000  # examples, so that slow packages end
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Sources:
    """Folders of the data, and the fraction of the examples that is used."""

    bibtex: Path | None = None
    ptb: Path | None = None
    usps: Path | None = None
    packages: Path = PACKAGES
    share: float = 1.0
    max_train: int = MAX_TRAIN


@dataclass(frozen=True)
class Data:
    """Examples as texts of words and as rows of numbers, with their labels.

    There are no texts for dense inputs. `train` and `test` are indices of examples.
    """

    words: list[str] | None
    X: Any  # CSR or dense, (N, v)
    labels: sparse.csr_array  # (N, n)
    train: Any = None
    test: Any = None

    @property
    def single(self) -> bool:
        """Whether each example has exactly one label, once the set is split."""
        counts = np.diff(self.labels.indptr)
        return bool((counts[self.train] == 1).all() and (counts[self.test] == 1).all())


class LeftOut(Exception):
    """The reason for which a data set or a method is left out."""


def data_set(name: str, sources: Sources) -> Data:
    """Return a data set by its name, split into training and test examples."""
    data = SETS[name](sources)
    X = canonical(data.X) if sparse.issparse(data.X) else np.asarray(data.X, np.float32)
    return split(replace(data, X=X), sources)


def canonical(matrix: Any) -> sparse.csr_array:
    """Return a sparse matrix with float32 values and sorted int32 indices, which all packages read.

    Equal rows have equal indices and values.
    """
    rows = sparse.csr_array(matrix, dtype=np.float32)
    rows.sum_duplicates()
    parts = rows.data, rows.indices.astype(np.int32), rows.indptr.astype(np.int32)
    return sparse.csr_array(parts, shape=rows.shape)


# the protocol that all sets have in common --------------------------------------------------------


def split(data: Data, sources: Sources) -> Data:
    """Hold a fifth out at random, at most 20,000, unless the set has a split.

    Test examples with the inputs of a training example are left out. So are labels that no training
    example has, and examples without other labels or without nonzero inputs.
    """
    train, test = data.train, data.test
    if train is None:
        order = np.random.default_rng(1).permutation(data.X.shape[0])
        num_test = min(int(TEST_FRACTION * len(order)), MAX_TEST)
        train, test = order[num_test:], order[:num_test]
    has_inputs = abs(data.X).sum(axis=1) > 0
    train = first_part(train[has_inputs[train]], sources.share)[: sources.max_train]
    test = first_part(test[has_inputs[test]], sources.share)[:MAX_TEST]

    seen = np.unique(data.labels[train].indices)
    labels = canonical(data.labels[:, seen])
    labeled = np.diff(labels.indptr) > 0
    train, test = train[labeled[train]], test[labeled[test]]
    keys = set(row_keys(data.X, train))
    new = [key not in keys for key in row_keys(data.X, test)]
    return replace(data, labels=labels, train=train, test=test[new])


def first_part(indices: Any, share: float) -> Any:
    """Return the first part of indices."""
    return indices[: round(share * len(indices))]


def row_keys(X: Any, rows: Iterable[int]) -> Iterator[bytes]:
    """Yield bytes that are equal for equal rows."""
    for i in rows:
        if sparse.issparse(X):
            part = slice(X.indptr[i], X.indptr[i + 1])
            yield X.indices[part].tobytes() + X.data[part].tobytes()
        else:
            yield X[i].tobytes()


def single_labels(classes: Sequence[Any] | Any) -> sparse.csr_array:
    """Return the indicator matrix (N, n) of one class per example."""
    names, columns = np.unique(classes, return_inverse=True)
    rows = np.arange(len(columns) + 1)
    return sparse.csr_array((np.ones(len(columns)), columns, rows), (len(columns), len(names)))


def several_labels(lists: Sequence[Iterable[str]], min_count: int) -> sparse.csr_array:
    """Return the indicator matrix (N, n) of the labels of at least so many examples."""
    counts = Counter(name for names in lists for name in set(names))
    frequent = sorted(name for name, count in counts.items() if count >= min_count)
    column = {name: j for j, name in enumerate(frequent)}
    rows = [sorted(column[name] for name in set(names) if name in column) for names in lists]
    starts = np.cumsum([0, *map(len, rows)])
    columns = np.array([j for row in rows for j in row], dtype=np.int64)
    return sparse.csr_array((np.ones(len(columns)), columns, starts), (len(lists), len(frequent)))


def frequent(classes: Sequence[Any], min_count: int) -> list[int]:
    """Return the examples whose class has at least so many examples."""
    counts = Counter(classes)
    return [i for i, name in enumerate(classes) if counts[name] >= min_count]


def words_of_columns(X: sparse.csr_array) -> list[str]:
    """Return a word for each nonzero column of an example, joined."""
    return [" ".join(f"w{j}" for j in X.indices[a:b]) for a, b in pairwise(X.indptr)]


def text_data(texts: list[str], labels: sparse.csr_array, vectorizer: Any) -> Data:
    """Return the words that a vectorizer finds in texts, and its inputs."""
    analyze = vectorizer.build_analyzer()
    return Data(
        [" ".join(analyze(text)) for text in texts], vectorizer.fit_transform(texts), labels
    )


# code of Python's library and of installed packages -----------------------------------------------


def library(tests: bool) -> Iterator[tuple[str, str]]:
    """Yield name and text of the modules of Python's library."""
    for path in sorted(LIBRARY.rglob("*.py")):
        parts = path.relative_to(LIBRARY).with_suffix("").parts
        if "site-packages" not in parts and (tests or not TESTS & set(parts)):
            yield ".".join(parts), path.read_text(encoding="utf-8", errors="replace")


def parsed(text: str) -> ast.Module | None:
    """Return the syntax tree of a module, or None for a module of a test with wrong syntax."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of invalid escape sequences
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            return None


@dataclass(frozen=True)
class Function:
    """A function with a docstring, and the names of the functions that it calls."""

    name: str
    module: str
    docstring: str
    calls: frozenset[str]


@cache
def functions(packages: Path) -> list[Function]:
    """Return the functions with a docstring of at least 40 characters of some packages.

    Tests are left out.
    """
    folders = [root / name for root in (packages, LIBRARY) for name in sorted(DOCUMENTED)]
    found = []
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            tree = None if TESTS & set(parts) else parsed(path.read_text(encoding="utf-8"))
            for node in statements(tree) if tree else ():
                docstring = ast.get_docstring(node) if isinstance(node, FUNCTION) else None
                if docstring and len(docstring) >= 40:
                    calls = frozenset(called(node))
                    found.append(Function(node.name, ".".join(parts), docstring, calls))
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements in a module or statement, which are far fewer than all nodes."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, field, ()):
            yield child
            yield from statements(child)


def called(function: ast.AST) -> Iterator[str]:
    """Yield the names of at least three letters that a function calls."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
            if len(name) >= 3:
                yield name


def lines(sources: Sources) -> Data:
    """Return lines of more than 20 characters; the class is the module."""
    words, classes = [], []
    for name, text in library(tests=False):
        kept = [line for line in text.splitlines() if len(line.strip()) > 20]
        if len(kept) >= 10:
            words += [" ".join(TOKEN.findall(line)) for line in kept]
            classes += [name] * len(kept)
    vectorizer = HashingVectorizer(
        n_features=2**17, alternate_sign=False, token_pattern=r"\S+", lowercase=False
    )
    return Data(words, vectorizer.transform(words), single_labels(classes))


def identifiers(sources: Sources) -> Data:
    """Return the 8 tokens before identifiers; the class is the identifier."""
    tokens = (token for _, text in library(tests=True) for token in TOKEN.findall(text))
    number: dict[str, int] = defaultdict(lambda: len(number))
    ids = np.fromiter((number[token] for token in tokens), np.int64)
    names = list(number)
    wanted = np.array([name[0].isalpha() or name[0] == "_" for name in names])
    places = np.flatnonzero(wanted[ids])
    places = np.random.default_rng(0).permutation(places[places >= CONTEXT])[:600_000]
    before = ids[places[:, None] - np.arange(1, CONTEXT + 1)]
    X = rows_of_ones(before, len(names))
    words = [" ".join(names[i] for i in row) for row in before]
    return Data(words, normalize(X), single_labels(ids[places]))


def rows_of_ones(columns: Any, num_columns: int) -> sparse.csr_array:
    """Return the counts (N, v) of columns (N, k)."""
    starts = np.arange(0, columns.size + 1, columns.shape[1])
    ones = np.ones(columns.size, np.float32)
    X = sparse.csr_array((ones, columns.flatten(), starts), (len(columns), num_columns))
    X.sum_duplicates()
    return X


def calls(sources: Sources) -> Data:
    """Return tf-idf of the docstring and name of a function; labels are the functions it calls."""
    chosen = [function for function in functions(sources.packages) if function.calls]
    texts = [f"{function.docstring} {function.name.replace('_', ' ')}" for function in chosen]
    labels = several_labels([function.calls for function in chosen], min_count=12)
    return text_data(texts, labels, TfidfVectorizer(sublinear_tf=True, min_df=2))


def imports(sources: Sources) -> Data:
    """Return tf-idf of the words of a module; labels are the modules that it imports.

    Modules are of all installed packages and of the library. Words are the first 2,000 of at least
    three letters, without the import statements.
    """
    paths = sorted(sources.packages.rglob("*.py"))
    installed = (path.read_text(encoding="utf-8", errors="replace") for path in paths)
    texts, lists = [], []
    for text in chain(installed, (text for _, text in library(tests=True))):
        names = set(imported(text))
        words = islice(WORD.finditer(IMPORT.sub("", text)), MAX_WORDS)
        if names:
            texts.append(" ".join(word[0] for word in words))
            lists.append(names)
    labels = several_labels(lists, min_count=4)
    return text_data(texts, labels, TfidfVectorizer(sublinear_tf=True, min_df=3))


def imported(text: str) -> Iterator[str]:
    """Yield the names of the modules that a module imports, but not those relative to it."""
    for match in IMPORT.finditer(text):
        if match["source"]:
            if not match["source"].startswith("."):
                yield match["source"]
        else:
            yield from (part.split()[0] for part in match["names"].split(",") if part.split())


def docstrings(sources: Sources) -> tuple[list[str], list[str]]:
    """Return docstrings over 80 characters, and their modules, which have at least 5 of them."""
    long = [function for function in functions(sources.packages) if len(function.docstring) > 80]
    classes = [".".join(function.module.split(".")[:3]) for function in long]
    kept = frequent(classes, min_count=5)
    return [long[i].docstring for i in kept], [classes[i] for i in kept]


def modules_dense(sources: Sources) -> Data:
    """Return 100 singular vectors of docstrings, of length 1; the class is the module."""
    texts, classes = docstrings(sources)
    X = TfidfVectorizer(sublinear_tf=True, min_df=3).fit_transform(texts)
    dense = TruncatedSVD(100, random_state=0).fit_transform(X)
    return Data(None, normalize(dense), single_labels(classes))


def modules_few(sources: Sources) -> Data:
    """Return tf-idf of 4,000 docstrings; the class is the module."""
    texts, classes = docstrings(sources)
    some = np.random.default_rng(3).permutation(len(texts))[:4000]
    labels = single_labels([classes[i] for i in some])
    vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=3)
    return text_data([texts[i] for i in some], labels, vectorizer)


def characters(sources: Sources) -> Data:
    """Return counts of the parts of an identifier; the class is the module that has it most often.

    Parts have 2 to 4 characters. A name that several modules have equally often is of the first.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for name, text in library(tests=True):
        for identifier in sorted(set(IDENTIFIER.findall(text))):
            counts[identifier][".".join(name.split(".")[:2])] += 1
    names = list(counts)
    classes = [counts[name].most_common(1)[0][0] for name in names]
    kept = frequent(classes, min_count=10)
    vectorizer = CountVectorizer(
        analyzer="char_wb", ngram_range=(2, 4), min_df=3, lowercase=False, dtype=np.float32
    )
    X = sparse.csr_array(vectorizer.fit_transform([names[i] for i in kept]))
    return Data(words_of_columns(X), X, single_labels([classes[i] for i in kept]))


def other_half(sources: Sources) -> Data:
    """Return half of the names in a function, at random; labels are the other half.

    Functions inside others are part of them. They have 10 to 40 names that 12 functions have.
    """
    sets = [
        sorted(names_in(function))
        for _, text in library(tests=True)
        if (tree := parsed(text)) is not None
        for function in outer_functions(tree)
    ]
    counts = Counter(name for names in sets for name in names)
    sets = [[name for name in names if counts[name] >= 12] for names in sets]
    rng = np.random.default_rng(4)
    mixed = [rng.permutation(names) for names in sets if 10 <= len(names) <= 40]
    inputs = several_labels([names[len(names) // 2 :] for names in mixed], min_count=1)
    labels = several_labels([names[: len(names) // 2] for names in mixed], min_count=5)
    return Data(words_of_columns(inputs), inputs, labels)


def outer_functions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the functions and methods that are not inside another."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FUNCTION):
            yield child
        else:
            yield from outer_functions(child)


def names_in(function: ast.AST) -> set[str]:
    """Return the names of variables, attributes and arguments of a function."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names


# characters --------------------------------------------------------------------------------------


def unicode_names(sources: Sources) -> Data:
    """Return counts of the words and pairs of words of a character's name; the class is the last.

    The last word is no input. Scripts with numbered names are left out.
    """
    numbered = ("CJK ", "HANGUL SYLLABLE", "TANGUT", "NUSHU", "KHITAN", "EGYPTIAN HIEROGLYPH")
    beginnings, classes = [], []
    for code in range(0x110000):
        name = unicodedata.name(chr(code), "")
        *words, last = name.replace("-", " ").split() or [""]
        if words and not name.startswith(numbered):
            beginnings.append(" ".join(words))
            classes.append(last)
    kept = frequent(classes, min_count=3)
    vectorizer = CountVectorizer(token_pattern=r"\S+", ngram_range=(1, 2), dtype=np.float32)
    X = sparse.csr_array(vectorizer.fit_transform([beginnings[i] for i in kept]))
    return Data(words_of_columns(X), X, single_labels([classes[i] for i in kept]))


def glyphs(sources: Sources) -> Data:
    """Return pictures of characters in the fonts of Matplotlib; the class is the character."""
    images, classes = [], []
    for path in sorted(Path(matplotlib.get_data_path(), "fonts", "ttf").glob("DejaVuS*.ttf")):
        font = FT2Font(str(path))
        font.set_size(PIXELS - 3, 72)
        for code in sorted(font.get_charmap()):
            image = picture(font, chr(code))
            if image.any():
                images.append(image.ravel())
                classes.append(code)
    kept = frequent(classes, min_count=3)
    return Data(None, np.array(images)[kept], single_labels([classes[i] for i in kept]))


def picture(font: FT2Font, character: str) -> Any:
    """Return a character in the middle of a picture (16, 16) of values from 0 to 1."""
    font.set_text(character)
    font.draw_glyphs_to_bitmap()
    image = np.asarray(font.get_image(), np.float32)[:PIXELS, :PIXELS] / 255
    canvas = np.zeros((PIXELS, PIXELS), np.float32)
    top, left = ((PIXELS - size) // 2 for size in image.shape)
    canvas[top : top + image.shape[0], left : left + image.shape[1]] = image
    return canvas


# bundled and downloaded data ----------------------------------------------------------------------


def digits(sources: Sources) -> Data:
    """Return the pictures of digits of scikit-learn."""
    bunch = load_digits()
    return Data(None, bunch.data, single_labels(bunch.target))


def usps(sources: Sources) -> Data:
    """Return the pictures of digits of USPS as they are split, with values from -1 to 1."""
    folder = given(sources.usps, "--usps")
    with np.load(folder / "usps_int16.npz") as file:
        X = np.concatenate([file["train_x"], file["test_x"]]) / 1000.0
        classes = np.concatenate([file["train_y"], file["test_y"]])
        num_train = len(file["train_y"])
    train, test = np.arange(num_train), np.arange(num_train, len(classes))
    return Data(None, X, single_labels(classes), train, test)


def bibtex(sources: Sources) -> Data:
    """Return the words of Bibtex as they are split, in rows of length 1; examples have labels."""
    folder = given(sources.bibtex, "--bibtex")
    parts = [load_xml_repository(found(folder, f"bibtex_{part}")) for part in ("train", "test")]
    X = sparse.csr_array(sparse.vstack([part.inputs for part in parts], format="csr"))
    labels = sparse.csr_array(sparse.vstack([part.labels for part in parts], format="csr"))
    num_train = parts[0].inputs.shape[0]
    train, test = np.arange(num_train), np.arange(num_train, X.shape[0])
    return Data(words_of_columns(X), normalize(X), labels, train, test)


def penn_treebank(sources: Sources) -> Data:
    """Return the three words before 300,000 words of the Penn Treebank; the class is the word."""
    path = found(given(sources.ptb, "--ptb"), "ptb.train")
    tokens = []
    with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8") as file:
        for line in file:
            tokens += [*line.split(), "<eos>"]
    names, ids = np.unique(tokens, return_inverse=True)
    places = np.random.default_rng(0).permutation(np.arange(3, len(ids)))[:300_000]
    before = np.stack([ids[places - k] + (k - 1) * len(names) for k in (1, 2, 3)], axis=1)
    X = rows_of_ones(before, 3 * len(names))
    return Data(words_of_columns(X), X, single_labels(ids[places]))


def given(folder: Path | None, option: str) -> Path:
    """Return a folder that an option has given."""
    if folder is None:
        raise LeftOut(f"no {option}")
    return folder


SETS: dict[str, Callable[[Sources], Data]] = {
    "digits": digits,
    "USPS": usps,
    "Bibtex": bibtex,
    "modules, few": modules_few,
    "modules, dense": modules_dense,
    "calls": calls,
    "imports": imports,
    "Unicode names": unicode_names,
    "characters": characters,
    "lines": lines,
    "Penn Treebank": penn_treebank,
    "identifiers": identifiers,
    "other half": other_half,
    "glyphs": glyphs,
}
