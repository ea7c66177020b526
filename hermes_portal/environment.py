"""Reads settings from the environment; a missing or bad value names its variable."""

import os
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured


def text(name: str, default: str | None = None) -> str:
    """The value of NAME, or the content of the file that NAME_FILE names.

    Raises ImproperlyConfigured when neither is set and there is no default, or both are set.
    """
    value, path = os.environ.get(name), os.environ.get(f"{name}_FILE")
    if value is not None and path is not None:
        raise ImproperlyConfigured(f"Set {name} or {name}_FILE, not both.")
    if path is not None:
        try:
            value = Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ImproperlyConfigured(
                f"{name}_FILE names {path}, which cannot be read: {error.strerror}."
            ) from error
    if value is None or value == "":
        if default is None:
            raise ImproperlyConfigured(f"{name} is not set. Set {name} or {name}_FILE.")
        return default
    return value


def integer(name: str, default: int, *, least: int = 0) -> int:
    """A whole number, at least `least`."""
    raw = text(name, str(default))
    if not raw.isascii() or not raw.isdigit() or int(raw) < least:
        raise ImproperlyConfigured(f"{name} must be a whole number of at least {least}, not {raw!r}.")
    return int(raw)


def seconds(name: str, default: float, *, least: float = 0.0) -> float:
    """A duration in seconds."""
    raw = text(name, str(default))
    try:
        value = float(raw)
    except ValueError:
        value = float("nan")
    if not least <= value < 1e9:
        raise ImproperlyConfigured(f"{name} must be a number of seconds of at least {least}, not {raw!r}.")
    return value


def choice(name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = text(name, default)
    if value not in allowed:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(allowed)}, not {value!r}.")
    return value


def flag(name: str, default: bool) -> bool:
    return choice(name, "true" if default else "false", ("true", "false")) == "true"


def words(name: str, default: str) -> list[str]:
    """Comma-separated words."""
    return [word.strip() for word in text(name, default).split(",") if word.strip()]


def postgres(name: str, url: str) -> dict[str, object]:
    """Django's settings for `postgresql://user:password@host:port/database?option=value`."""
    parts = urlsplit(url)
    database = parts.path.lstrip("/")
    if parts.scheme not in ("postgres", "postgresql") or not database:
        raise ImproperlyConfigured(f"{name} must look like postgresql://user:password@host:5432/database.")
    try:
        port = parts.port
    except ValueError as error:
        raise ImproperlyConfigured(f"{name} has a port that is not a number.") from error
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(database),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": str(port or ""),
        "OPTIONS": dict(parse_qsl(parts.query)),
    }


def revision(checkout: Path, version: str) -> str:
    """The version, with the commit that HEAD names where `checkout` is one. Git itself need not be installed."""
    try:
        head = (checkout / ".git/HEAD").read_text(encoding="ascii").strip()
        if head.startswith("ref: "):
            head = (checkout / ".git" / head.removeprefix("ref: ")).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return version
    return f"{version}+{head[:12]}"
