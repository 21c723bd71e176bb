"""Checkpoints: arrays and JSON in files that are either whole or refused."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from numbers import Integral
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from samplesoft._files import (
    FileInUse,
    draft_path,
    is_abandoned,
    is_in_use,
    move_into_place,
    read_json,
    retry_while_in_use,
    unprefixed,
    writer_name,
)
from samplesoft._validation import require_instance, short_repr
from samplesoft.data.arrays import Archive, open_arrays
from samplesoft.distributed.layer import ShardedSoftmaxLayer

FORMAT = 2
SHARDS = "shards.npz"  # the list of the files of a sharded layer
Arrays = dict[str, NDArray[Any]]

_ARRAY = "array/"  # before the names of arrays, so that none of them is an argument of savez
_MARK = b"\nsamplesoft sha256 "
_TRAILER = len(_MARK) + 64
_ABSENT = "nothing"
_WHOLE = (
    "a whole checkpoint of samplesoft",
    "take another copy, such as best.npz for checkpoint.npz of a run, which then goes on from it, "
    "or train anew",
)


class Checkpoint(NamedTuple):
    """What a checkpoint holds.

    Parameters
    ----------
    config : dict
        What the model and its training are, in JSON; it must be the same on resuming.
    values : dict
        How far they have come, in JSON.
    arrays : dict of str to ndarray
        Parameters and whatever else must survive.
    """

    config: dict[str, Any]
    values: dict[str, Any]
    arrays: Arrays


def write_checkpoint(path: str | Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; `path` holds the old one until the new one is whole and on the disk.

    Parameters
    ----------
    path : str or Path
        An ``.npz`` file, which `numpy.load` reads too. Nothing in it is pickled, and a checksum
        ends it.
    checkpoint : Checkpoint
        What to write.

    Raises
    ------
    OSError
        If it cannot be written; the old one stands then. Where the system refuses for a second to
        replace the old one, as Windows does while another program holds it, the message says
        where the new one is.
    TypeError, ValueError
        If an array holds Python objects, or config or values are not plain JSON.

    Notes
    -----
    Threads and processes may write to one path at once: the last one wins, and who reads meanwhile
    finds a whole one.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "model.npz")
    ...     write_checkpoint(path, Checkpoint({"dim": 2}, {"epoch": 3}, {"w": np.ones(2)}))
    ...     found = read_checkpoint(path)
    >>> found.config, found.values, found.arrays
    ({'dim': 2}, {'epoch': 3}, {'w': array([1., 1.])})
    """
    draft = write_draft(path, checkpoint)
    with writing(path):
        move_into_place(draft, path)


