"""What authors write: `worker = Worker("name")` and `@worker.job(...)` on functions.

Importing a module of jobs fills the table of its worker and does nothing else; `tickwork worker module:worker`
or `worker.run()` starts the runtime with it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, TypeVar, overload

from tickwork.broker.topology import NAME
from tickwork.contracts import JobTypeInfo
from tickwork.errors import ConfigurationError
from tickwork.worker.schema import Signature, read_signature

Isolation = Literal["thread", "process"]
F = TypeVar("F", bound=Callable[..., Any])
JOB_ATTRIBUTE = "__tickwork_job__"


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One job function and the author's defaults for it."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    signature: Signature
    description: str = ""
    timeout_seconds: float | None = None
    max_attempts: int | None = None
    retry_preset: str | None = None
    isolation: Isolation = "thread"

    def call(self, context: Any, data: Mapping[str, Any]) -> Any:
        """Call the function; for an async one this is the coroutine. Raises InvalidData, and what the job raises."""
        arguments = self.signature.bind(data)
        return self.function(context, **arguments) if self.signature.takes_context else self.function(**arguments)

    def info(self) -> JobTypeInfo:
        """What the registry keeps about it."""
        return JobTypeInfo(
            name=self.name,
            description=self.description,
            data_schema=self.signature.data_schema,
            result_schema=self.signature.result_schema,
            timeout_seconds=self.timeout_seconds,
            max_attempts=self.max_attempts,
            retry_preset=self.retry_preset,
            isolation=self.isolation,
        )


class Worker:
    """A logical worker: a name, and the table of job functions that its instances run."""

    def __init__(self, name: str) -> None:
        if not NAME.match(name):
            raise ConfigurationError(f"worker name {name!r}: allowed are 1 to 64 letters, digits, '_' and '-'")
        self.name = name
        self.jobs: dict[str, Job] = {}
        self.target = ""
        """`module:name` under which a child process finds this worker again; set by the command line."""

    @overload
    def job(self, function: F, /) -> F: ...

    @overload
    def job(
        self,
        /,
        *,
        name: str | None = None,
        timeout: float | None = None,
        max_attempts: int | None = None,
        retry_preset: str | None = None,
        isolation: Isolation = "thread",
        description: str | None = None,
    ) -> Callable[[F], F]: ...

    def job(
        self,
        function: F | None = None,
        /,
        *,
        name: str | None = None,
        timeout: float | None = None,
        max_attempts: int | None = None,
        retry_preset: str | None = None,
        isolation: Isolation = "thread",
        description: str | None = None,
    ) -> F | Callable[[F], F]:
        """Make a function a job type of this worker; the function itself is returned unchanged.

        name: the job type's name, by default the function's. timeout: seconds for one attempt.
        max_attempts: 1 to 100, the first try included. retry_preset: name of the server's backoff preset.
        isolation: `thread` (async functions share one event loop, others run in threads) or `process`
        (a child process that can be killed). description: by default the first paragraph of the docstring.

        Raises ConfigurationError when an option or the signature cannot work, or the name is taken.
        """

        def register(function: F) -> F:
            job = make_job(
                function,
                name=name,
                timeout=timeout,
                max_attempts=max_attempts,
                retry_preset=retry_preset,
                isolation=isolation,
                description=description,
            )
            if job.name in self.jobs:
                raise ConfigurationError(f"worker {self.name!r} has two jobs named {job.name!r}")
            self.jobs[job.name] = job
            setattr(function, JOB_ATTRIBUTE, job)
            return function

        return register if function is None else register(function)

    def run(self, broker_url: str | None = None, **settings: Any) -> int:
        """Run an instance until a signal stops it; settings come from the environment, arguments win.

        Returns the exit status. `settings` are fields of `tickwork.config.WorkerSettings`.
        """
        from tickwork.config import WorkerSettings
        from tickwork.worker.runtime import run_until_signal

        return run_until_signal(self, WorkerSettings.from_environment(broker_url=broker_url, **settings))

    def find_target(self) -> str:
        """`module:name` of this worker, which isolated jobs need. Raises ConfigurationError when there is none."""
        if self.target:
            return self.target
        for module_name in dict.fromkeys(job.function.__module__ for job in self.jobs.values()):
            names = vars(sys.modules.get(module_name, object)).items()
            found = next((name for name, value in names if value is self), None)
            if found and module_name != "__main__":
                return f"{module_name}:{found}"
        raise ConfigurationError(
            f"worker {self.name!r} has jobs with isolation='process', which a child process must import: "
            "put the worker into a module and start it with `tickwork worker module:name`"
        )


def make_job(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    timeout: float | None = None,
    max_attempts: int | None = None,
    retry_preset: str | None = None,
    isolation: Isolation = "thread",
    description: str | None = None,
) -> Job:
    """A checked job of a function; see `Worker.job`."""
    job_name = name if name is not None else getattr(function, "__name__", "")
    if not NAME.match(job_name):
        raise ConfigurationError(f"job name {job_name!r}: allowed are 1 to 64 letters, digits, '_' and '-'")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigurationError(f"job {job_name!r} is a generator; a job returns its result")
    if timeout is not None and not timeout > 0:
        raise ConfigurationError(f"job {job_name!r}: timeout is {timeout!r}; allowed are seconds above 0")
    if max_attempts is not None and not 1 <= max_attempts <= 100:
        raise ConfigurationError(f"job {job_name!r}: max_attempts is {max_attempts!r}; allowed is 1 to 100")
    if isolation not in ("thread", "process"):
        raise ConfigurationError(f"job {job_name!r}: isolation is {isolation!r}; allowed are 'thread' and 'process'")
    text = description if description is not None else (inspect.getdoc(function) or "").split("\n\n")[0]
    return Job(
        name=job_name,
        function=function,
        is_async=inspect.iscoroutinefunction(function),
        signature=read_signature(function, job_name),
        description=" ".join(text.split()),
        timeout_seconds=timeout,
        max_attempts=max_attempts,
        retry_preset=retry_preset,
        isolation=isolation,
    )


def load_worker(target: str) -> Worker:
    """The worker behind `module:name` (`worker` by default). Raises ConfigurationError when there is none."""
    module_name, _, name = target.partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ConfigurationError(f"{target}: there is no module {error.name!r} on the Python path") from error
        raise
    worker = getattr(module, name or "worker", None)
    if not isinstance(worker, Worker):
        found = [key for key, value in vars(module).items() if isinstance(value, Worker)]
        hint = f"; it has {', '.join(found)}" if found else ""
        raise ConfigurationError(f"{target}: module {module_name!r} has no Worker named {name or 'worker'!r}{hint}")
    worker.target = f"{module_name}:{name or 'worker'}"
    return worker
