"""`mrlm push`: publishes a team as one repository of the Hugging Face Hub."""

from pathlib import Path

from mrlm.core.progress import aligned


def push(
    run: Path,
    repository: str,
    private: bool = False,
    dry_run: bool = False,
    merge: bool = False,
    base: str | None = None,
    page: Path | None = None,
    endpoint: str | None = None,
) -> None:
    """Publish the team of a run as one repository: policies, agents, cards, and the config without
    secrets. The token is that of hf auth login, or HF_TOKEN."""
    from mrlm.teams.hub import push as publish
    from mrlm.tracking.console import printable

    how = {"private": private, "dry_run": dry_run, "merge": merge}
    done = publish(run, repository, **how, base=base, endpoint=endpoint, page=page)
    print(printable(aligned([(name, f"{size:,} bytes") for name, size in done.files.items()])))
    total = f"{len(done.files)} files, {sum(done.files.values()) / 1e6:.1f} MB"
    if done.url is None:
        print(f"{total}; nothing was uploaded (--dry-run)")
    else:
        print(printable(f"{total}; published: {done.url}"))
        print(printable(f"load it: mrlm.Team.from_pretrained({repository!r})"))
