"""
The Python library of Loam: jobs, repositories, their files and runs, secrets and webhooks. One file, for Python 3.9 and newer,
that needs no packages.

Sign in with `loam login`, or set `LOAM_URL` and `LOAM_TOKEN`. Then:

```python
import loam

job = loam.Client().run("python3 train.py", repo="ada/model", output_path="out")
for line in job.logs():
    print(line)
job.result()
job.artifacts.download("results")
```
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import concurrent.futures
import contextlib
import functools
import gzip
import hashlib
import hmac
import http.client
import json
import os
import pathlib
import random
import re
import secrets as random_bytes
import shutil
import ssl
import stat
import sys
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
import warnings
import zlib
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from typing import (
    IO,
    TYPE_CHECKING,
    Any,
    Callable,
    NamedTuple,
    TypedDict,
    TypeVar,
    cast,
)

__all__ = [
    "ArtifactFile",
    "Artifacts",
    "AsyncArtifacts",
    "AsyncClient",
    "AsyncFiles",
    "AsyncJob",
    "AsyncRepositories",
    "AsyncRuns",
    "AsyncSecrets",
    "AsyncWebhooks",
    "BulkResult",
    "CheckResult",
    "Client",
    "ComparedJob",
    "ComparedMetric",
    "Comparison",
    "Delivery",
    "FileEntry",
    "Files",
    "InputArtifacts",
    "InputRepository",
    "Job",
    "JobArtifacts",
    "JobCache",
    "JobFailed",
    "JobInfo",
    "JobMetric",
    "LoamError",
    "LogLine",
    "MatrixValue",
    "MetricCheck",
    "MetricSummary",
    "Repositories",
    "Repository",
    "Run",
    "RunInput",
    "RunJob",
    "RunProblem",
    "Runs",
    "Secret",
    "Secrets",
    "SkippedJobs",
    "TestCase",
    "VolumeMount",
    "Webhook",
    "WebhookError",
    "WebhookEvent",
    "Webhooks",
    "metric",
    "verify_webhook",
]

# The server limits lists and logs to 16 MiB; JSON of the largest answer is below this.
_MAX_ANSWER_BYTES = 64 * 2**20
# A line of a log has at most 64 KiB, and JSON escapes a byte with up to six.
_MAX_EVENT_BYTES = 2**20
_CHUNK_BYTES = 2**16
_ANSWER_TIMEOUT_S = 120.0
# The server sends a comment every 15 s, so a stream that is silent for longer has lost its connection.
_SILENCE_TIMEOUT_S = 45.0
# A request is sent again for this long, which a restart of the server takes; a download for as long without progress.
_RETRY_S = 15.0
_DOWNLOAD_RETRY_S = 120.0
_MAX_PAUSE_S = 5.0
_MAX_RETRY_AFTER_S = 60.0
_MAX_MESSAGE = 2_000
_MAX_REDIRECTS = 5
_CONTRACT_GPUS = frozenset({"none", "T4", "L4", "A100-40GB", "A100-80GB", "H100-80GB"})
_WEBHOOKS = "/auth/v1/seed/webhooks"
_FINAL = frozenset({"SUCCEEDED", "FAILED", "CANCELLED", "TIMED_OUT"})
# Codes whose message begins with the field at fault.
_NAMES_FIELD = ("invalid_request", "already_exists")
_RUN_FIELDS = """id number status trigger ref sha title actor approvedBy createdAt startedAt completedAt
  inputs { name value } problems { line column message } jobs { namespace name runJob matrixValues { key value } status exitCode }"""
_READ_MATRIX_VALUES = """query ($namespace: String!, $name: String!) {
  job(namespace: $namespace, name: $name) { matrixValues { key value } } }"""
_READ_SUMMARY = """query ReadJobSummary($namespace: String!, $name: String!) {
  job(namespace: $namespace, name: $name) { summary } }"""
_TEST_PAGE = 250
_READ_TESTS = """
query ReadJobTests($namespace: String!, $name: String!, $status: TestStatus, $offset: Int!) {
  job(namespace: $namespace, name: $name) { testReport { tests(status: $status, first: 250, offset: $offset) {
    status name className suite file durationMs message details output } } } }"""
_READ_METRICS = """query ($namespace: String!, $name: String!) {
  job(namespace: $namespace, name: $name) { metrics { name points min max last lastStep lastAt } } }"""
_READ_CHECKS = """query ($namespace: String!, $name: String!) {
  job(namespace: $namespace, name: $name) {
    checks { metric min max regressPercent better baselineJob passed message } } }"""
_FIND_ARRAY = """query ($namespace: String!, $name: String!) {
  jobArray(namespace: $namespace, name: $name) { id } }"""
_ARRAY_ID = re.compile("arr_[0-9a-z]{26}")
_COMPARE_JOBS = """query ($jobs: [JobSelectionInput!]!) { compareJobs(jobs: $jobs) {
  jobs { id namespace name status matrixValues { key value } arrayIndex labels { key value } repo branch commitSha image
    gpu gpuCount cpu memoryGb diskGb region createdAt startedAt completedAt runtimeSeconds totalCost artifactFiles artifactBytes }
  metricNames { name jobs isLowerBetter } isTruncated missing } }"""
# The server has at most 50 metrics in an answer.
_METRICS_AT_ONCE = 50
_COMPARE_METRICS = """query ($jobs: [JobSelectionInput!]!, $names: [String!]) { compareJobs(jobs: $jobs) {
  jobs { id } metrics(names: $names) { name last min max } } }"""
_METRIC_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,99}", re.ASCII)
_SECRET_FIELDS = "name refs updatedBy updatedAt lastUsedAt"
# Fields of REST whose values are fixed.
_FIXED = frozenset({"status", "gpu", "region", "visibility", "event_type"})
# The statuses of errors of GraphQL, whose answers have 200.
_STATUS = {
    "invalid_request": 400,
    "authentication_failed": 401,
    "permission_denied": 403,
    "quota_exceeded": 403,
    "not_found": 404,
    "already_exists": 409,
    "conflict": 409,
    "rate_limit_exceeded": 429,
    "internal_error": 500,
}


class LoamError(Exception):
    """
    A failed request. `code` is a code of the API, such as `not_found` or `permission_denied`; `unreachable` when no answer
    came; `bad_answer` when the answer is not one of a Loam server. `status` is the HTTP status, 0 without an answer. `field`
    names the parameter at fault, `request_id` the request in the server's log, and `retry_after` the seconds to wait, if the
    answer has them.
    """

    def __init__(
        self,
        code: str,
        message: str,
        status: int = 0,
        field: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.field = field
        self.request_id = request_id
        self.retry_after = retry_after

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later: no connection, a request to wait, or a failure of the server."""
        return self.code == "unreachable" or self.retry_after is not None or self.status >= 500


class JobFailed(Exception):
    """A job that ended without success. `info` has its `status`, and its `exit_code` unless its process never ended."""

    def __init__(self, info: JobInfo) -> None:
        exit_code = info.get("exit_code")
        reason = "" if exit_code is None else f" with exit code {exit_code}"
        status = info["status"].lower().replace("_", " ")
        super().__init__(f"{info['namespace']}/{info['name']} {status}{reason}")
        self.info = info
        self.status = info["status"]
        self.exit_code = exit_code


class WebhookError(Exception):
    """A request that is not a message of the webhook, or too old to accept."""


class JobArtifacts(TypedDict):
    """The files that a job left at `output_path`. The link works for 15 minutes without credentials."""

    path: str
    size_bytes: int
    files: int
    download_url: str


class _JobBase(TypedDict):
    id: str
    name: str
    namespace: str
    status: str
    gpu: str
    gpu_count: int
    region: str
    cost_per_hour: str
    created_at: str
    started_at: str | None
    completed_at: str | None


class JobInfo(_JobBase, total=False):
    """
    A job. `status` is `QUEUED`, `RUNNING`, `SUCCEEDED`, `FAILED`, `CANCELLED` or `TIMED_OUT`, `gpu` such as `A100_80GB`, and
    `region` such as `US_EAST_1`. Times are ISO 8601 in UTC, prices decimal numbers as text. `image`, `exit_code` and `artifacts`
    are absent if they do not apply, and lists have the fields up to `runtime_seconds` only.
    """

    progress: str | None
    runtime_seconds: int
    command: str
    repo: str | None
    image: str
    branch: str | None
    commit_sha: str | None
    cpu: int
    memory_gb: int
    disk_gb: int
    timeout_minutes: int
    retries: int
    retry_count: int
    output_path: str | None
    exit_code: int
    total_cost: str
    artifacts: JobArtifacts


class TestCase(TypedDict):
    """
    A test of a job. `message` says why it failed or was skipped, `details` is the text of the failure, and `output` the end of what a
    failed test printed.
    """

    status: str
    name: str
    class_name: str
    suite: str
    file: str | None
    duration_ms: int | None
    message: str | None
    details: str | None
    output: str | None


class JobMetric(TypedDict):
    """
    A metric that a job prints. `points` counts all attempts; `last` is the value that was printed last. Values may be NaN or
    infinite; `min` and `max` are None if all values are NaN.
    """

    name: str
    points: int
    min: float | None
    max: float | None
    last: float
    last_step: int
    last_at: str


class _InputBase(TypedDict):
    job: str


class InputArtifacts(_InputBase, total=False):
    """
    Artifacts of another job that a new job gets as files. `job` is the name of the other job, `path` a file or folder among its
    artifacts (by default all), and `to` where it is put in the working directory; a file is put into a folder that ends with a
    slash.
    """

    path: str
    to: str


class _InputRepositoryBase(TypedDict):
    repo: str


class InputRepository(_InputRepositoryBase, total=False):
    """
    Files of a repository that a new job gets. `repo` is `namespace/name`, `ref` a branch, a tag or a commit id (by default the default
    branch), `path` a file or folder (by default all), and `to` as for `InputArtifacts`. A folder that is `read_only` may be mounted, so
    that the job cannot change it and need not wait for a copy.
    """

    ref: str
    path: str
    to: str
    read_only: bool


class _VolumeBase(TypedDict):
    name: str
    to: str


class VolumeMount(_VolumeBase, total=False):
    """
    A volume of the server that a new job mounts: its `name`, the folder `to` at which the job has it (`data` in the working
    directory, or `/data`), and whether it is `read_only` (by default as the volume permits).
    """

    read_only: bool


class _CacheBase(TypedDict):
    path: str
    key: str


class JobCache(_CacheBase, total=False):
    """
    A folder that a new job finds as an earlier job of the repository has left it: its `path` in the working directory or in the
    home folder (`~/.npm`), a `key` that names its contents, such as `npm-${hash:package-lock.json}`, and `restore_keys`, the
    beginnings of keys that are restored if no cache has the key.
    """

    restore_keys: Sequence[str]


class _CheckBase(TypedDict):
    metric: str


class MetricCheck(_CheckBase, total=False):
    """
    What a `metric` must meet for a new job to succeed: a `min`, a `max`, or how many percent worse it may be (`regress_percent`) than
    at the last success of the `baseline_job` in `.loam/jobs.yml` on the default branch. `better` is `higher`, the default, or `lower`.
    """

    min: float
    max: float
    regress_percent: float
    better: str
    baseline_job: str


