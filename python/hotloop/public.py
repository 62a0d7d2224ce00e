"""Everything that is public as ``hl.<name>``, each name once; functions of tensors by their family.

:mod:`hotloop` hands these out when they are first asked for.
"""

from hotloop._version import __version__ as __version__
from hotloop.data.digits import load_digits as load_digits
from hotloop.data.module import DataModule as DataModule
from hotloop.data.module import GraphDataModule as GraphDataModule
from hotloop.data.parallel import parallel_map as parallel_map
from hotloop.errors import *
from hotloop.graph import dtypes as _dtypes
from hotloop.graph.dtypes import bfloat16 as bfloat16
from hotloop.graph.dtypes import float16 as float16
from hotloop.graph.dtypes import float32 as float32
from hotloop.graph.dtypes import float64 as float64
from hotloop.graph.dtypes import int8 as int8
from hotloop.graph.dtypes import int16 as int16
from hotloop.graph.dtypes import int32 as int32
from hotloop.graph.dtypes import int64 as int64
from hotloop.graph.dtypes import uint8 as uint8
from hotloop.graph.symbolic import Tensor as Tensor
from hotloop.interop.weights import read_weights as read_weights
from hotloop.ops import *
from hotloop.tools.batch_size import find_batch_size as find_batch_size
from hotloop.tools.devices import devices as devices
from hotloop.tools.loading import bench_data as bench_data
from hotloop.tools.machine import doctor as doctor
from hotloop.tools.planning import plan as plan
from hotloop.tools.profiling import profile as profile
from hotloop.training.config import EarlyStopping as EarlyStopping
from hotloop.training.config import EMAConfig as EMAConfig
from hotloop.training.config import LearningRateMonitor as LearningRateMonitor
from hotloop.training.config import ModelCheckpoint as ModelCheckpoint
from hotloop.training.config import OptimizerConfig as OptimizerConfig
from hotloop.training.config import ParamGroup as ParamGroup
from hotloop.training.config import SchedulerConfig as SchedulerConfig
from hotloop.training.config import SWAConfig as SWAConfig
from hotloop.training.config import TrainerConfig as TrainerConfig
from hotloop.training.config import TrainingConfig as TrainingConfig
from hotloop.training.generation import generate as generate
from hotloop.training.inference import empty_cache as empty_cache
from hotloop.training.inference import evaluate as evaluate
from hotloop.training.inference import predict as predict
from hotloop.training.result.result import TrainResult as TrainResult
from hotloop.training.result.saving import load as load
from hotloop.training.result.saving import save as save
from hotloop.training.run.events import LambdaCallback as LambdaCallback
from hotloop.training.run.fit import train as train
from hotloop.training.run.folds import cross_validate as cross_validate
from hotloop.training.run.stepping import stepper as stepper
from hotloop.training.scoring.functions import metric as metric

bool = _dtypes.bool_
double = _dtypes.float64
float = _dtypes.float32
half = _dtypes.float16
int = _dtypes.int32
long = _dtypes.int64
short = _dtypes.int16
