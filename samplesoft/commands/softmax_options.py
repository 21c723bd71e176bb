"""Options of a softmax layer, and a check before the work of those that do not go together."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from samplesoft._memory import available_bytes, human_bytes
from samplesoft._temperature import TAU_OF_OTHER_VECTORS, TAU_OF_UNIT_VECTORS
from samplesoft.commands.options import draw_count, flag, positive_float, positive_int
from samplesoft.losses.registry import LOSSES
from samplesoft.models.softmax_settings import SoftmaxSettings
from samplesoft.samplers.registry import SAMPLERS, SamplerInputs
from samplesoft.training.language_settings import LanguageModelSettings
from samplesoft.tuning.pilot import AUTO, is_auto

SAMPLED = (
    "sampler",
    "num_sampled",
    "num_certain",
    "shared",
    "nu",
    "num_features",
    "update_every",
)
BYTES = 75  # for each draw of a word in a step: measured 52, and 73 for a mixture
SHARED_BYTES = 20  # for each word and each draw that all words share: measured 7 to 19


def add_softmax(
    group: Any,
    defaults: SoftmaxSettings,
    *,
    example: str,
    batch: str,
    losses: Iterable[str] = LOSSES,
) -> None:
    """Add the options of a softmax layer, with None for an option that is not given.

    Help texts name `defaults`, and call an example and the examples of a batch as given.
    """
    group.add_argument(
        "--loss",
        choices=tuple(losses),
        metavar="NAME",
        help=f"one of {', '.join(losses)} (default {defaults.loss})",
    )
    group.add_argument(
        "--tau",
        type=positive_float,
        help=f"inverse temperature (default {TAU_OF_UNIT_VECTORS:g}, with --no-normalize "
        f"{TAU_OF_OTHER_VECTORS:g})",
    )
    group.add_argument(
        "--no-normalize",
        dest="normalize",
        action="store_const",
        const=False,
        help="do not divide contexts and class vectors by their norms",
    )
    group.add_argument(
        "--sampler",
        choices=(*SAMPLERS, AUTO),
        metavar="NAME",
        help=f"one of {', '.join(SAMPLERS)} (default {defaults.sampler}); or auto: a pilot of a "
        "tenth of the steps, from 100 to 1,000, is trained and thrown away, and on its vectors the "
        "quickest draws of little bias are chosen, or the full softmax. It depends on the speed of "
        "the machine; --resume keeps what was chosen",
    )
    group.add_argument(
        "--num-sampled",
        type=_draw_count_or_auto,
        metavar="M",
        help=f"draws for each {example} (default {defaults.num_sampled}); or auto, as above",
    )
    group.add_argument(
        "--num-certain",
        type=positive_int,
        metavar="K",
        help="so many of the most frequent classes take part for certain, beside the draws of the "
        f"others (default {defaults.num_certain})",
    )
    group.add_argument(
        "--shared",
        action=argparse.BooleanOptionalAction,
        help=f"draw one set of classes for all {batch}; the default with a sampler such as unigram "
        "and a loss such as sampled-masked, not possible where draws exclude the label",
    )
    add_random_features(group, defaults)
    group.add_argument(
        "--update-every",
        type=positive_int,
        metavar="N",
        help="steps between two updates of a sampler that follows the class vectors "
        f"(default {defaults.update_every})",
    )


def _draw_count_or_auto(text: str) -> int | str:
    return text if is_auto(text) else draw_count(text)


def add_random_features(group: Any, defaults: SoftmaxSettings | type[SamplerInputs]) -> None:
    """Add the options of random features, with None for an option that is not given."""
    group.add_argument(
        "--nu",
        type=positive_float,
        help=f"sharpness of the Gaussian kernel of the rff samplers (default {defaults.nu:g})",
    )
    group.add_argument(
        "--num-features",
        type=positive_int,
        metavar="D",
        help="random frequencies of the rff samplers, features of positive "
        f"(default {defaults.num_features})",
    )


def check_softmax(values: dict[str, Any], defaults: SoftmaxSettings) -> dict[str, Any]:
    """Check that the given `values` have an effect and go together; `defaults` hold for the others.

    Returns the values, without a sampler where the loss draws nothing.
    """
    normalize = values.get("normalize", defaults.normalize)
    name = values.get("loss", defaults.loss)
    loss = LOSSES[name]
    if not loss.draws:
        refuse(values, SAMPLED, f"--loss {name}, which draws nothing")
        return {**values, "sampler": None, "num_sampled": None}
    if values.get("shared") and loss.excludes_label:
        able = [other for other, spec in LOSSES.items() if spec.shares]
        raise ValueError(
            f"--shared does not go with --loss {name}, as one set of draws cannot exclude the "
            f"label of each example; take --loss {', '.join(able)}."
        )
    if "num_certain" in values and not loss.takes_certain:
        able = [other for other, spec in LOSSES.items() if spec.takes_certain]
        raise ValueError(
            f"--num-certain does not go with --loss {name}; take --loss {', '.join(able)}."
        )
    num_sampled = values.get("num_sampled", loss.least_draws)
    if num_sampled < loss.least_draws:
        raise ValueError(
            f"--num-sampled must be at least {loss.least_draws} for --loss {name}, got "
            f"{num_sampled}; raise it."
        )
    sampler = str(values.get("sampler", defaults.sampler))
    if loss.needs_label_count and not SAMPLERS[sampler].every_class:
        raise ValueError(
            f"--sampler {sampler} does not go with --loss {name}, as labels that are not among its "
            "candidates are never drawn; take --loss sampled or sampled-masked."
        )
    spec = SAMPLERS[sampler]
    unread = [option for option in ("nu", "num_features") if option not in spec.reads]
    refuse(values, unread, f"--sampler {sampler}")
    if not spec.follows_vectors:
        refuse(values, ["update_every"], f"--sampler {sampler}, which does not use class vectors")
    if not normalize and spec.unit_vectors:
        raise ValueError(
            f"--no-normalize does not go with --sampler {sampler}, whose kernel needs vectors of "
            "norm 1; leave it out, or take a sampler such as quadratic, softmax or unigram."
        )
    return values


def check_memory(settings: LanguageModelSettings) -> None:
    """Raise MemoryError if the draws of a step would not fit."""
    words, available = settings.batch_size * settings.num_steps, available_bytes()
    each = words * (SHARED_BYTES if settings.shared else BYTES)
    needed = (settings.num_sampled or 0) * each
    if available is not None and needed > available:
        remedy = "" if settings.shared else ", or draw once for all words with --shared"
        raise MemoryError(
            f"--num-sampled {settings.num_sampled} draws for {words:,} words need "
            f"{human_bytes(needed)} in a step, and {human_bytes(available)} are available; lower "
            f"it to {available // each:,} or less{remedy}."
        )


def refuse(values: dict[str, Any], useless: Iterable[str], by: str) -> None:
    """Raise ValueError if options are given that have no effect with another one."""
    options = [flag(name) for name in useless if name in values]
    if options:
        verb, it = ("has", "it") if len(options) == 1 else ("have", "them")
        raise ValueError(f"{', '.join(options)} {verb} no effect with {by}; leave {it} out.")