class CheckResult(TypedDict):
    """A check of a job, and whether it has `passed`, with a `message`; both are None until the command has succeeded."""

    metric: str
    min: float | None
    max: float | None
    regress_percent: float | None
    better: str | None
    baseline_job: str | None
    passed: bool | None
    message: str | None


class MatrixValue(TypedDict):
    """A value of a combination of a matrix."""

    key: str
    value: str


class MetricSummary(TypedDict):
    """
    The values of a metric of a job: the one that was printed last, the lowest and the highest. They may be NaN or infinite; `min` and
    `max` are None if all values are NaN.
    """

    last: float
    min: float | None
    max: float | None


class ComparedJob(TypedDict):
    """
    A job of a comparison. The fields are those of `JobInfo`. `values` are those of its combination of a matrix, by key, and `metrics`
    those that it has printed, by name.
    """

    id: str
    namespace: str
    name: str
    status: str
    values: dict[str, str]
    array_index: int | None
    labels: dict[str, str]
    repo: str | None
    branch: str | None
    commit_sha: str | None
    image: str | None
    gpu: str
    gpu_count: int
    cpu: int
    memory_gb: int
    disk_gb: int
    region: str
    created_at: str
    started_at: str | None
    completed_at: str | None
    runtime_seconds: int
    total_cost: str
    artifact_files: int | None
    artifact_bytes: int | None
    metrics: dict[str, MetricSummary]


class ComparedMetric(TypedDict):
    """
    A metric, and the number of compared jobs that have it. Whether a lower value is better is guessed from its name: true for losses,
    errors and times.
    """

    name: str
    jobs: int
    is_lower_better: bool


class Comparison(TypedDict):
    """
    Jobs side by side, in the order of their creation; of more than 1000, the newest ones, and then `is_truncated` is true.
    `metric_names` has those of most jobs first. `missing` are the selected jobs that do not exist or are not visible to the user, as
    `namespace/name`.
    """

    jobs: list[ComparedJob]
    metric_names: list[ComparedMetric]
    is_truncated: bool
    missing: list[str]


class SkippedJobs(TypedDict):
    """Jobs that were not changed for the same reason, with the names of at most 10 of them."""

    reason: str
    count: int
    names: list[str]
    message: str


class BulkResult(TypedDict):
    """How many jobs were selected and changed, and which were skipped."""

    matched: int
    done: int
    skipped: list[SkippedJobs]


class ArtifactFile(TypedDict):
    """A file of the artifacts of a job. `path` is relative to `output_path`."""

    path: str
    size_bytes: int
    download_url: str


class _RepositoryBase(TypedDict):
    id: str
    name: str
    namespace: str
    full_name: str
    description: str | None
    visibility: str
    default_branch: str
    size_bytes: int
    language: str | None
    created_at: str
    updated_at: str
    pushed_at: str | None


class Repository(_RepositoryBase, total=False):
    """
    A repository. `visibility` is `PRIVATE`, `INTERNAL` or `PUBLIC`. Lists lack the fields from `content_addressed` on; only
    `create` has the URLs.
    """

    content_addressed: bool
    branch_protection: bool
    secret_scanning: bool
    collaborators: int
    branches: int
    tags: int
    clone_url: str
    ssh_url: str


class Webhook(TypedDict):
    """A webhook, without its secret. `event_types` are such as `JOB_COMPLETED`."""

    id: str
    name: str
    url: str
    event_types: list[str]
    namespaces: list[str]
    has_secret: bool
    active: bool
    created_at: str
    updated_at: str


class Delivery(TypedDict):
    """One event for one webhook. `status` is `PENDING`, `SUCCEEDED` or `FAILED`; `outcome` is the result of the last attempt."""

    id: str
    event_id: str
    event_type: str
    status: str
    outcome: str | None
    response_status: int | None
    attempts: int
    next_attempt_at: str | None
    created_at: str
    completed_at: str | None


class FileEntry(TypedDict):
    """An entry of a folder. `type` is `FILE` or `DIRECTORY`, `mode` that of git, such as `100644`."""

    name: str
    type: str
    mode: str
    size_bytes: int | None
    sha: str


class RunJob(TypedDict):
    """A job of a run. `run_job` is its name in the file."""

    namespace: str
    name: str
    run_job: str | None
    matrix_values: list[MatrixValue]
    status: str
    exit_code: int | None


class RunProblem(TypedDict):
    """A mistake in the file of jobs."""

    line: int | None
    column: int | None
    message: str


class RunInput(TypedDict):
    """The value of an input of a run."""

    name: str
    value: str


class Run(TypedDict):
    """A run. `status` is `SUCCEEDED`, `FAILED`, `INVALID` and others; `completed_at` is None until it is over."""

    id: str
    number: int
    status: str
    trigger: str
    ref: str
    sha: str
    title: str
    actor: str
    approved_by: str | None
    created_at: str
    started_at: str | None
    completed_at: str | None
    inputs: list[RunInput]
    problems: list[RunProblem]
    jobs: list[RunJob]


class Secret(TypedDict):
    """A secret, without its value."""

    name: str
    refs: list[str]
    updated_by: str
    updated_at: str
    last_used_at: str | None


class WebhookEvent(TypedDict):
    """The body of a message. `data` is the job or repository as it was at `timestamp`."""

    id: str
    type: str
    timestamp: str
    namespace: str
    data: dict[str, Any]


class LogLine(NamedTuple):
    """A line of a log. `str(line)` is its message, `id` its position, from which `Job.logs(after=id)` continues."""

    id: int
    timestamp: str
    message: str

    def __str__(self) -> str:
        return self.message


