"""Teams on the Hugging Face Hub, or a server with its API: one repository for a team."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mrlm.config.trust import MARK, mark
from mrlm.core.errors import ConfigError, HubError
from mrlm.core.tiny_model import HUB_ID
from mrlm.learn.policy.loading import BASES, first_line, quietly, run_model
from mrlm.teams.packing import POLICIES, Published, pack
from mrlm.teams.saving import TEAM, read_team

CLIENT = ("huggingface_hub", "httpx", "httpx2", "httpcore", "httpcore2", "requests")
"""Libraries whose errors are those of the Hub."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A team on the Hub, or with `dry_run` what would be uploaded.

    Args:
        files: path in the repository -> size in bytes.
        url: the commit; `None` if nothing was uploaded.
    """

    files: dict[str, int]
    url: str | None = None


def push(
    run: Path,
    repository: str,
    *,
    private: bool = False,
    dry_run: bool = False,
    merge: bool = False,
    base: str | None = None,
    endpoint: str | None = None,
    page: Path | None = None,
) -> Upload:
    """Publishes a team as one repository, which is created if needed. Policies of the repository
    that the team no longer has are removed.

    Args:
        run: a run folder, or the folder of a team.
        repository: its name, `owner/name`.
        private: whether a new repository is private.
        dry_run: upload nothing.
        merge: publish adapters as whole models, merged into their bases.
        base: hub id of the weights that the adapters were trained on, if they were loaded from a
            folder of this machine.
        endpoint: URL of the Hub; `HF_ENDPOINT` by default.

    Raises:
        ConfigError: the folder is not that of a team, the repository has no valid name, or the base
            of an adapter is on this machine only.
        HubError: the Hub cannot be reached, or refused.
    """
    _check_name(repository)
    with tempfile.TemporaryDirectory(prefix="mrlm-push-") as work:
        source, target = Path(run_model(str(run))), Path(work) / "team"
        target_hub = Published(repository, base)
        pack(source, target, merge=merge, published=target_hub, page=page, link=True)
        paths = sorted(path for path in target.rglob("*") if path.is_file())
        files = {path.relative_to(target).as_posix(): path.stat().st_size for path in paths}
        if dry_run:
            return Upload(files)
        from huggingface_hub import HfApi

        api = HfApi(endpoint=endpoint, library_name="mrlm")
        with _hub_errors(f"push to {repository}", api.endpoint), quietly():
            api.create_repo(repository, private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repository,
                folder_path=target,
                commit_message="Team of MRLM",
                delete_patterns=[f"{POLICIES}/*", f"{BASES}/*"],
            )
    return Upload(files, str(commit.commit_url))


def pull(
    repository: str,
    folder: Path | None = None,
    *,
    revision: str | None = None,
    endpoint: str | None = None,
) -> Path:
    """Downloads a team.

    Args:
        repository: its name, `owner/name`.
        folder: a new folder, or that of an earlier download; the name of the repository by default.
        revision: branch, tag or commit.
        endpoint: URL of the Hub; `HF_ENDPOINT` by default.

    Returns:
        The folder.

    Raises:
        ConfigError: the folder has other files, or the repository is not a team.
        HubError: the Hub cannot be reached, or refused.
    """
    _check_name(repository)
    folder = Path(repository.rsplit("/", 1)[-1]) if folder is None else folder
    if folder.exists() and not (folder / TEAM).is_file() and any(folder.glob("*")):
        raise ConfigError(f"{folder}: the folder has other files; give a new one with --output")
    download(repository, folder, revision=revision, endpoint=endpoint)
    read_team(folder)
    return folder


def download(
    repository: str,
    folder: Path | None = None,
    *,
    revision: str | None = None,
    endpoint: str | None = None,
) -> Path:
    """The folder of a downloaded repository: `folder`, or one in the cache of the Hub's client.

    Raises:
        ConfigError: the repository has no valid name.
        HubError: the Hub cannot be reached, or refused.
    """
    _check_name(repository)
    from huggingface_hub import HfApi, snapshot_download

    api = HfApi(endpoint=endpoint, library_name="mrlm")
    with _hub_errors(f"pull of {repository}", api.endpoint), quietly():
        if folder is not None:  # without a network the client would return the folder as it is
            revision = api.model_info(repository, revision=revision).sha
            folder.mkdir(parents=True, exist_ok=True)
            mark(folder, repository)
        path = snapshot_download(
            repository,
            local_dir=folder,
            revision=revision,
            endpoint=api.endpoint,
            ignore_patterns=[MARK] if folder is not None else None,
        )
    return Path(str(path))


def _check_name(repository: str) -> None:
    if not HUB_ID.fullmatch(repository) or repository.startswith("."):
        raise ConfigError(
            f"{repository}: the folder does not exist, and it is not the name of a repository; "
            "give owner/name"
        )


@contextmanager
def _hub_errors(what: str, endpoint: str) -> Iterator[None]:
    """Raises errors of the Hub's client as a `HubError` with what to do."""
    try:
        yield
    except Exception as error:
        chain: list[BaseException] = [error]
        while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
            chain.append(cause)
        if not any(type(cause_type).__module__.split(".")[0] in CLIENT for cause_type in chain):
            raise
        raise HubError(f"{what}: {_reason(chain, endpoint)}") from error


def _reason(chain: list[BaseException], endpoint: str) -> str:
    names = {type(link).__name__ for link in chain}
    if "OfflineModeIsEnabled" in names:
        return "HF_HUB_OFFLINE is set, so the network is not used; unset it"
    responses = (getattr(link, "response", None) for link in chain)
    status = next((response.status_code for response in responses if response is not None), None)
    if status in (401, 403) or "LocalTokenNotFoundError" in names:
        return (
            f"{endpoint} refused it ({status or 'no token'}); log in with hf auth login, or set "
            "HF_TOKEN to a token that may do this"
        )
    if status == 404:
        return f"{endpoint} has no such repository or revision, or only for other tokens"
    if status is None:
        return (
            f"{endpoint} cannot be reached ({first_line(chain[-1])}); check the network, "
            "--endpoint and HF_ENDPOINT"
        )
    return f"{endpoint} answered {status}: {first_line(chain[0])}"
