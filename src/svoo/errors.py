"""What this library refuses, one class per kind; each message says what was expected, what came,
and what to do."""


class SVOOError(Exception):
    """Base of every error that svoo raises on purpose: catch this one to catch them all."""


class ShapeError(SVOOError, ValueError):
    """Tensors whose rank, sizes, dtype or device do not fit together."""


class NonFiniteError(SVOOError, ValueError):
    """NaN or infinity where numbers are needed."""


class ConfigError(SVOOError, ValueError):
    """A setting outside its range."""


class PlanError(SVOOError, ValueError):
    """A block plan that contradicts itself or the tensors it is run on."""


class ProfileError(SVOOError, ValueError):
    """A profile that cannot be read, or does not fit the model."""


class FileError(SVOOError, OSError):
    """A file that cannot be written."""


class BackendUnavailableError(SVOOError, RuntimeError):
    """No backend, or not the one asked for, can run this call here."""


class SlowBackendError(BackendUnavailableError):
    """Only backends that would be far slower than dense attention can run this call here."""


class ModelError(SVOOError, ValueError):
    """A model or pipeline that is not known, or cannot be had."""


class StrictError(SVOOError, RuntimeError):
    """A call that would have been dense where the config is strict."""


class RankError(SVOOError, RuntimeError):
    """Another process of the same run has ended."""
