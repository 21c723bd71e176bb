"""Samplers: proposal distributions over classes, with the exact probability of each draw."""

from samplesoft.samplers.base import Draw, Sampler
from samplesoft.samplers.fourier import RFSoftmaxSampler
from samplesoft.samplers.frequency import LogUniformSampler, UnigramSampler
from samplesoft.samplers.inputs import SamplerInputs
from samplesoft.samplers.kernel import KernelSampler, PositiveSampler, QuadraticSampler
from samplesoft.samplers.learned import LearnedUnigramSampler
from samplesoft.samplers.mixture import MixtureSampler
from samplesoft.samplers.proposals import dense_proposals
from samplesoft.samplers.registry import SAMPLERS, SamplerSpec, make_sampler
from samplesoft.samplers.softmax import SoftmaxSampler
from samplesoft.samplers.static import UniformSampler, WeightedSampler
from samplesoft.samplers.two_pass import TwoPassSampler

__all__ = [
    "SAMPLERS",
    "Draw",
    "KernelSampler",
    "LearnedUnigramSampler",
    "LogUniformSampler",
    "MixtureSampler",
    "PositiveSampler",
    "QuadraticSampler",
    "RFSoftmaxSampler",
    "Sampler",
    "SamplerInputs",
    "SamplerSpec",
    "SoftmaxSampler",
    "TwoPassSampler",
    "UniformSampler",
    "UnigramSampler",
    "WeightedSampler",
    "dense_proposals",
    "make_sampler",
]
