"""The configuration: its fields and parts, what may be written, and the schedules that it means.

``config`` has the classes and their fields, ``schema`` the rules of these, ``parts`` the structured
values, ``options`` and ``spelling`` what may be written for them, ``unsupported`` what is refused,
``toml`` the file, ``schedule`` the learning rate at each step.
"""

from hotloop.training.config.config import (
    EarlyStopping,
    EMAConfig,
    LearningRateMonitor,
    ModelCheckpoint,
    OptimizerConfig,
    ParamGroup,
    SchedulerConfig,
    SWAConfig,
    TrainerConfig,
    TrainingConfig,
    monitor_mode,
)

__all__ = [
    "EMAConfig",
    "EarlyStopping",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "OptimizerConfig",
    "ParamGroup",
    "SWAConfig",
    "SchedulerConfig",
    "TrainerConfig",
    "TrainingConfig",
    "monitor_mode",
]
