"""The product's exceptions, one tree.

TfOperatorError
├── JobError               the job as written or as rendered cannot be run; a person has to change it
│   └── JobFileError       ... and the fault has a place in a file
├── PreflightError         the job is sound, this installation cannot run it (pool, interpreter, model_dir ...)
│   └── InUseError         ... now: another run has what it needs
├── RunnerError            a runner could not do what it was asked
│   ├── IdentityHeldError  another live program has this replica's identity
│   ├── LaunchError        the program could not be started at all
│   │   ├── ImageError     ... because its image cannot be had by this name or connection: no retry will help
│   │   └── VisibleDevicesError  ... because it would see other GPUs than it was given: no retry will help
│   └── EngineUnavailableError   the container engine does not answer (may pass: retryable)
├── DeviceError            the devices a replica asked for are not free on this host (may pass: retryable)
│   └── NoSuchDeviceError  ... and never will be here: only another host can help
├── ServiceError           a service of the demo (Airflow, OpenBao) could not be started or does not answer
│   └── ApiError           Airflow's API refused a call; `status` is the HTTP status, 0 where it is out of reach
└── SecretError            a secret could not be read; never carries a value
    └── SecretUnavailableError   Vault sealed or unreachable (may pass: retryable)

Every message is one line: what, where, the value, the rule, the way out.
"""

from __future__ import annotations


class TfOperatorError(Exception):
    """Root of everything this package raises on purpose."""


class JobError(TfOperatorError):
    """The job cannot be run as it is described."""


class JobFileError(JobError):
    """A job file has a fault; the message starts with `file:line` where the line is known."""


class PreflightError(TfOperatorError):
    """The job is sound, but this installation cannot run it."""


class InUseError(PreflightError):
    """Another run that has not ended has it; trying again may help."""


class RunnerError(TfOperatorError):
    """A runner could not do what it was asked."""


class IdentityHeldError(RunnerError):
    """Another live program holds the replica's identity and could not be removed."""


class LaunchError(RunnerError):
    """The program could not be started at all."""


class ImageError(LaunchError):
    """There is no such image, or it may not be had: a person has to change name or connection, or load it."""


class VisibleDevicesError(LaunchError):
    """The program would see other devices than it was given: a person has to look at the host."""


class EngineUnavailableError(RunnerError):
    """The container engine does not answer: trying again later may help."""


class DeviceError(TfOperatorError):
    """The devices a replica asked for are not free on this host."""


class NoSuchDeviceError(DeviceError):
    """This host cannot give what a replica asks for, however long it waits."""


class ServiceError(TfOperatorError):
    """A service could not be started, or does not answer."""


class ApiError(ServiceError):
    """Airflow's API refused a call, or is out of reach (`status` 0)."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class SecretError(TfOperatorError):
    """A secret could not be read. The message names mount, path and key, never a value."""


class SecretUnavailableError(SecretError):
    """Vault is sealed or out of reach: trying again later may help."""
