"""Optimizers by name as the core's ops."""

from __future__ import annotations

from typing import Any

__all__ = ["optimizer_op"]


def optimizer_op(optimizer: Any) -> tuple[str, dict[str, Any]]:
    """The op and its attributes.

    Parameters
    ----------
    optimizer : OptimizerConfig
        With its defaults filled in.
    """
    name = optimizer.name
    if name in ("adam", "adamw"):
        beta1, beta2 = optimizer.betas
        return "adam", {
            "beta1": beta1,
            "beta2": beta2,
            "eps": optimizer.eps,
            "decoupled": int(name == "adamw"),
        }
    if name == "sgd":
        return "sgd", {
            "momentum": optimizer.momentum,
            "dampening": optimizer.dampening,
            "nesterov": int(optimizer.nesterov),
        }
    if name == "rmsprop":
        return "rmsprop", {
            "alpha": optimizer.alpha,
            "eps": optimizer.eps,
            "momentum": optimizer.momentum,
            "centered": int(optimizer.centered),
        }
    beta1, beta2 = optimizer.betas
    return "lion", {"beta1": beta1, "beta2": beta2}