class Client:
    """
    A Loam server, as one user sees it. `client.repositories` are its `Repositories`, and in the same way it has `files`, `runs`,
    `secrets` and `webhooks`. States and other fixed values are in upper case, as `SUCCEEDED` and `A100_80GB`, in answers; arguments
    may have them in any case, as `a100-80gb`.

    Without arguments, it reads `LOAM_URL` and `LOAM_TOKEN`, or else the file that `loam login` writes, `loam/credentials.json`
    in `$XDG_CONFIG_HOME` or `~/.config`. `token` is an access token, or an API key as `name$secret`. `LOAM_CA` names a file of
    certificate authorities to trust besides those of the system. `HTTPS_PROXY` and `NO_PROXY` work as in curl.

    While the server is away, fails or asks to wait, requests are retried for 15 seconds. The token is never sent to another
    address: redirects of the API are errors, and downloads use signed links.

    Raises `LoamError` without credentials, and as all methods do when a request fails.
    """

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        self.url, self._authorization = _credentials(url, token)
        self.repositories = Repositories(self)
        self.webhooks = Webhooks(self)
        self.files = Files(self)
        self.runs = Runs(self)
        self.secrets = Secrets(self)
        self._namespace: str | None = None
        context = ssl.create_default_context()
        authorities = os.environ.get("LOAM_CA")
        if authorities:
            context.load_verify_locations(authorities)
        # No handlers of redirects, files or FTP: a hostile server must not choose what this program reads.
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(context=context),
            urllib.request.UnknownHandler(),
        ):
            self._opener.add_handler(handler)

    def run(
        self,
        command: str,
        *,
        repo: str | None = None,
        image: str | None = None,
        branch: str | None = None,
        gpu: str = "none",
        gpu_count: int | None = None,
        cpu: int | None = None,
        memory_gb: int | None = None,
        disk_gb: int | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        secret_names: Sequence[str] | None = None,
        variable_names: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
        permissions: Mapping[str, str] | None = None,
        id_tokens: Mapping[str, str] | None = None,
        region: str | None = None,
        timeout_minutes: int | None = None,
        hold_on_failure_minutes: int | None = None,
        shell_access: str | None = None,
        retries: int | None = None,
        output_path: str | None = None,
        inputs: Sequence[InputArtifacts | InputRepository] | None = None,
        volumes: Sequence[VolumeMount] | None = None,
        cache: Sequence[JobCache] | None = None,
        checkpoint_path: str | None = None,
        checkpoint_minutes: int | None = None,
        checks: Sequence[MetricCheck] | None = None,
        test_reports: Sequence[str] | None = None,
        needs: Mapping[str, str] | Sequence[str] | None = None,
        array: int | None = None,
        max_parallel: int | None = None,
        concurrency: str | None = None,
        on_conflict: str | None = None,
        name: str | None = None,
        namespace: str | None = None,
    ) -> Job:
        """
        Creates a job and returns at once. The job needs `repo` (`namespace/name`, or `name` of the user), `image`, or both.
        Fields that are left out have the defaults of the API. `gpu` also takes a model with a count, as `A100-80GB:2`. Without `name`, the job gets
        one of the first two words of the command and a random end; without `namespace`, it belongs to that of `repo`, or else to
        the user's own. `secrets` are variables that are stored encrypted and masked in the log. `secret_names` and
        `variable_names` are names of secrets and variables of the repository, or else of its namespace. `permissions`, such as
        `{"repo": "write", "jobs": "read"}`, give the job a token of its own. `id_tokens` names the variables of identity tokens,
        each with its audience. When the command of the last attempt fails, its sandbox stays for `hold_on_failure_minutes`, so that one
        can look into it; `Job.release` ends that. With the `shell_access` `none`, nobody can open a shell in the job. `volumes` are data
        on the machines of the server that the job mounts. `cache` are folders that it finds as an earlier job has left them.
        `checkpoint_path` is a folder in the working directory whose content the next attempt gets; it is stored every
        `checkpoint_minutes`, by default 10, and 0 is only at the end of attempts. `checks` are what its metrics must meet for the
        job to succeed. `test_reports` are paths or patterns of JUnit files, such as `reports/*.xml`, which `Job.tests` reads.

        `needs` are names of jobs or arrays that must have succeeded before this one starts, or a dictionary from names to
        `succeeded`, `failed` or `finished`. `array` creates that many jobs, `<name>-0` and so on, of which `max_parallel` run at once, and
        returns the first. Of a `concurrency` group one job runs at a time; `on_conflict` is `queue`, `cancel_running` or `skip`.
        """
        if ":" in gpu and gpu_count is None:
            gpu, _, count = gpu.partition(":")
            gpu_count = int(count) if count.isdecimal() else 0
        if repo and "/" not in repo:
            repo = f"{self._own_namespace()}/{repo}"
        if namespace is None:
            namespace = repo.split("/")[0] if repo else self._own_namespace()
        chosen = name or _random_name(command)
        fields: dict[str, Any] = {
            "name": chosen,
            "command": command,
            "repo": repo,
            "image": image,
            "branch": branch,
            "gpu": _gpu(gpu),
            "gpu_count": gpu_count,
            "cpu": cpu,
            "memory_gb": memory_gb,
            "disk_gb": disk_gb,
            "env": None if env is None else dict(env),
            "region": None if region is None else _enum(region).lower().replace("_", "-"),
            "timeout_minutes": timeout_minutes,
            "retries": retries,
            "output_path": output_path,
        }
        given = {key: value for key, value in fields.items() if value is not None}
        # REST has no fields for these.
        in_graphql = {
            "secrets": [{"name": key, "value": value} for key, value in (secrets or {}).items()],
            "secretNames": list(secret_names or []),
            "variableNames": list(variable_names or []),
            "labels": [{"key": key, "value": value} for key, value in (labels or {}).items()],
            "permissions": {key: access.upper() for key, access in (permissions or {}).items()},
            "idTokens": [
                {"variable": key, "audience": value} for key, value in (id_tokens or {}).items()
            ],
            "inputs": [_read_only(one) for one in inputs or []],
            "volumes": [_read_only(one) for one in volumes or []],
            "cache": [_cache(one) for one in cache or []],
            "checkpointPath": checkpoint_path,
            "checkpointMinutes": checkpoint_minutes,
            "checks": [_check(one) for one in checks or []],
            "testReports": list(test_reports or []),
            "holdOnFailureMinutes": hold_on_failure_minutes,
            "shellAccess": None if shell_access is None else _enum(shell_access),
            "needs": _needs(needs),
            "array": {} if array is None else {"size": array, "maxParallel": max_parallel},
            "concurrency": {}
            if concurrency is None
            else {"group": concurrency, "onConflict": _enum(on_conflict or "queue")},
        }
        try:
            if any(in_graphql.values()):
                self._create_with_graphql(namespace, given, in_graphql)
            else:
                self.request("POST", f"/auth/v1/seed/{_quote(namespace)}/jobs", given)
        except LoamError as error:
            # A server that died after it had created the job answers the repeated request with this.
            if name is not None or error.code != "already_exists":
                raise
        return self.job(chosen if array is None else f"{chosen}-0", namespace)

    def _create_with_graphql(
        self,
        namespace: str,
        given: Mapping[str, Any],
        in_graphql: Mapping[str, Any],
    ) -> None:
        """GraphQL names fields and values in another form than REST."""
        job_input = {
            re.sub(r"_(\w)", lambda found: found[1].upper(), key): value
            for key, value in given.items()
        }
        job_input["namespace"] = namespace
        if "region" in given:
            job_input["region"] = _enum(given["region"])
        if "env" in given:
            job_input["env"] = [
                {"name": key, "value": value} for key, value in given["env"].items()
            ]
        job_input.update({key: value for key, value in in_graphql.items() if value or value == 0})
        self.graphql(
            "mutation ($input: CreateJobInput!) { createJob(input: $input) { job { id } } }",
            {"input": job_input},
        )

    def job(self, name: str, namespace: str | None = None) -> Job:
        """The job of this name, in the user's own namespace if none is given."""
        namespace = namespace or self._own_namespace()
        return Job(self, cast(JobInfo, _spelled(self.request("GET", _job_path(namespace, name)))))

    def jobs(self, namespace: str | None = None, *, status: str | None = None) -> Iterator[JobInfo]:
        """The jobs of a namespace, newest first. Further pages are read as the iterator reaches them."""
        namespace = namespace or self._own_namespace()
        for info in self._list(f"/{_quote(namespace)}/jobs", {"status": _plain(status)}):
            yield cast(JobInfo, _spelled(info))

    def compare(
        self,
        namespace: str | None = None,
        *,
        array: str | None = None,
        names: Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        metrics: Sequence[str] | None = None,
    ) -> Comparison:
        """
        Compares up to 1000 jobs of a namespace: their settings, the values of their matrix, and their metrics, or only those that
        `metrics` names. The jobs are those of an `array`, which is the name or the id of an array or of a matrix of a run, or they
        are selected as in `cancel_jobs`:

            jobs = client.compare(array="sweep")["jobs"]
            best = max(jobs, key=lambda job: job["metrics"]["accuracy"]["last"])
        """
        namespace = namespace or self._own_namespace()
        conditions = None if filter is None else dict(filter)
        if array is not None:
            conditions = {**(conditions or {}), "array": self._array_id(namespace, array)}
        selected = {
            "namespace": namespace,
            "names": None if names is None else list(names),
            "filter": conditions,
        }
        answer = self.graphql(_COMPARE_JOBS, {"jobs": [selected]})["compareJobs"]
        jobs: dict[str, ComparedJob] = {}
        for job in answer.pop("jobs"):
            values, labels = _by_key(job.pop("matrixValues")), _by_key(job.pop("labels"))
            row = {**_snake(job), "values": values, "labels": labels, "metrics": {}}
            jobs[job["id"]] = cast(ComparedJob, row)
        if metrics is None:
            metrics = [one["name"] for one in answer["metricNames"]]
        for start in range(0, len(metrics), _METRICS_AT_ONCE):
            wanted = list(metrics[start : start + _METRICS_AT_ONCE])
            read = self.graphql(_COMPARE_METRICS, {"jobs": [selected], "names": wanted})
            _add_metrics(jobs, read["compareJobs"])
        return cast(Comparison, {"jobs": list(jobs.values()), **_snake(answer)})

    def _array_id(self, namespace: str, array: str) -> str:
        if _ARRAY_ID.fullmatch(array):
            return array
        found = self.graphql(_FIND_ARRAY, {"namespace": namespace, "name": array})["jobArray"]
        if found is None:
            raise LoamError("not_found", f"Array {namespace}/{array} not found", 404)
        return str(found["id"])

    def cancel_jobs(
        self,
        namespace: str | None = None,
        *,
        names: Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        dry_run: bool = False,
    ) -> BulkResult:
        """
        Cancels the queued and running jobs of a namespace that have one of up to 1000 names, or match a `JobFilter` of GraphQL,
        such as `{"labels": [{"key": "sweep"}]}`; an empty filter matches all. With `dry_run`, they are only counted.
        """
        return self._change_jobs("cancel", namespace, names, filter, {"dryRun": dry_run})

    def rerun_jobs(
        self,
        namespace: str | None = None,
        *,
        names: Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        newest_commit: bool = False,
        dry_run: bool = False,
    ) -> BulkResult:
        """Creates a job with the settings of each job that is selected as in `cancel_jobs`."""
        more = {"newestCommit": newest_commit, "dryRun": dry_run}
        return self._change_jobs("rerun", namespace, names, filter, more)

    def delete_jobs(
        self,
        namespace: str | None = None,
        *,
        names: Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        delete_artifacts: bool = False,
        dry_run: bool = False,
    ) -> BulkResult:
        """Deletes the jobs that are selected as in `cancel_jobs` and have ended, with their logs."""
        more = {"deleteArtifacts": delete_artifacts, "dryRun": dry_run}
        return self._change_jobs("delete", namespace, names, filter, more)

    def _change_jobs(
        self,
        verb: str,
        namespace: str | None,
        names: Sequence[str] | None,
        filter: Mapping[str, Any] | None,
        more: Mapping[str, Any],
    ) -> BulkResult:
        """Repeats the call, which ends after 10,000 jobs or 20 seconds, until all selected jobs are done."""
        query = (
            f"mutation ($input: {verb.capitalize()}JobsInput!) {{ {verb}Jobs(input: $input) {{"
            " matched done skipped { reason count names message } endCursor } }"
        )
        selected = {
            "namespace": namespace or self._own_namespace(),
            "names": None if names is None else list(names),
            "filter": None if filter is None else dict(filter),
            **more,
        }
        result: BulkResult = {"matched": 0, "done": 0, "skipped": []}
        after = None
        while True:
            answer = self.graphql(query, {"input": {**selected, "after": after}})[f"{verb}Jobs"]
            result["matched"] += answer["matched"]
            result["done"] += answer["done"]
            for skipped in answer["skipped"]:
                same = [one for one in result["skipped"] if one["reason"] == skipped["reason"]]
                if same:
                    same[0]["count"] += skipped["count"]
                    same[0]["names"] = [*same[0]["names"], *skipped["names"]][:10]
                else:
                    result["skipped"].append(skipped)
            after = answer["endCursor"]
            if after is None:
                return result

    def whoami(self) -> dict[str, str]:
        """The user of the token: `user_id`, `username`, `email` and `namespace`."""
        return cast(dict[str, str], self.request("GET", "/auth/v1/whoami"))

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> Any:
        """Sends a REST request for which there is no method, and returns its JSON, or None for an empty answer."""
        given = {key: value for key, value in (query or {}).items() if value is not None}
        path += f"?{urllib.parse.urlencode(given)}" if given else ""
        headers = {"Accept": "application/json"}
        data = None
        if method == "POST":
            # The server runs a repeated request with the same key once.
            headers["Idempotency-Key"] = str(uuid.uuid4())
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        deadline = time.monotonic() + _RETRY_S
        pauses = _Pauses()
        while True:
            try:
                with self._send(method, path, headers, data) as response:
                    answer = _read_bounded(response, self.url)
                return json.loads(answer) if answer else None
            except LoamError as error:
                left = deadline - time.monotonic()
                if not error.is_temporary or left <= (error.retry_after or 0):
                    raise
                pause = min(pauses.after(error), left)
            except ValueError:
                raise _no_loam(self.url) from None
            time.sleep(pause)

    def graphql(self, query: str, variables: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Runs a GraphQL operation and returns its `data`. Raises `LoamError` with the first of its errors."""
        answer = self.request(
            "POST", "/graphql", {"query": query, "variables": dict(variables or {})}
        )
        if not isinstance(answer, dict):
            raise _no_loam(self.url)
        for error in answer.get("errors") or ():
            extensions = error.get("extensions") or {}
            code = str(extensions.get("code", "bad_answer")).lower()
            raise LoamError(
                code, str(error.get("message")), _STATUS.get(code, 400), extensions.get("field")
            )
        data = answer.get("data")
        if not isinstance(data, dict):
            raise _no_loam(self.url)
        return data

    def _in_repository(
        self,
        repository: str,
        selected: str,
        parameters: str = "",
        variables: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Fields of a repository."""
        if not re.fullmatch("[^/]+/[^/]+", repository):
            raise LoamError(
                "invalid_request", f'repository: must be "namespace/name", not "{repository}"'
            )
        return self._of_owner(repository, selected, parameters, variables)

    def _of_owner(
        self,
        owner: str,
        selected: str,
        parameters: str = "",
        variables: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Fields of a repository, or of a namespace if the name has no slash."""
        namespace, slash, name = owner.partition("/")
        opened, declared = "namespace(name: $namespace)", ["$namespace: String!"]
        given = {"namespace": namespace, **(variables or {})}
        if slash:
            opened = "repository(namespace: $namespace, name: $name)"
            declared.append("$name: String!")
            given["name"] = name
        if parameters:
            declared.append(parameters)
        query = f"query ({', '.join(declared)}) {{ {opened} {{ {selected} }} }}"
        answer = self.graphql(query, given)
        found = answer["repository" if slash else "namespace"]
        if found is None:
            raise LoamError("not_found", f"{owner} not found", 404)
        return cast(dict[str, Any], found)

    def _pages(self, read: Callable[[str | None], Any]) -> Iterator[Any]:
        """The entries of a list, whose pages are read after a cursor as the iterator reaches them."""
        after = None
        while True:
            page = read(after)
            yield from map(_snake, page["nodes"])
            if not page["pageInfo"]["hasNextPage"]:
                return
            after = page["pageInfo"]["endCursor"]

    def _own_namespace(self) -> str:
        if self._namespace is None:
            self._namespace = self.whoami()["namespace"]
        return self._namespace

    def _list(self, path: str, query: Mapping[str, Any] | None = None) -> Iterator[Any]:
        page, pages = 1, 1
        while page <= pages:
            answer = self.request(
                "GET", path, query={**(query or {}), "page": page, "per_page": 100}
            )
            yield from answer["data"]
            page, pages = page + 1, answer["pagination"]["total_pages"]

    def _send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        timeout: float = _ANSWER_TIMEOUT_S,
    ) -> http.client.HTTPResponse:
        """The answer, whose status is below 300."""
        if not path.startswith("/") or path.startswith("//"):
            raise LoamError("invalid_request", f"{path} is not a path of {self.url}")
        headers = {**headers, "Authorization": self._authorization}
        response = self._open(self.url + path, method, headers, body, timeout)
        if response.status < 300:
            return response
        with response:
            raise _refusal(response, self.url)

    def _open(
        self,
        url: str,
        method: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        timeout: float = _ANSWER_TIMEOUT_S,
    ) -> http.client.HTTPResponse:
        """The answer, whatever its status. Redirects are not followed."""
        request = urllib.request.Request(url, body, dict(headers), method=method)
        request.add_header(
            "User-Agent", f"loam.py Python/{sys.version_info[0]}.{sys.version_info[1]}"
        )
        with _reaching(_origin(url)):
            return cast(http.client.HTTPResponse, self._opener.open(request, timeout=timeout))

    def _open_download(self, url: str, offset: int) -> http.client.HTTPResponse:
        """Opens a signed link from a byte on, without credentials. It may redirect to the storage of the server."""
        for _ in range(_MAX_REDIRECTS):
            if not url.startswith(("https://", "http://")):
                raise LoamError("bad_answer", f"{url[:200]} is not an http or https URL")
            response = self._open(url, "GET", {"Range": f"bytes={offset}-"} if offset else {})
            location = response.headers.get("Location")
            if response.status not in (301, 302, 303, 307, 308) or location is None:
                return response
            response.close()
            target = urllib.parse.urljoin(url, location)
            if url.startswith("https://") and target.startswith("http://"):
                raise LoamError("bad_answer", f"{_origin(url)} redirects to an address without TLS")
            url = target
        raise LoamError("bad_answer", f"{_origin(url)} redirects more than {_MAX_REDIRECTS} times")


class Job:
    """A job. `info` is the `JobInfo` of the last answer, and `artifacts` are the files that the job has left."""

    def __init__(self, client: Client, info: JobInfo) -> None:
        self._client = client
        self.info = info
        self.artifacts = Artifacts(self)

    def __repr__(self) -> str:
        return f"<Job {self.namespace}/{self.name} {self.status}>"

    @property
    def id(self) -> str:
        """The id, such as `job_…`."""
        return self.info["id"]

    @property
    def name(self) -> str:
        """The name, which is unique in the namespace."""
        return self.info["name"]

    @property
    def namespace(self) -> str:
        """The user or organization that owns the job."""
        return self.info["namespace"]

    @property
    def status(self) -> str:
        """The status of the last answer; `refresh` asks again."""
        return self.info["status"]

    def refresh(self) -> JobInfo:
        """Asks the server for the job, and returns its new `info`."""
        path = _job_path(self.namespace, self.name)
        self.info = cast(JobInfo, _spelled(self._client.request("GET", path)))
        return self.info

    def matrix_values(self) -> list[MatrixValue]:
        """The values of its combination of a matrix, in the order of the file; empty for other jobs."""
        variables = {"namespace": self.namespace, "name": self.name}
        answer = self._client.graphql(_READ_MATRIX_VALUES, variables)
        return cast("list[MatrixValue]", answer["job"]["matrixValues"])

    def metrics(self) -> list[JobMetric]:
        """The metrics that the job prints, by name."""
        variables = {"namespace": self.namespace, "name": self.name}
        found = _snake(self._client.graphql(_READ_METRICS, variables)["job"]["metrics"])
        for one in found:
            for key in ("min", "max", "last"):
                one[key] = None if one[key] is None else float(one[key])
        return cast("list[JobMetric]", found)

    def checks(self) -> list[CheckResult]:
        """What the metrics of the job must meet for it to succeed, and whether they do."""
        variables = {"namespace": self.namespace, "name": self.name}
        found = self._client.graphql(_READ_CHECKS, variables)["job"]["checks"]
        return cast("list[CheckResult]", _snake(found))

    def summary(self) -> str | None:
        """The Markdown text that the job has written to `JOB_SUMMARY`; `None` if it has written none."""
        variables = {"namespace": self.namespace, "name": self.name}
        return cast("str | None", self._client.graphql(_READ_SUMMARY, variables)["job"]["summary"])

    def tests(self, *, status: str | None = None) -> list[TestCase] | None:
        """
        The tests of the last attempt with reports, failed ones first, or only those with the `status` `failed`, `skipped` or
        `passed`. `None` if there are no reports.
        """
        tests: list[TestCase] = []
        while True:
            variables = {
                "namespace": self.namespace,
                "name": self.name,
                "status": None if status is None else _enum(status),
                "offset": len(tests),
            }
            report = self._client.graphql(_READ_TESTS, variables)["job"]["testReport"]
            if report is None:
                return None
            page = cast("list[TestCase]", _snake(report["tests"]))
            tests += page
            if len(page) < _TEST_PAGE:
                return tests

    def logs(self, *, after: int = 0) -> Iterator[LogLine]:
        """
        Follows the log from its beginning, or after the line with this id, until the job has ended. While the server cannot be
        reached, it waits, and then continues after the last line, without losing or repeating one.
        """
        for batch in self._log_batches(after):
            yield from batch

    def _log_batches(self, after: int) -> Iterator[list[LogLine]]:
        """The lines as they arrive. A list is empty at each sign of life and each failure, so that a thread can stop there."""
        last_id = after
        pauses = _Pauses()
        while True:
            # Without an error, the server has closed the stream before its end, because it stops.
            error: LoamError | None = None
            try:
                for events in self._events(last_id):
                    pauses = _Pauses()
                    lines: list[LogLine] = []
                    for event in events:
                        if event.kind == "end":
                            yield lines
                            return
                        last_id = event.id or last_id
                        if event.kind == "log":
                            timestamp, message = event.data.get("timestamp"), event.data["message"]
                            lines.append(LogLine(last_id, str(timestamp), str(message)))
                    yield lines
            except LoamError as failure:
                if not failure.is_temporary:
                    raise
                error = failure
            yield []
            time.sleep(pauses.after(error))

    def _events(self, last_id: int) -> Iterator[list[_Event]]:
        """The events of one connection as they arrive; an empty list for a comment. An `end` is the last."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(last_id)}
        path = _job_path(self.namespace, self.name) + "/logs?stream=true"
        url = self._client.url
        with self._client._send("GET", path, headers, timeout=_SILENCE_TIMEOUT_S) as response:
            if response.status == 204:
                yield [_Event(0, "end", {})]
                return
            unread = b""
            while True:
                with _reaching(url):
                    chunk = response.read1(_CHUNK_BYTES)
                if not chunk:
                    return
                *blocks, unread = (unread + chunk).split(b"\n\n")
                if len(unread) > _MAX_EVENT_BYTES:
                    raise _no_loam(url)
                try:
                    yield [event for event in map(_parse_event, blocks) if event is not None]
                except (ValueError, KeyError, TypeError):
                    raise _no_loam(url) from None

    def wait(self, timeout: float | None = None) -> JobInfo:
        """
        Waits until the job has ended, however it ends, also while the server cannot be reached. Raises TimeoutError after
        `timeout` seconds; the job goes on.
        """
        for pause in self._pauses_to_end(timeout):
            time.sleep(pause)
        return self.info

    def _pauses_to_end(self, timeout: float | None) -> Iterator[float]:
        """Asks for the status between the pauses, until it is final."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = 0.5
        while True:
            try:
                if self.refresh()["status"] in _FINAL:
                    return
            except LoamError as error:
                if not error.is_temporary:
                    raise
            left = pause if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"Job {self.namespace}/{self.name} is still {self.status}")
            yield min(pause, left)
            pause = min(1.5 * pause, _MAX_PAUSE_S)

    def result(self, timeout: float | None = None) -> JobInfo:
        """Waits as `wait` does, and raises `JobFailed` unless the job has succeeded."""
        info = self.wait(timeout)
        if info["status"] != "SUCCEEDED":
            raise JobFailed(info)
        return info

    def cancel(self) -> None:
        """Cancels the job. Its processes get SIGTERM, and SIGKILL after 30 seconds. Raises `LoamError` when it has ended."""
        path = f"/auth/v1/seed/{_quote(self.namespace)}/jobs/{_quote(self.name)}/cancel"
        self._client.request("POST", path)
        self.refresh()

    def release(self) -> None:
        """
        Ends the hold of a failed job (`hold_on_failure_minutes`), which then ends with its artifacts and the exit code of its
        command. Raises `LoamError` when it is not held.
        """
        self._client.graphql(
            "mutation ($input: ReleaseJobInput!) { releaseJob(input: $input) { job { id } } }",
            {"input": {"namespace": self.namespace, "name": self.name}},
        )
        self.refresh()

    def delete(self, *, delete_artifacts: bool = False) -> None:
        """Deletes the ended job with its log, and its artifacts if wanted."""
        path = f"/auth/v1/seed/{_quote(self.namespace)}/jobs/{_quote(self.name)}"
        query = {"delete_artifacts": "true"} if delete_artifacts else None
        self._client.request("DELETE", path, query=query)


class Artifacts:
    """The files that a job left at its `output_path`."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def list(self) -> Iterator[ArtifactFile]:
        """The files. There are none before the job has ended."""
        query = """query ($namespace: String!, $name: String!, $after: String) {
          job(namespace: $namespace, name: $name) { artifacts { files(first: 100, after: $after) {
            nodes { path size_bytes: sizeBytes download_url: downloadUrl } pageInfo { endCursor hasNextPage }
          } } } }"""
        variables: dict[str, Any] = {"namespace": self._job.namespace, "name": self._job.name}
        while True:
            artifacts = self._job._client.graphql(query, variables)["job"]["artifacts"]
            if artifacts is None:
                return
            yield from artifacts["files"]["nodes"]
            page = artifacts["files"]["pageInfo"]
            if not page["hasNextPage"]:
                return
            variables["after"] = page["endCursor"]

    def download(self, folder: str | os.PathLike[str], *, force: bool = False) -> Sequence[str]:
        """
        Downloads all files into a folder, which is created, and returns their paths in it. After a cut, also one of the program,
        the download continues where it was; the folder has a hidden file until then. A warning names what is left out: links,
        paths with a part that git would take for `.git`, files named `HEAD`, and, without `force`, files whose place is taken by
        a file that no earlier download wrote, or that has been changed since. Raises `LoamError` with the code `unsafe_archive`
        for a path that leads out of the folder.
        """
        target = pathlib.Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        # A hostile server must not choose the folder by the id.
        archive = target / f".loam-{re.sub('[^A-Za-z0-9_]', '', self._job.id)}.tar.gz"
        self._fetch(archive)
        try:
            return _extract(archive, target, force)
        finally:
            archive.unlink()

    def _fetch(self, archive: pathlib.Path) -> None:
        """Downloads what is missing of the archive. The link is new in each try, because it expires."""
        pauses = _Pauses()
        progress_at = time.monotonic()
        while True:
            info = self._job.refresh().get("artifacts")
            if info is None:
                raise LoamError(
                    "not_found",
                    f"Job {self._job.namespace}/{self._job.name} has no artifacts: its status is "
                    f"{self._job.status}, and its output_path {self._job.info.get('output_path')}",
                )
            have = archive.stat().st_size if archive.exists() else 0
            if have == info["size_bytes"]:
                return
            try:
                return self._fetch_rest(archive, info["download_url"], have, info["size_bytes"])
            except LoamError as error:
                if archive.exists() and archive.stat().st_size > have:
                    pauses = _Pauses()
                    progress_at = time.monotonic()
                if not error.is_temporary or time.monotonic() > progress_at + _DOWNLOAD_RETRY_S:
                    raise
                time.sleep(pauses.after(error))

    def _fetch_rest(self, archive: pathlib.Path, url: str, have: int, size: int) -> None:
        origin = _origin(url)
        with self._job._client._open_download(url, have if have < size else 0) as response:
            if response.status not in (200, 206):
                raise _refusal(response, origin)
            resumed = response.status == 206
            left = size - have if resumed else size
            with _open_hidden(archive, keep=resumed) as file:
                while True:
                    with _reaching(origin):
                        chunk = response.read(_CHUNK_BYTES)
                    if not chunk:
                        break
                    left -= len(chunk)
                    if left < 0:
                        raise LoamError(
                            "bad_answer",
                            f"{origin} sends more than the {size} bytes of the artifacts",
                        )
                    file.write(chunk)
        if left > 0:
            raise LoamError("unreachable", f"The download from {origin} broke off")


class Repositories:
    """Repositories. `repository` is always a full name, as `namespace/name`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(
        self,
        name: str,
        *,
        namespace: str | None = None,
        description: str | None = None,
        visibility: str | None = None,
        default_branch: str | None = None,
        auto_init: bool | None = None,
        gitignore_template: str | None = None,
    ) -> Repository:
        """
        Creates a repository, in the user's own namespace if none is given. `visibility` is `PRIVATE` (the default), `INTERNAL`
        or `PUBLIC`. It starts with a commit, unless `auto_init` is false. The answer has `clone_url` and `ssh_url`.
        """
        fields = {
            "name": name,
            "description": description,
            "visibility": _plain(visibility),
            "default_branch": default_branch,
            "auto_init": auto_init,
            "gitignore_template": gitignore_template,
        }
        path = f"/auth/v1/repository/{_quote(namespace or self._client._own_namespace())}"
        given = {key: value for key, value in fields.items() if value is not None}
        return cast(Repository, _spelled(self._client.request("POST", path, given)))

    def list(
        self, namespace: str | None = None, *, visibility: str | None = None
    ) -> Iterator[Repository]:
        """The repositories of a namespace that the user may see, the last changed first."""
        path = f"/auth/v1/repository/{_quote(namespace or self._client._own_namespace())}"
        for repository in self._client._list(path, {"visibility": _plain(visibility)}):
            yield cast(Repository, _spelled(repository))

    def get(self, repository: str) -> Repository:
        """One repository."""
        return cast(Repository, _spelled(self._client.request("GET", self._path(repository))))

    def rename(self, repository: str, name: str) -> None:
        """Renames a repository. Clone URLs with the old name stop working."""
        self._client.request("PUT", self._path(repository) + "/name", {"name": name})

    def set_visibility(self, repository: str, visibility: str) -> None:
        """Changes who may see a repository: `PRIVATE`, `INTERNAL` or `PUBLIC`."""
        path = self._path(repository) + "/visibility"
        self._client.request("POST", path, {"visibility": _plain(visibility)})

    def transfer(self, repository: str, namespace: str) -> None:
        """Moves a repository to another namespace. Needs admin rights in both."""
        path = self._path(repository) + "/transfer"
        self._client.request("POST", path, {"new_namespace": namespace})

    def delete(self, repository: str) -> None:
        """Deletes a repository with all its data. This cannot be undone."""
        self._client.request("DELETE", self._path(repository))

    def _path(self, repository: str) -> str:
        """REST names repositories by their id, which GraphQL knows for a name."""
        id = self._client._in_repository(repository, "id")["id"]
        return f"/auth/v1/repository/{_quote(repository.split('/')[0])}/{_quote(id)}"


class Webhooks:
    """Webhooks, which need admin rights in their namespaces."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(
        self,
        name: str,
        url: str,
        *,
        event_types: Sequence[str],
        namespaces: Sequence[str],
        secret: str | None = None,
    ) -> Webhook:
        """
        Creates a webhook that sends the events of its types (such as `JOB_COMPLETED` and `JOB_FAILED`) in its namespaces to an
        HTTPS endpoint, which checks them with `verify_webhook`. Without a secret they are not signed.
        """
        fields = {
            "name": name,
            "url": url,
            "event_types": _event_types(event_types),
            "namespaces": [*namespaces],
            **({} if secret is None else {"secret": secret}),
        }
        return cast(Webhook, _spelled(self._client.request("POST", _WEBHOOKS, fields)))

    def list(self) -> Iterator[Webhook]:
        """The webhooks of all namespaces that the user administers, newest first."""
        for webhook in self._client._list(_WEBHOOKS):
            yield cast(Webhook, _spelled(webhook))

    def get(self, id: str) -> Webhook:
        """One webhook."""
        return cast(Webhook, _spelled(self._client.request("GET", f"{_WEBHOOKS}/{_quote(id)}")))

    def update(
        self,
        id: str,
        *,
        name: str | None = None,
        url: str | None = None,
        event_types: Sequence[str] | None = None,
        namespaces: Sequence[str] | None = None,
        secret: str | None = None,
        active: bool | None = None,
    ) -> Webhook:
        """Changes the given fields. The former secret signs as well for 24 hours."""
        fields = {
            "name": name,
            "url": url,
            "event_types": None if event_types is None else _event_types(event_types),
            "namespaces": None if namespaces is None else [*namespaces],
            "secret": secret,
            "active": active,
        }
        given = {key: value for key, value in fields.items() if value is not None}
        answer = self._client.request("PATCH", f"{_WEBHOOKS}/{_quote(id)}", given)
        return cast(Webhook, _spelled(answer))

    def delete(self, id: str) -> None:
        """Deletes a webhook, which sends no more events."""
        self._client.request("DELETE", f"{_WEBHOOKS}/{_quote(id)}")

    def test(self, id: str) -> Delivery:
        """Sends a `ping` to the endpoint, and returns the delivery, which is pending."""
        answer = self._client.request("POST", f"{_WEBHOOKS}/{_quote(id)}/test")
        return cast(Delivery, _spelled(answer))

    def deliveries(self, id: str, *, status: str | None = None) -> Iterator[Delivery]:
        """The deliveries of the last 30 days, newest first."""
        path = f"{_WEBHOOKS}/{_quote(id)}/deliveries"
        for delivery in self._client._list(path, {"status": _plain(status)}):
            yield cast(Delivery, _spelled(delivery))

    def redeliver(self, id: str, delivery: str) -> Delivery:
        """Sends the event of a delivery again, and returns the new delivery."""
        path = f"{_WEBHOOKS}/{_quote(id)}/deliveries/{_quote(delivery)}/redeliver"
        return cast(Delivery, _spelled(self._client.request("POST", path)))


class Files:
    """The files of repositories. `repository` is a full name; `ref` a branch, tag or commit, by default the default branch."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(
        self, repository: str, folder: str = "", *, ref: str | None = None
    ) -> Sequence[FileEntry]:
        """The entries of a folder, by default of the root."""
        selected = "tree(ref: $ref, path: $path) { entries { name type mode sizeBytes sha } }"
        tree = self._read(repository, "tree", selected, folder, ref)
        return cast(Sequence[FileEntry], _snake(tree["entries"]))

    def read(self, repository: str, path: str, *, ref: str | None = None) -> bytes:
        """The content of a file of at most 64 MiB, also of a large file."""
        file = self._read(repository, "file", "file(ref: $ref, path: $path) { rawUrl }", path, ref)
        with self._client._open_download(file["rawUrl"], 0) as response:
            if response.status != 200:
                raise _refusal(response, _origin(file["rawUrl"]))
            return _read_bounded(response, _origin(file["rawUrl"]))

    def _read(
        self, repository: str, field: str, selected: str, path: str, ref: str | None
    ) -> dict[str, Any]:
        variables = {"path": path.strip("/"), "ref": ref}
        found = self._client._in_repository(
            repository, selected, "$path: String!, $ref: String", variables
        )[field]
        if found is None:
            raise LoamError("not_found", f"{repository} has no {path or 'commit'}", 404)
        return cast(dict[str, Any], found)


class Runs:
    """The runs of repositories: the jobs of `.loam/jobs.yml` that one push, one time of a schedule or one user has started."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def start(
        self,
        repository: str,
        job: str | None = None,
        *,
        ref: str | None = None,
        inputs: Mapping[str, str | float | bool] | None = None,
    ) -> Run:
        """Starts a job of the file with `manual: true` and those that it needs, or all such jobs, with values of their inputs."""
        id = self._client._in_repository(repository, "id")["id"]
        query = "mutation ($input: StartRunInput!) { startRun(input: $input) { run { number } } }"
        values = [
            {"name": name, "value": str(value).lower() if isinstance(value, bool) else str(value)}
            for name, value in (inputs or {}).items()
        ]
        started = self._client.graphql(
            query, {"input": {"id": id, "job": job, "ref": ref, "inputs": values}}
        )
        return self.get(repository, started["startRun"]["run"]["number"])

    def list(self, repository: str, *, ref: str | None = None) -> Iterator[Run]:
        """The runs, newest first, of all refs or of one with a full name, such as `refs/heads/main`."""
        selected = f"""runs(first: 20, after: $after, ref: $ref) {{
          nodes {{ {_RUN_FIELDS} }} pageInfo {{ endCursor hasNextPage }} }}"""
        parameters = "$after: String, $ref: String"

        def read(after: str | None) -> Any:
            variables = {"ref": ref, "after": after}
            return self._client._in_repository(repository, selected, parameters, variables)["runs"]

        return cast(Iterator[Run], self._client._pages(read))

    def get(self, repository: str, number: int) -> Run:
        """One run."""
        selected = f"run(number: $number) {{ {_RUN_FIELDS} }}"
        run = self._client._in_repository(
            repository, selected, "$number: Int!", {"number": number}
        )["run"]
        if run is None:
            raise LoamError("not_found", f"{repository} has no run {number}", 404)
        return cast(Run, _snake(run))

    def wait(self, repository: str, number: int, timeout: float | None = None) -> Run:
        """Waits until a run is over, however it ends. Raises TimeoutError after `timeout` seconds; the run goes on."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = 0.5
        while True:
            run = self.get(repository, number)
            if run["completed_at"] is not None:
                return run
            left = pause if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"Run {number} of {repository} is still {run['status']}")
            time.sleep(min(pause, left))
            pause = min(1.5 * pause, _MAX_PAUSE_S)

    def cancel(self, repository: str, number: int) -> Run:
        """Cancels the jobs of a run that have not ended."""
        return self._change(repository, number, "cancelRun", {})

    def approve(self, repository: str, number: int) -> Run:
        """Lets a run start that waits for approval."""
        return self._change(repository, number, "approveRun", {})

    def rerun(self, repository: str, number: int, *, failed_only: bool = False) -> Run:
        """Starts a new run with the jobs of a run, or with those only that did not succeed."""
        return self._change(repository, number, "rerunRun", {"failedOnly": failed_only})

    def _change(self, repository: str, number: int, verb: str, more: Mapping[str, Any]) -> Run:
        kind = f"{verb[0].upper()}{verb[1:]}Input"
        query = f"mutation ($input: {kind}!) {{ {verb}(input: $input) {{ run {{ number }} }} }}"
        changed = {"id": self.get(repository, number)["id"], **more}
        answer = self._client.graphql(query, {"input": changed})
        return self.get(repository, answer[verb]["run"]["number"])


class Secrets:
    """
    Secrets for the jobs that name them. `owner` is a repository, as `namespace/name`, or a namespace, for all its repositories.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def set(
        self,
        owner: str,
        name: str,
        value: str | None = None,
        *,
        refs: Sequence[str] | None = None,
    ) -> Secret:
        """
        Creates a secret, or changes its value, its `refs`, or both. Jobs of these branches, or of tags as `tags/v*`, may have
        it: by default those of protected branches, and all jobs with `["**"]`.
        """
        query = f"""mutation ($input: SetSecretInput!) {{
          setSecret(input: $input) {{ secret {{ {_SECRET_FIELDS} }} }} }}"""
        given: dict[str, Any] = {**_owner(owner), "name": name}
        if value is not None:
            given["value"] = value
        if refs is not None:
            given["refs"] = [*refs]
        return cast(
            Secret, _snake(self._client.graphql(query, {"input": given})["setSecret"]["secret"])
        )

    def list(self, owner: str) -> Iterator[Secret]:
        """The secrets, without their values."""
        selected = f"""secrets(first: 100, after: $after) {{
          nodes {{ {_SECRET_FIELDS} }} pageInfo {{ endCursor hasNextPage }} }}"""

        def read(after: str | None) -> Any:
            return self._client._of_owner(owner, selected, "$after: String", {"after": after})["secrets"]

        return cast(Iterator[Secret], self._client._pages(read))

    def delete(self, owner: str, name: str) -> None:
        """Deletes a secret. Attempts that have it keep it."""
        query = "mutation ($input: DeleteSecretInput!) { deleteSecret(input: $input) { id } }"
        self._client.graphql(query, {"input": {**_owner(owner), "name": name}})


