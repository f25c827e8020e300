"""`mrlm pull`: downloads a published team."""

import shlex
from pathlib import Path


def pull(
    repository: str,
    output: Path | None = None,
    revision: str | None = None,
    endpoint: str | None = None,
) -> None:
    """Download a team that was published with mrlm push."""
    from mrlm.config.trust import settings_to_trust
    from mrlm.teams.hub import pull as fetch
    from mrlm.teams.saving import TEAM, read_team
    from mrlm.tracking.console import printable

    folder = fetch(repository, output, revision=revision, endpoint=endpoint)
    team = read_team(folder)
    print(printable(f"{folder}: a team of {', '.join(team['agents'])}"))
    key = next(settings_to_trust(team), None)
    if key is not None:
        print(printable(f"{TEAM} is not trusted: {key} needs --trust; read it first"))
    command = f"mrlm play --config {shlex.quote(str(folder / TEAM))}"
    if not team.get("environments"):  # it was trained in one of a local file
        command = f"mrlm.Team.from_pretrained({str(folder)!r}).play('a task')"
    print(printable(f"play with it: {command}"))