def write_draft(path: str | Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint next to `path`; return its path, for `move_into_place`."""
    for name, array in checkpoint.arrays.items():
        # pickled objects would run code when the file is read
        if array.dtype.hasobject:
            raise TypeError(
                f"array {name!r} of a checkpoint must hold numbers, got dtype {array.dtype}; "
                "leave Python objects out, or convert them."
            )
    about = {"format": FORMAT, "config": checkpoint.config, "values": checkpoint.values}
    # NaN is not JSON, and other programs would not read the file
    text = json.dumps(about, allow_nan=False)
    arrays: dict[str, Any] = {_ARRAY + name: a for name, a in checkpoint.arrays.items()}
    with writing(path), draft_path(path) as draft, open(draft, "w+b") as stream:
        # as bytes: NumPy would store text in four bytes a character
        np.savez(stream, about=np.frombuffer(text.encode(), np.uint8), **arrays)
        stream.seek(0)
        # zip has checksums of its members alone, which cannot tell that one is missing
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        stream.write(_MARK + digest.encode())
    return draft


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Name the file and the remedy in an OSError of the body, such as that of a full disk.

    It is a PermissionError where another program may hold the file.
    """
    try:
        yield
    except FileInUse:  # which has named it
        raise
    except OSError as error:
        raise (PermissionError if is_in_use(error) else OSError)(
            f"{str(path)!r} cannot be written: {error.strerror or error}; make room, create "
            "its folder or correct the permissions, and resume if there is a checkpoint."
        ) from None


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint, every byte of which has been checked.

    Parameters
    ----------
    path : str or Path
        A file of `write_checkpoint`.

    Returns
    -------
    Checkpoint
        As it was written.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    MemoryError
        If its arrays would not fit.
    ValueError
        If it is not a checkpoint, is cut short or changed, or is of another format.
    """
    with open_arrays(path, *_WHOLE) as stream:
        # before any of it is parsed: what a damaged file says is never believed
        _require_whole(stream)
        archive = Archive(path, stream)
        about = read_json(archive.read(["about"])["about"].tobytes())
        config, values = about["config"], about["values"]
        names = [name for name in archive.names if name.startswith(_ARRAY)]
        # the arrays of another format may mean anything, and take any amount of memory
        arrays = archive.read(names) if about["format"] == FORMAT else {}
    if about["format"] != FORMAT:
        raise ValueError(
            f"{str(path)!r} is a checkpoint of format {short_repr(about['format'])}, and this "
            "version "
            f"of samplesoft reads format {FORMAT}; use the version that wrote it, or train anew in "
            "another folder."
        )
    by_name = {name.removeprefix(_ARRAY): array for name, array in arrays.items()}
    return Checkpoint(config, values, by_name)


@contextmanager
def reading(path: str | Path, model: str | None = None) -> Iterator[Checkpoint]:
    """Read a checkpoint, and name the file in an error of the body, which makes something of it.

    What its checksum seals has been written by this package, so that the body believes what the
    file says, and looks at its arrays alone. With `model` it must be a file of that class.
    """
    checkpoint = read_checkpoint(path)
    try:
        held = checkpoint.config.get("model")
        if model not in (None, held):
            what, reader = held, "what wrote it"
            if held is None:
                what = "a run of samplesoft train"
                reader = "samplesoft.training.read_linear_softmax"
            raise ValueError(
                f"{str(path)!r} must hold a {model}, got {short_repr(what)}; read it with {reader}."
            )
        yield checkpoint
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # it has been named already, by what the body called
        if str(error).startswith(repr(str(path))):
            raise
        reason = f"unknown {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
        raise ValueError(
            f"{str(path)!r} must hold what this version of samplesoft writes, got something else: "
            f"{reason[:300]}; read it with the version that wrote it, or take another copy."
        ) from error


def saved_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of an estimator, without a generator, which has no number to go by."""
    seed = parameters.pop("random_state")
    return {**parameters, **({"random_state": int(seed)} if isinstance(seed, Integral) else {})}


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as they come back from JSON: no tuples, and no numbers of NumPy."""

    def number(value: Any) -> Any:
        if isinstance(value, np.floating):
            return float(value)  # a longdouble too, as models take it
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(
            f"settings must be plain JSON, got {type(value).__name__}; give numbers, strings, "
            "lists or dicts."
        )

    same: dict[str, Any] = json.loads(json.dumps(config, default=number))
    return same


def require_config(path: str | Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise ValueError naming all settings of a checkpoint that differ from what is wanted."""
    # through JSON, as the file: tuples become lists there, and NumPy's numbers Python's
    old, new = _flat(stored), _flat(plain(wanted))
    different = [
        f"{name} = {_shown(old, name)} (asked for: {_shown(new, name)})"
        for name in dict.fromkeys([*new, *old])
        if old.get(name, _ABSENT) != new.get(name, _ABSENT)
    ]
    if different:
        raise ValueError(
            f"{str(path)!r} was written with {', '.join(different)}; give the settings it was "
            "written with, or train anew in another folder."
        )


def copy_arrays(path: str | Path, stored: Arrays, into: Arrays) -> None:
    """Copy the arrays of a checkpoint into those of a model of the same shapes, all or none."""
    # all are compared before the first is copied
    for name in [*into, *stored]:
        before, now = (
            f"{a[name].dtype} of shape {a[name].shape}" if name in a else _ABSENT
            for a in (stored, into)
        )
        if before != now:
            raise ValueError(
                f"{str(path)!r} holds {before} as {name!r} where the model has {now}; "
                "build the model as it was when the file was written, or train anew in another "
                "folder."
            )
        if not np.isfinite(stored[name]).all():
            raise ValueError(
                f"{str(path)!r} holds NaN or infinity in {name!r}, which no training writes; take "
                "another copy."
            )
    for name, array in into.items():
        array[...] = stored[name]


def part_of(name: str, arrays: Arrays) -> Arrays:
    """Return "parameters", "optimizer", "state" or "examples" of a checkpoint, arrays by name."""
    return unprefixed(name, arrays, "/")


def write_shards(folder: str | Path, layer: ShardedSoftmaxLayer) -> None:
    """Write the class vectors and optimizers of a sharded layer: a file for each shard, and a list.

    The list names the new files once all of them are on the disk, and then the old ones go. Arrays
    travel through this process, one shard at a time.

    Parameters
    ----------
    folder : str or Path
        For this layer alone; made if need be.
    layer : ShardedSoftmaxLayer
        What to write. An error for a worker that is lost names this folder from then on.

    Raises
    ------
    OSError
        If a file cannot be written; what was there stands then.
    RuntimeError
        If a worker is lost.
    TypeError
        If an argument is malformed.

    See Also
    --------
    read_shards
    """
    require_instance("layer", layer, ShardedSoftmaxLayer)
    with writing(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
    path, shards, before = Path(folder) / SHARDS, layer.shards, []
    if path.exists():
        with reading(path, SHARDS) as old:
            before = [path.with_name(name) for name in old.values["files"]]
    # no other has these names, so that each list names files of one writer
    writer = writer_name()
    names = [f"shard-{writer}-{s}.npz" for s in range(shards.num)]
    rows = layer.class_embeddings
    try:
        for s, name in enumerate(names):
            arrays = shards.ask("saved", [()], s)[0]
            write_checkpoint(path.with_name(name), Checkpoint({"model": name}, {}, arrays))
        values = {"files": names, "bounds": shards.bounds.tolist(), "steps": layer.steps}
        config = {"model": SHARDS, "shape": list(rows.shape), "dtype": str(rows.dtype)}
        write_checkpoint(path, Checkpoint(config, values, {}))
    except FileInUse:  # the draft of the list names them
        raise
    except BaseException:
        _remove(map(path.with_name, names))
        raise
    with reading(path, SHARDS) as now:  # perhaps of another writer, who came last
        named = {*now.values["files"]}
    mine = str(os.getpid())
    for left in path.parent.glob("shard-*-*.npz"):
        process, *_ = rest = left.stem.split("-")[1:]
        if process != mine and is_abandoned(left, "-".join(rest[:-1])):
            before.append(left)
    _remove(left for left in before if left.name not in named)
    shards.name_checkpoint(str(folder))


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        with suppress(OSError):  # on Windows a reader may hold it
            retry_while_in_use(partial(file.unlink, missing_ok=True))


class StoredShards:
    """The class vectors of a sharded layer in files, for a layer with any number of shards.

    Parameters
    ----------
    path : Path
        The list that `write_shards` has written.

    Attributes
    ----------
    folder : str
        Where it is.
    shape, dtype
        Of the class vectors (n, d).
    steps : int
        Of the optimizers.
    """

    def __init__(self, path: Path) -> None:
        with reading(path, SHARDS) as about:
            self._files = [path.with_name(name) for name in about.values["files"]]
            self._bounds, self.steps = about.values["bounds"], about.values["steps"]
            self.shape, self.dtype = tuple(about.config["shape"]), np.dtype(about.config["dtype"])
        self.folder = str(path.parent)

    def part(self, lo: int, hi: int) -> tuple[NDArray[Any], Arrays]:
        """Return the vectors of a range of classes, and the state of their optimizer."""
        parts = []
        for file, (first, last) in zip(self._files, pairwise(self._bounds), strict=True):
            here = slice(max(lo - first, 0), max(min(hi, last) - first, 0))
            if here.start < here.stop:
                with reading(file, file.name) as stored:
                    parts.append({k: a[here] if a.ndim else a for k, a in stored.arrays.items()})
        joined = {
            k: np.concatenate([part[k] for part in parts]) if a.ndim else a
            for k, a in parts[0].items()
        }
        return joined.pop("class_embeddings"), part_of("optimizer", joined)


def read_shards(folder: str | Path) -> StoredShards:
    """Read what `write_shards` has written, as the `class_embeddings` of a new layer.

    Parameters
    ----------
    folder : str or Path
        As it was written, by a layer with any number of shards.

    Returns
    -------
    StoredShards
        The layer reads the files, each of which is checked whole, one shard after another. Give it
        the loss, the sampler and the optimizer that the old one had. Its samplers are as after
        `refresh`: where the old one was refreshed too, and there are as many shards, the new one
        goes on to the bit.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If it is not one of `write_shards`.

    Examples
    --------
    >>> import tempfile
    >>> from samplesoft.losses import SampledSoftmaxLoss
    >>> from samplesoft.optimizers import SGD
    >>> settings = SampledSoftmaxLoss(), "uniform", 2
    >>> layer = ShardedSoftmaxLayer(np.eye(6), *settings, optimizer=SGD(0.1), workers=3)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_shards(folder, layer)
    ...     rows = read_shards(folder)
    ...     again = ShardedSoftmaxLayer(rows, *settings, optimizer=SGD(0.1), workers=2)
    >>> bool((again.class_embeddings.take(np.arange(6)) == np.eye(6)).all())
    True
    """
    return StoredShards(Path(folder) / SHARDS)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        inner = isinstance(value, Mapping)
        flat |= _flat(value, f"{prefix}{name}.") if inner else {prefix + name: value}
    return flat


def _shown(settings: Mapping[str, Any], name: str) -> str:
    return short_repr(settings[name]) if name in settings else _ABSENT


def _require_whole(stream: BinaryIO) -> None:
    """Compare the checksum at the end with that of all bytes before it; rewind."""
    # the file may be larger than the memory, so it goes through the digest in pieces
    rest = max(stream.seek(0, 2) - _TRAILER, 0)
    stream.seek(0)
    digest = hashlib.sha256()
    while rest and (block := stream.read(min(rest, 1 << 20))):
        digest.update(block)
        rest -= len(block)
    if stream.read() != _MARK + digest.hexdigest().encode():
        raise ValueError(
            "its last bytes are not the checksum of the rest, so it was cut short or changed"
        )
    stream.seek(0)