def metric(
    values: Mapping[str, float] | None = None, /, *, step: int | None = None, **named: float
) -> None:
    """
    Reports metrics of the job in which the program runs: prints a line such as `::metric::loss=0.215 step=10`, which Loam shows
    as a chart. It needs neither a token nor a server, so the program also runs elsewhere. Without `step`, the steps count up.

    ```python
    loam.metric(loss=0.215, accuracy=0.91, step=10)
    loam.metric({"train/loss": 0.215})
    ```
    """
    parts = []
    for name, value in {**(values or {}), **named}.items():
        if not _METRIC_NAME.fullmatch(name) or name == "step":
            raise ValueError(f"{name!r} is not a name of a metric: {_METRIC_NAME.pattern}")
        parts.append(f"{name}={float(value)!r}")
    if not parts:
        raise ValueError("metric() needs at least one value")
    if step is not None:
        if step < 0:
            raise ValueError("step must not be negative")
        parts.append(f"step={int(step)}")
    # One write, so that lines of threads do not mix.
    sys.stdout.write(f"::metric::{' '.join(parts)}\n")
    sys.stdout.flush()


def verify_webhook(
    headers: Mapping[str, str],
    body: bytes | str,
    secret: str,
    *,
    tolerance: float | None = 300,
) -> WebhookEvent:
    """
    Checks that a request to an endpoint was signed with the secret of the webhook, and returns its event. `body` is the body
    as it came, before any parsing; the case of the names in `headers` does not matter.

    The message must have been sent within `tolerance` seconds of now, so that nobody can send a recorded one later. With
    `tolerance=None`, its age does not matter, and `X-Service-Signature`, which covers no time, is accepted alone. Raises
    `WebhookError`.
    """
    given = {name.lower(): value for name, value in headers.items()}
    raw = body.encode() if isinstance(body, str) else body
    signatures = given.get("webhook-signature")
    if signatures is not None:
        expected = _standard_signature(given, raw, secret, tolerance)
        candidates = signatures.split(" ")
    elif tolerance is None and "x-service-signature" in given:
        expected = "sha256=" + hmac.new(secret.encode(), raw, hashlib.sha256).hexdigest()
        former = given.get("x-service-signature-former", "")
        candidates = [given["x-service-signature"], former]
    else:
        raise WebhookError(
            "The request has no header webhook-signature: the webhook needs a secret"
        )
    # All are compared, so that the time does not tell which was right.
    matches = [hmac.compare_digest(one.encode(), expected.encode()) for one in candidates]
    if not any(matches):
        raise WebhookError("No signature of the request fits its body and the secret")
    try:
        event = json.loads(raw)
    except ValueError:
        raise WebhookError("The body is not JSON") from None
    return cast(WebhookEvent, event)


