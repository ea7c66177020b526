"""`manage.py states`: draws docs/states.md from the MOVES of every state machine; `--check` compares instead."""

from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.management import BaseCommand, CommandError, CommandParser

from hermes_portal.transitions import Guarded

PAGE = Path("docs") / "states.md"
HEAD = """# States

<!-- Made by `manage.py states` from the MOVES of the models; `manage.py states --check` compares. Edit the models. -->

A status moves by one conditional UPDATE along these arrows, whoever asks; the row count says who won. Database
triggers made from the same data refuse every other move. A status without an arrow out of it is final.
"""


class Command(BaseCommand):
    """Draws the state machines."""

    help = "Writes docs/states.md from the state machines in the code."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--check", action="store_true", help="Write nothing; fail if the file is not up to date."
        )

    def handle(self, *args: Any, check: bool, **options: Any) -> None:
        path, drawn = settings.BASE_DIR / PAGE, page()
        if check:
            if not path.exists() or path.read_text(encoding="utf-8") != drawn:
                raise CommandError(f"{PAGE} is not what the code says. Run: python manage.py states")
            return
        path.write_text(drawn, encoding="utf-8")
        self.stdout.write(f"Wrote {PAGE}.")


def machines() -> list[type[Guarded]]:
    """Every state machine of the installed apps, in the order of apps and models."""
    return [model for model in apps.get_models() if issubclass(model, Guarded)]


def page() -> str:
    """The whole file."""
    return "\n".join([HEAD, *(section(model) for model in machines())])


def section(model: type[Guarded]) -> str:
    """One machine: what it is, the diagram, the table."""
    labels = {str(value): str(label) for value, label in model._meta.get_field("status").choices or ()}
    about = (model.__doc__ or "").strip().splitlines()[0]
    rows = [
        f"| `{state}` | {label} | {', '.join(f'`{target}`' for target in targets(model, state)) or 'final'} |"
        for state, label in labels.items()
    ]
    parts = [
        f"## {str(model._meta.verbose_name).capitalize()}\n",
        f"{about}\n",
        diagram(model, labels),
        "| Status | On the screen | Moves to |\n|---|---|---|",
        "\n".join(rows) + "\n",
    ]
    return "\n".join(parts)


def targets(model: type[Guarded], state: str) -> list[str]:
    """Where a status leads to; staying is not a move."""
    return [str(target) for target in model.MOVES.get(state, ()) if target != state]


def diagram(model: type[Guarded], labels: dict[str, str]) -> str:
    """A mermaid state diagram."""
    first = model._meta.get_field("status").default
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first}"]
    for state in labels:
        lines += [f"    {state} --> {target}" for target in targets(model, state)]
    lines += [f"    {state} --> [*]" for state in labels if not targets(model, state)]
    return "\n".join([*lines, "```\n"])
