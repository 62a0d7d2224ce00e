"""Training, evaluation and prediction, in folders that import downwards alone.

``config`` is the configuration, ``scoring`` losses and metrics, ``plans`` a model's planned steps
on a device, ``inference`` prediction and evaluation, ``result`` what training returns and saved
models, ``run`` the call of ``train`` itself.
"""