def _standard_signature(
    headers: Mapping[str, str], body: bytes, secret: str, tolerance: float | None
) -> str:
    """The signature of Standard Webhooks that the headers must have."""
    message_id, timestamp = headers.get("webhook-id"), headers.get("webhook-timestamp", "")
    if message_id is None or not re.fullmatch(r"[0-9]{1,15}", timestamp):
        raise WebhookError("The request lacks webhook-id, or webhook-timestamp is no number")
    if tolerance is not None and abs(time.time() - int(timestamp)) > tolerance:
        raise WebhookError(
            f"The message is not of the last {tolerance:g} seconds: webhook-timestamp is {timestamp}"
        )
    key = secret.encode()
    if secret.startswith("whsec_"):
        try:
            key = base64.b64decode(secret[len("whsec_") :], validate=True) or key
        except binascii.Error:
            raise WebhookError("The secret must be base64 after whsec_") from None
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


class AsyncClient:
    """
    `Client` for asyncio, with the same methods and arguments. Each call runs the method of `Client` in one of 64 threads. A task
    that is cancelled ends at once, but its request continues in the thread. Following a log then ends within 15 seconds.
    """

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        self._client = Client(url, token)
        self.url = self._client.url
        self.repositories = AsyncRepositories(self._client.repositories)
        self.webhooks = AsyncWebhooks(self._client.webhooks)
        self.files = AsyncFiles(self._client.files)
        self.runs = AsyncRuns(self._client.runs)
        self.secrets = AsyncSecrets(self._client.secrets)

    async def run(
        self,
        command: str,
        *,
        repo: str | None = None,
        image: str | None = None,
        branch: str | None = None,
        gpu: str = "none",
        gpu_count: int | None = None,
        cpu: int | None = None,
        memory_gb: int | None = None,
        disk_gb: int | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        secret_names: Sequence[str] | None = None,
        variable_names: Sequence[str] | None = None,
        labels: Mapping[str, str] | None = None,
        permissions: Mapping[str, str] | None = None,
        id_tokens: Mapping[str, str] | None = None,
        region: str | None = None,
        timeout_minutes: int | None = None,
        hold_on_failure_minutes: int | None = None,
        shell_access: str | None = None,
        retries: int | None = None,
        output_path: str | None = None,
        inputs: Sequence[InputArtifacts | InputRepository] | None = None,
        volumes: Sequence[VolumeMount] | None = None,
        cache: Sequence[JobCache] | None = None,
        checkpoint_path: str | None = None,
        checkpoint_minutes: int | None = None,
        checks: Sequence[MetricCheck] | None = None,
        test_reports: Sequence[str] | None = None,
        needs: Mapping[str, str] | Sequence[str] | None = None,
        array: int | None = None,
        max_parallel: int | None = None,
        concurrency: str | None = None,
        on_conflict: str | None = None,
        name: str | None = None,
        namespace: str | None = None,
    ) -> AsyncJob:
        """As `Client.run`."""
        job = await _in_thread(
            self._client.run,
            command,
            repo=repo,
            image=image,
            branch=branch,
            gpu=gpu,
            gpu_count=gpu_count,
            cpu=cpu,
            memory_gb=memory_gb,
            disk_gb=disk_gb,
            env=env,
            secrets=secrets,
            secret_names=secret_names,
            variable_names=variable_names,
            labels=labels,
            permissions=permissions,
            id_tokens=id_tokens,
            region=region,
            timeout_minutes=timeout_minutes,
            hold_on_failure_minutes=hold_on_failure_minutes,
            shell_access=shell_access,
            retries=retries,
            output_path=output_path,
            inputs=inputs,
            volumes=volumes,
            cache=cache,
            checkpoint_path=checkpoint_path,
            checkpoint_minutes=checkpoint_minutes,
            checks=checks,
            test_reports=test_reports,
            needs=needs,
            array=array,
            max_parallel=max_parallel,
            concurrency=concurrency,
            on_conflict=on_conflict,
            name=name,
            namespace=namespace,
        )
        return AsyncJob(job)

    async def job(self, name: str, namespace: str | None = None) -> AsyncJob:
        """As `Client.job`."""
        return AsyncJob(await _in_thread(self._client.job, name, namespace))

    async def jobs(
        self, namespace: str | None = None, *, status: str | None = None
    ) -> AsyncIterator[JobInfo]:
        """As `Client.jobs`."""
        async for info in _in_threads(self._client.jobs(namespace, status=status)):
            yield info

    async def compare(
        self,
        namespace: str | None = None,
        *,
        array: str | None = None,
        names: Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        metrics: Sequence[str] | None = None,
    ) -> Comparison:
        """As `Client.compare`."""
        return await _in_thread(
            self._client.compare,
            namespace,
            array=array,
            names=names,
            filter=filter,
            metrics=metrics,
        )

    async def cancel_jobs(
        self,
        namespace: str | None = None,
        *,
        names: Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        dry_run: bool = False,
    ) -> BulkResult:
        """As `Client.cancel_jobs`."""
        return await _in_thread(
            self._client.cancel_jobs, namespace, names=names, filter=filter, dry_run=dry_run
        )

    async def rerun_jobs(
        self,
        namespace: str | None = None,
        *,
        names: Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        newest_commit: bool = False,
        dry_run: bool = False,
    ) -> BulkResult:
        """As `Client.rerun_jobs`."""
        return await _in_thread(
            self._client.rerun_jobs,
            namespace,
            names=names,
            filter=filter,
            newest_commit=newest_commit,
            dry_run=dry_run,
        )

    async def delete_jobs(
        self,
        namespace: str | None = None,
        *,
        names: Sequence[str] | None = None,
        filter: Mapping[str, Any] | None = None,
        delete_artifacts: bool = False,
        dry_run: bool = False,
    ) -> BulkResult:
        """As `Client.delete_jobs`."""
        return await _in_thread(
            self._client.delete_jobs,
            namespace,
            names=names,
            filter=filter,
            delete_artifacts=delete_artifacts,
            dry_run=dry_run,
        )

    async def whoami(self) -> dict[str, str]:
        """As `Client.whoami`."""
        return await _in_thread(self._client.whoami)

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
    ) -> Any:
        """As `Client.request`."""
        return await _in_thread(self._client.request, method, path, body, query)

    async def graphql(
        self, query: str, variables: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """As `Client.graphql`."""
        return await _in_thread(self._client.graphql, query, variables)


class AsyncJob:
    """`Job` for asyncio."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.artifacts = AsyncArtifacts(job.artifacts)

    def __repr__(self) -> str:
        return repr(self._job).replace("<Job", "<AsyncJob")

    @property
    def info(self) -> JobInfo:
        """As `Job.info`."""
        return self._job.info

    @property
    def id(self) -> str:
        """As `Job.id`."""
        return self._job.id

    @property
    def name(self) -> str:
        """As `Job.name`."""
        return self._job.name

    @property
    def namespace(self) -> str:
        """As `Job.namespace`."""
        return self._job.namespace

    @property
    def status(self) -> str:
        """As `Job.status`."""
        return self._job.status

    async def refresh(self) -> JobInfo:
        """As `Job.refresh`."""
        return await _in_thread(self._job.refresh)

    async def matrix_values(self) -> list[MatrixValue]:
        """As `Job.matrix_values`."""
        return await _in_thread(self._job.matrix_values)

    async def metrics(self) -> list[JobMetric]:
        """As `Job.metrics`."""
        return await _in_thread(self._job.metrics)

    async def checks(self) -> list[CheckResult]:
        """As `Job.checks`."""
        return await _in_thread(self._job.checks)

    async def summary(self) -> str | None:
        """As `Job.summary`."""
        return await _in_thread(self._job.summary)

    async def tests(self, *, status: str | None = None) -> list[TestCase] | None:
        """As `Job.tests`."""
        return await _in_thread(lambda: self._job.tests(status=status))

    async def logs(self, *, after: int = 0) -> AsyncIterator[LogLine]:
        """As `Job.logs`."""
        async for batch in _in_threads(self._job._log_batches(after)):
            for line in batch:
                yield line

    async def wait(self, timeout: float | None = None) -> JobInfo:
        """As `Job.wait`."""
        async for pause in _in_threads(self._job._pauses_to_end(timeout)):
            await asyncio.sleep(pause)
        return self._job.info

    async def result(self, timeout: float | None = None) -> JobInfo:
        """As `Job.result`."""
        info = await self.wait(timeout)
        if info["status"] != "SUCCEEDED":
            raise JobFailed(info)
        return info

    async def cancel(self) -> None:
        """As `Job.cancel`."""
        await _in_thread(self._job.cancel)

    async def release(self) -> None:
        """As `Job.release`."""
        await _in_thread(self._job.release)

    async def delete(self, *, delete_artifacts: bool = False) -> None:
        """As `Job.delete`."""
        await _in_thread(self._job.delete, delete_artifacts=delete_artifacts)


class AsyncArtifacts:
    """`Artifacts` for asyncio."""

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts

    async def list(self) -> AsyncIterator[ArtifactFile]:
        """As `Artifacts.list`."""
        async for file in _in_threads(self._artifacts.list()):
            yield file

    async def download(
        self, folder: str | os.PathLike[str], *, force: bool = False
    ) -> Sequence[str]:
        """As `Artifacts.download`."""
        return await _in_thread(self._artifacts.download, folder, force=force)


_T = TypeVar("_T")

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    _P = ParamSpec("_P")


def _awaited(
    method: Callable[Concatenate[Any, _P], _T],
) -> Callable[Concatenate[Any, _P], Coroutine[Any, Any, _T]]:
    """The method of an object for asyncio that runs the method of its `_sync` in a thread."""

    @functools.wraps(method)
    async def call(self: Any, /, *words: _P.args, **named: _P.kwargs) -> _T:
        return await _in_thread(method, self._sync, *words, **named)

    return call


def _iterated(
    method: Callable[Concatenate[Any, _P], Iterator[_T]],
) -> Callable[Concatenate[Any, _P], AsyncIterator[_T]]:
    """The same for a method that returns an iterator."""

    @functools.wraps(method)
    def call(self: Any, /, *words: _P.args, **named: _P.kwargs) -> AsyncIterator[_T]:
        return _in_threads(method(self._sync, *words, **named))

    return call


class AsyncRepositories:
    """`Repositories` for asyncio."""

    def __init__(self, repositories: Repositories) -> None:
        self._sync = repositories

    create = _awaited(Repositories.create)
    list = _iterated(Repositories.list)
    get = _awaited(Repositories.get)
    rename = _awaited(Repositories.rename)
    set_visibility = _awaited(Repositories.set_visibility)
    transfer = _awaited(Repositories.transfer)
    delete = _awaited(Repositories.delete)


class AsyncWebhooks:
    """`Webhooks` for asyncio."""

    def __init__(self, webhooks: Webhooks) -> None:
        self._sync = webhooks

    create = _awaited(Webhooks.create)
    list = _iterated(Webhooks.list)
    get = _awaited(Webhooks.get)
    update = _awaited(Webhooks.update)
    delete = _awaited(Webhooks.delete)
    test = _awaited(Webhooks.test)
    deliveries = _iterated(Webhooks.deliveries)
    redeliver = _awaited(Webhooks.redeliver)


class AsyncFiles:
    """`Files` for asyncio."""

    def __init__(self, files: Files) -> None:
        self._sync = files

    list = _awaited(Files.list)
    read = _awaited(Files.read)


class AsyncRuns:
    """`Runs` for asyncio."""

    def __init__(self, runs: Runs) -> None:
        self._sync = runs

    start = _awaited(Runs.start)
    list = _iterated(Runs.list)
    get = _awaited(Runs.get)
    wait = _awaited(Runs.wait)
    cancel = _awaited(Runs.cancel)
    approve = _awaited(Runs.approve)
    rerun = _awaited(Runs.rerun)


class AsyncSecrets:
    """`Secrets` for asyncio."""

    def __init__(self, secrets: Secrets) -> None:
        self._sync = secrets

    set = _awaited(Secrets.set)
    list = _iterated(Secrets.list)
    delete = _awaited(Secrets.delete)


# Not asyncio's own threads, of which a small machine has six: each log that is followed occupies one.
_THREADS = concurrent.futures.ThreadPoolExecutor(64, thread_name_prefix="loam")


async def _in_thread(function: Callable[..., _T], *words: Any, **named: Any) -> _T:
    call = functools.partial(function, *words, **named)
    return await asyncio.get_running_loop().run_in_executor(_THREADS, call)


async def _in_threads(iterator: Iterator[_T]) -> AsyncIterator[_T]:
    end = object()
    while True:
        item: Any = await _in_thread(next, iterator, end)
        if item is end:
            return
        yield item


class _Pauses:
    """The pauses between tries: a random time below half a second, doubling to 5 s, after the time for which the server asks."""

    def __init__(self) -> None:
        self._limit = 0.5

    def after(self, error: LoamError | None) -> float:
        pause = random.uniform(0, self._limit)
        self._limit = min(2 * self._limit, _MAX_PAUSE_S)
        asked = error.retry_after if error else None
        return min(asked or 0.0, _MAX_RETRY_AFTER_S) + pause


class _Event(NamedTuple):
    id: int
    kind: str
    data: dict[str, Any]


def _parse_event(block: bytes) -> _Event | None:
    """An event of a stream; None for a comment. Raises ValueError or KeyError, and LoamError for an event that says so."""
    lines = [line.partition(b": ") for line in block.split(b"\n") if not line.startswith(b":")]
    fields = {name: value for name, _, value in lines}
    if not fields:
        return None
    event = _Event(
        int(fields.get(b"id", b"0")), fields[b"event"].decode(), json.loads(fields[b"data"])
    )
    if not isinstance(event.data, dict) or (event.kind == "log" and "message" not in event.data):
        raise ValueError("not an event of a log")
    if event.kind == "error":
        error = event.data["error"]
        raise LoamError(error["code"], error["message"], _STATUS.get(error["code"], 500))
    return event


@contextlib.contextmanager
def _reaching(origin: str) -> Iterator[None]:
    """Turns the errors of a connection into `LoamError`."""
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise LoamError(
            "unreachable", f"Cannot reach {origin}: {reason or type(reason).__name__}"
        ) from error


def _read_bounded(response: http.client.HTTPResponse, origin: str) -> bytes:
    with _reaching(origin):
        answer = response.read(_MAX_ANSWER_BYTES + 1)
    if len(answer) > _MAX_ANSWER_BYTES:
        raise LoamError(
            "bad_answer", f"The answer of {origin} is longer than {_MAX_ANSWER_BYTES} bytes"
        )
    # With a size, `read` reports no end that comes too early.
    if response.length:
        raise LoamError("unreachable", f"The answer of {origin} broke off")
    return answer


def _refusal(response: http.client.HTTPResponse, origin: str) -> LoamError:
    """The error of an answer that is no success, from the envelope of REST."""
    status = response.status
    location = response.headers.get("Location")
    if 300 <= status < 400 and location is not None:
        return LoamError(
            "bad_answer",
            f"{origin} redirects to {location[:200]}. Use the address at which the server itself answers.",
            status,
        )
    asked = response.headers.get("Retry-After", "")
    retry_after = float(asked) if re.fullmatch("[0-9]{1,9}", asked) else None
    request_id = response.headers.get("X-Request-Id")
    field = None
    try:
        error = json.loads(_read_bounded(response, origin))["error"]
        code, message = str(error["code"]), str(error["message"])[:_MAX_MESSAGE]
        # The message of an error in a value begins with the field.
        found = re.match(r"([A-Za-z][\w-]*): ", message)
        if found and code in _NAMES_FIELD:
            field = found[1]
    except (LoamError, ValueError, KeyError, TypeError):
        code, message = "bad_answer", f"{origin} answered {status} {response.reason}".strip()
    return LoamError(code, message, status, field, request_id, retry_after)


def _no_loam(url: str) -> LoamError:
    return LoamError(
        "bad_answer", f"{url} does not answer as a Loam server does. Check the address."
    )


def _credentials(url: str | None, token: str | None) -> tuple[str, str]:
    """The origin of the server, and the value of `Authorization`."""
    file = _credentials_file()
    known_url = os.environ.get("LOAM_URL") or None
    # A token of the environment belongs to the server of the environment.
    if token is None and (
        url is None or known_url is None or _parse_origin(url) == _parse_origin(known_url)
    ):
        token = os.environ.get("LOAM_TOKEN", "").strip() or None
    url = url or known_url or file.get("default")
    if not url:
        raise LoamError(
            "invalid_request", 'No server is known. Run "loam login", or set LOAM_URL.', field="url"
        )
    origin = _parse_origin(url)
    token = token or file.get("servers", {}).get(origin, {}).get("token")
    if not token:
        raise LoamError(
            "authentication_failed",
            f'You are not signed in to {origin}. Run "loam login {origin}", or set LOAM_TOKEN.',
            401,
        )
    # The error of http.client would show it.
    if not re.fullmatch("[!-~]+", token):
        raise LoamError("invalid_request", "token: must be ASCII without spaces", field="token")
    # Only API keys contain a `$`.
    return origin, f"API-Key {token}" if "$" in token else f"Bearer {token}"


def _credentials_file() -> dict[str, Any]:
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    path = os.path.join(folder, "loam", "credentials.json")
    try:
        with open(path, encoding="utf-8") as file:
            return cast(dict[str, Any], json.load(file))
    except FileNotFoundError:
        return {}
    except ValueError:
        raise LoamError(
            "invalid_request", f'{path} is damaged. Delete it and run "loam login" again.'
        ) from None


def _parse_origin(text: str) -> str:
    # Servers on this machine usually have no certificate.
    is_local = re.match(r"(localhost|127(\.\d+){3}|\[::1\])(:\d+)?(/|$)", text, re.IGNORECASE)
    scheme = "http" if is_local else "https"
    url = urllib.parse.urlsplit(text if "://" in text else f"{scheme}://{text}")
    if url.scheme not in ("http", "https") or not url.hostname or url.username is not None:
        raise LoamError(
            "invalid_request",
            "url: must be an http or https URL without a name and password, such as https://loam.example",
            field="url",
        )
    return _origin(url.geturl())


def _origin(url: str) -> str:
    """As browsers write it, which is how the file of credentials names servers: lower case, no default port."""
    parts = urllib.parse.urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    default = {"http": 80, "https": 443}.get(parts.scheme)
    port = "" if parts.port in (None, default) else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}"


def _quote(text: str) -> str:
    return urllib.parse.quote(text, safe="")


def _job_path(namespace: str, name: str) -> str:
    return f"/{_quote(namespace)}/job/{_quote(name)}"


def _cache(cache: JobCache) -> dict[str, Any]:
    """The form that GraphQL has."""
    return {"restoreKeys" if key == "restore_keys" else key: value for key, value in cache.items()}


def _check(check: MetricCheck) -> dict[str, Any]:
    """The form that GraphQL has."""
    given = {
        re.sub(r"_(\w)", lambda found: found[1].upper(), key): value for key, value in check.items()
    }
    if "better" in check:
        given["better"] = _enum(check["better"])
    return given


def _by_key(pairs: Sequence[Mapping[str, str]]) -> dict[str, str]:
    return {one["key"]: one["value"] for one in pairs}


def _add_metrics(jobs: Mapping[str, ComparedJob], answer: Mapping[str, Any]) -> None:
    """Adds columns of metrics to their jobs. A job that is selected only since the jobs were read is left out."""
    for column in answer["metrics"]:
        for at, job in enumerate(answer["jobs"]):
            values = {key: column[key][at] for key in ("last", "min", "max")}
            if values["last"] is not None and job["id"] in jobs:
                # The API has NaN and infinity as texts.
                summary = {
                    key: None if value is None else float(value) for key, value in values.items()
                }
                jobs[job["id"]]["metrics"][column["name"]] = cast(MetricSummary, summary)


def _read_only(given: InputArtifacts | InputRepository | VolumeMount) -> dict[str, Any]:
    """The form that GraphQL has."""
    return {"readOnly" if key == "read_only" else key: value for key, value in given.items()}


def _needs(needs: Mapping[str, str] | Sequence[str] | None) -> list[dict[str, str]]:
    """The form that GraphQL has."""
    conditions = needs if isinstance(needs, Mapping) else dict.fromkeys(needs or [], "succeeded")
    return [{"job": job, "when": when.upper()} for job, when in conditions.items()]


def _spelled(answer: Any) -> Any:
    """An object of REST with fixed values as GraphQL and the TypeScript library spell them."""
    if not isinstance(answer, dict):
        return answer
    spelled = {
        key: _enum(value) if key in _FIXED and isinstance(value, str) else value
        for key, value in answer.items()
    }
    if isinstance(answer.get("event_types"), list):
        spelled["event_types"] = [_enum(str(one)) for one in answer["event_types"]]
    return spelled


def _enum(text: str) -> str:
    return re.sub(r"\W", "_", text).upper()


def _gpu(text: str) -> str:
    """A GPU model as REST spells it: those of the contract in any case, others unchanged."""
    name = "none" if _enum(text) == "NONE" else _enum(text).replace("_", "-")
    return name if name in _CONTRACT_GPUS else text


def _plain(value: str | None) -> str | None:
    """A status or visibility as REST spells it."""
    return None if value is None else value.lower().replace("-", "_")


def _event_types(types: Sequence[str]) -> list[str]:
    return [one.lower().replace("_", ".", 1) for one in types]


def _snake(answer: Any) -> Any:
    """An answer of GraphQL with names of fields as Python spells them."""
    if isinstance(answer, list):
        return [_snake(one) for one in answer]
    if isinstance(answer, dict):
        return {
            re.sub("[A-Z]", lambda found: "_" + str(found[0]).lower(), str(key)): _snake(value)
            for key, value in answer.items()
        }
    return answer


def _owner(owner: str) -> dict[str, Any]:
    """A repository or a namespace, as the inputs of GraphQL name them."""
    namespace, slash, name = owner.partition("/")
    return {"namespace": namespace, "repository": name if slash else None}


def _random_name(command: str) -> str:
    """A name of the first two words of a command, and five random characters: `python-train-x7k2p`."""
    words = [re.sub(r"\.\w+$", "", re.sub(r"^.*/", "", word)) for word in command.split()]
    cleaned = [re.sub(r"[^A-Za-z0-9_]+", "-", word).strip("-") for word in words]
    stem = "-".join([word for word in cleaned if word][:2])[:40].lower() or "job"
    letters = "abcdefghijkmnpqrstuvwxyz23456789"
    return f"{stem}-{''.join(random_bytes.choice(letters) for _ in range(5))}"


def _open_hidden(path: pathlib.Path, *, keep: bool) -> IO[bytes]:
    """Opens a file to write at its end, or anew. A link of this name, which may come with the folder, is not followed."""
    flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if keep else os.O_TRUNC)
    return open(os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666), "ab" if keep else "wb")


def _extract(archive: pathlib.Path, target: pathlib.Path, force: bool) -> list[str]:
    """Writes the files of an archive into a folder. Returns their paths in it."""
    written: list[str] = []
    left_out: dict[str, list[str]] = {}
    record = _DownloadRecord(target)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                parts = _safe_parts(member.name)
                path = "/".join(parts)
                file = target.joinpath(*parts)
                if _enters_git_folder(member.name):
                    left_out.setdefault("with .git in their paths", []).append(member.name)
                elif member.isdir():
                    _make_folders(target, parts)
                # With it, git takes the folder for a repository, and runs programs of a `config` beside it.
                elif _GIT_HEAD.match(_HFS_IGNORED.sub("", re.split(r"[/\\]", member.name)[-1])):
                    left_out.setdefault("that git would take for its HEAD", []).append(member.name)
                # A few bytes of a sparse file could fill the disk.
                elif not member.isreg() or member.issparse() or not parts:
                    left_out.setdefault("links or special files", []).append(member.name)
                else:
                    _make_folders(target, parts[:-1])
                    if not force and os.path.lexists(file) and not record.has(path, file):
                        left_out.setdefault("existing, from no download", []).append(member.name)
                        continue
                    contents = tar.extractfile(member)
                    assert contents is not None
                    with _new_file(file, bool(member.mode & 0o100)) as new:
                        shutil.copyfileobj(contents, new)
                        new.flush()
                        record.add(path, os.fstat(new.fileno()))
                    written.append(path)
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise LoamError(
            "bad_answer", f"The archive of the artifacts is damaged ({error}). Download it again."
        ) from error
    if left_out:
        kinds = (f"{len(names)} {kind}, such as {names[0]!r}" for kind, names in left_out.items())
        warnings.warn(f"Files were left out: {'; '.join(kinds)}", stacklevel=4)
    return written


class _DownloadRecord:
    """
    The files of a folder that downloads have written, so that a later download replaces no other file. The record is outside of
    the folder, which may be a clone of somebody else's repository. The TypeScript library has the same record.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        # The home stays `~` for a user without one, and the record cannot be written then.
        state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
        name = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()
        self._path = pathlib.Path(state, "loam", "downloads", name)
        self._files: dict[str, tuple[int, str]] = {}
        try:
            lines = self._path.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            lines = []
        for line in lines:
            # A crash may have left a part of a line.
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                self._files[entry["path"]] = (entry["size"], entry["mtime"])

    def has(self, path: str, file: pathlib.Path) -> bool:
        """Whether the file is as a download wrote it."""
        found = file.lstat()
        known = self._files.get(path)
        return stat.S_ISREG(found.st_mode) and known == (found.st_size, str(found.st_mtime_ns))

    def add(self, path: str, written: os.stat_result) -> None:
        """
        Records a file before it gets its name: after a crash between both, a file of that name differs from the record. A record
        that cannot be written is no reason to refuse a download: later ones leave its files as they are.
        """
        entry = {"path": path, "size": written.st_size, "mtime": str(written.st_mtime_ns)}
        self._files[path] = (written.st_size, str(written.st_mtime_ns))
        with contextlib.suppress(OSError):
            if self._path.is_absolute():
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(self._path, "a", encoding="utf-8") as record:
                record.write(f"\n{json.dumps(entry)}")


# Characters that HFS+ ignores in names: the list of git's `utf8.c`.
_HFS_IGNORED = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
# NTFS has short names such as `GIT~1`, ignores dots and spaces at the end, and names streams after a colon.
_GIT_FOLDER = re.compile(r"(?:\.git|git~[0-9]+)[. ]*(?::|\Z)", re.IGNORECASE | re.ASCII)

_GIT_HEAD = re.compile(r"head[. ]*(?::|\Z)", re.IGNORECASE | re.ASCII)


def _enters_git_folder(path: str) -> bool:
    """Whether a path leads into a `.git` on any file system. A backslash separates folders on some of them."""
    parts = re.split(r"[/\\]", path)
    return any(_GIT_FOLDER.match(_HFS_IGNORED.sub("", part)) for part in parts)


def _safe_parts(name: str) -> list[str]:
    """The parts of a path in an archive. Raises `LoamError` if it leads out of the folder."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    # On Windows, these separate parts and name drives and streams.
    is_foreign = os.name == "nt" and any(character in name for character in "\\:")
    if name.startswith("/") or ".." in parts or is_foreign:
        raise LoamError(
            "unsafe_archive", f"The artifacts have the path {name!r}, which leads out of the folder"
        )
    return parts


def _make_folders(target: pathlib.Path, parts: Sequence[str]) -> None:
    folder = target
    for part in parts:
        folder = folder / part
        if folder.is_symlink():
            raise LoamError(
                "unsafe_archive", f"{folder} is a link. Files are not written through links."
            )
        folder.mkdir(exist_ok=True)


@contextlib.contextmanager
def _new_file(path: pathlib.Path, is_executable: bool) -> Iterator[IO[bytes]]:
    """Opens a new file that takes its place when it is complete, so that a link in this place is not followed."""
    new = path.with_name(f".loam-{random_bytes.token_hex(8)}")
    try:
        mode = 0o777 if is_executable else 0o666
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
        os.replace(new, path)
    except BaseException:
        new.unlink()
        raise
