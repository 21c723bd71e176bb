"""Samplers: proposal distributions over classes, with the exact probability of each draw."""

from samplesoft.samplers.base import Sampler
from samplesoft.samplers.dense import DenseSampler
from samplesoft.samplers.draw import Draw
from samplesoft.samplers.fourier import RFSoftmaxSampler
from samplesoft.samplers.frequency import LogUniformSampler, UnigramSampler
from samplesoft.samplers.inputs import SamplerInputs
from samplesoft.samplers.kernel import KernelSampler, PositiveSampler, QuadraticSampler
from samplesoft.samplers.learned import LearnedUnigramSampler
from samplesoft.samplers.mixture import MixtureSampler
from samplesoft.samplers.proposals import dense_proposals
from samplesoft.samplers.protocol import SamplerProtocol
from samplesoft.samplers.registry import SAMPLERS, SamplerSpec, make_sampler
from samplesoft.samplers.softmax import SoftmaxSampler
from samplesoft.samplers.static import UniformSampler, WeightedSampler
from samplesoft.samplers.two_pass import TwoPassSampler

__all__ = [
    "SAMPLERS",
    "DenseSampler",
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
    "SamplerProtocol",
    "SamplerSpec",
    "SoftmaxSampler",
    "TwoPassSampler",
    "UniformSampler",
    "UnigramSampler",
    "WeightedSampler",
    "dense_proposals",
    "make_sampler",
]
