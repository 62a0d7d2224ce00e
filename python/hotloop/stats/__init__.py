"""Statistical nodes for hyperspectral cubes: fitted by one pass, then trained where wanted.

``hl.train`` fits what is not fitted (phase 1) and then trains (phase 2); ``max_epochs=0`` fits
alone. Cubes are channels-last, ``(batch, height, width, channels)``.

Fitted nodes: MinMaxNormalizer, ZScoreNormalizerGlobal, TrainablePCA, RXGlobal, LADGlobal,
SoftChannelSelector, ScoreToLogit, LearnableChannelMixer, DeepSVDDCenterTracker. Others:
ConcreteChannelMixer, ZScoreNormalizer, RXPerBatch, PerPixelUnitNorm, SigmoidNormalizer,
BandpassByWavelength, DeepSVDDProjection. Losses: OrthogonalityLoss, ReconstructionLoss,
SelectorEntropyLoss, SelectorDiversityLoss, DistinctnessLoss, DeepSVDDSoftBoundaryLoss, SoftIoULoss.
Metrics: ExplainedVariance, ComponentOrthogonality, ScoreStatistics.
"""

from hotloop.stats.calls import Called as Called
from hotloop.stats.calls import Calls as Calls
from hotloop.stats.calls import ModuleLoss as ModuleLoss
from hotloop.stats.calls import ModuleMetric as ModuleMetric
from hotloop.stats.decomposition import LearnableChannelMixer as LearnableChannelMixer
from hotloop.stats.decomposition import TrainablePCA as TrainablePCA
from hotloop.stats.detectors import LADGlobal as LADGlobal
from hotloop.stats.detectors import RXGlobal as RXGlobal
from hotloop.stats.detectors import RXPerBatch as RXPerBatch
from hotloop.stats.detectors import ScoreToLogit as ScoreToLogit
from hotloop.stats.losses import DeepSVDDSoftBoundaryLoss as DeepSVDDSoftBoundaryLoss
from hotloop.stats.losses import DistinctnessLoss as DistinctnessLoss
from hotloop.stats.losses import OrthogonalityLoss as OrthogonalityLoss
from hotloop.stats.losses import ReconstructionLoss as ReconstructionLoss
from hotloop.stats.losses import SelectorDiversityLoss as SelectorDiversityLoss
from hotloop.stats.losses import SelectorEntropyLoss as SelectorEntropyLoss
from hotloop.stats.losses import SoftIoULoss as SoftIoULoss
from hotloop.stats.metrics import ComponentOrthogonality as ComponentOrthogonality
from hotloop.stats.metrics import ExplainedVariance as ExplainedVariance
from hotloop.stats.metrics import ScoreStatistics as ScoreStatistics
from hotloop.stats.node import PixelNode as PixelNode
from hotloop.stats.node import StatisticalNode as StatisticalNode
from hotloop.stats.normalizers import BandpassByWavelength as BandpassByWavelength
from hotloop.stats.normalizers import MinMaxNormalizer as MinMaxNormalizer
from hotloop.stats.normalizers import PerPixelUnitNorm as PerPixelUnitNorm
from hotloop.stats.normalizers import SigmoidNormalizer as SigmoidNormalizer
from hotloop.stats.normalizers import ZScoreNormalizer as ZScoreNormalizer
from hotloop.stats.normalizers import ZScoreNormalizerGlobal as ZScoreNormalizerGlobal
from hotloop.stats.selection import ConcreteChannelMixer as ConcreteChannelMixer
from hotloop.stats.selection import SoftChannelSelector as SoftChannelSelector
from hotloop.stats.statistics import Affine as Affine
from hotloop.stats.statistics import Statistics as Statistics
from hotloop.stats.svdd import DeepSVDDCenterTracker as DeepSVDDCenterTracker
from hotloop.stats.svdd import DeepSVDDProjection as DeepSVDDProjection
