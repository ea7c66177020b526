"""All settings, from the environment. docs/operations.md lists the variables.

The embedded default needs none of them: SQLite, a broker made of files and generated keys, all under PORTAL_DATA_DIR.
"""

import contextlib
import secrets
from datetime import timedelta
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

from hermes_portal import __version__
from hermes_portal import environment as env

BASE_DIR = Path(__file__).resolve().parent.parent

# --- mode and keys --------------------------------------------------------------------------------------------
# "embedded" makes its own keys on first use; "production" refuses to start without keys of its own.
PORTAL_MODE = env.choice("PORTAL_MODE", "embedded", ("embedded", "production"))
PRODUCTION = PORTAL_MODE == "production"


def _private_directory(path: Path) -> Path:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


DATA_DIR = _private_directory(Path(env.text("PORTAL_DATA_DIR", str(BASE_DIR / ".data"))).resolve())


def _key(name: str, default: str = "") -> str:
    """A secret: given, or generated once into PORTAL_DATA_DIR/keys where that is allowed."""
    value = env.text(name, default)
    if value:
        return value
    if PRODUCTION:
        raise ImproperlyConfigured(
            f"{name} is not set. In production mode every key is given: set {name} or {name}_FILE "
            f"(32 random bytes in hex: python -c 'import secrets; print(secrets.token_hex(32))')."
        )
    path = _private_directory(DATA_DIR / "keys") / name.lower()
    if not path.exists():
        fresh = path.with_suffix(f".{secrets.token_hex(4)}")
        fresh.touch(mode=0o600)
        fresh.write_text(secrets.token_hex(32))
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(fresh)  # whoever is first wins; the others read its key
        fresh.unlink()
    return path.read_text().strip()


SECRET_KEY = _key("SECRET_KEY")
# Encrypts endpoint tokens, exact inputs and snapshots: "id:hex,id:hex"; the first one seals, all of them open.
PORTAL_KEYS = _key("PORTAL_KEYS")
# Seed of the Ed25519 key that signs exports and checkpoints.
PORTAL_SIGNING_KEY = _key("PORTAL_SIGNING_KEY")
if PRODUCTION and ("insecure" in SECRET_KEY or len(SECRET_KEY) < 32):
    raise ImproperlyConfigured(
        "SECRET_KEY is a default or shorter than 32 characters; production mode needs its own."
    )

# The demo offers practice runs against its own sandbox.
PORTAL_DEMO = env.flag("PORTAL_DEMO", False)
# Which portal wrote an entry of evidence: the version, and the commit where this is a checkout.
PORTAL_REVISION = env.text("PORTAL_REVISION", env.revision(BASE_DIR, __version__))

# --- the fifteen minutes and every other duration -------------------------------------------------------------
APPROVAL_LIFETIME = timedelta(minutes=15)  # spec runs and jobs: not a setting
IDEMPOTENCY_LIFETIME = timedelta(hours=24)  # spec: idempotency TTL
LEASE_SECONDS = env.seconds("PORTAL_LEASE_SECONDS", 30.0, least=1.0)  # a claimed execution before its intent
SEND_WINDOW_SECONDS = env.seconds("PORTAL_SEND_WINDOW_SECONDS", 5.0, least=0.1)  # intent to first byte
SETTLE_MARGIN_SECONDS = env.seconds(
    "PORTAL_SETTLE_MARGIN_SECONDS", 5.0, least=0.1
)  # after which no reply comes
WAIT_MARGIN_SECONDS = env.seconds("PORTAL_WAIT_MARGIN_SECONDS", 2.0)  # before the provider's wait ends
ALIVE_SECONDS = env.seconds(
    "PORTAL_ALIVE_SECONDS", 1.0, least=0.2
)  # age of the last proof that a stream is read
PATIENCE_SECONDS = env.seconds("PORTAL_PATIENCE_SECONDS", 2.0)  # for that proof, before an intent is given up
CONFIRM_SECONDS = env.seconds("PORTAL_CONFIRM_SECONDS", 1.5)  # for the last look at a stream after an intent
STREAM_IDLE_SECONDS = env.seconds("PORTAL_STREAM_IDLE_SECONDS", 90.0, least=1.0)  # keepalives come every 30 s
HUB_LEASE_SECONDS = env.seconds("PORTAL_HUB_LEASE_SECONDS", 10.0, least=1.0)
HUB_POLL_SECONDS = env.seconds("PORTAL_HUB_POLL_SECONDS", 0.25, least=0.05)
HUB_BATCH_SECONDS = env.seconds("PORTAL_HUB_BATCH_SECONDS", 0.1, least=0.01)
SWEEP_SECONDS = env.seconds("PORTAL_SWEEP_SECONDS", 5.0, least=0.2)
PAGE_POLL_SECONDS = env.seconds("PORTAL_PAGE_POLL_SECONDS", 1.0, least=0.2)
INPUT_LIMIT_BYTES = env.integer("PORTAL_INPUT_LIMIT_BYTES", 1024 * 1024, least=1024)
STREAM_LIMIT_BYTES = 64 * 1024 * 1024
STREAM_LIMIT_EVENTS = env.integer("PORTAL_STREAM_LIMIT_EVENTS", 100_000, least=10)

# --- the processes of `manage.py portal` ----------------------------------------------------------------------
PORTAL_BIND = env.text("PORTAL_BIND", "127.0.0.1:8000")
PORTAL_WEB_WORKERS = env.integer("PORTAL_WEB_WORKERS", 2)
PORTAL_WEB_THREADS = env.integer("PORTAL_WEB_THREADS", 8, least=1)
PORTAL_EXECUTE_WORKERS = env.integer("PORTAL_EXECUTE_WORKERS", 1)
PORTAL_EXECUTE_THREADS = env.integer("PORTAL_EXECUTE_THREADS", 4, least=1)
PORTAL_STREAM_WORKERS = env.integer("PORTAL_STREAM_WORKERS", 1)
PORTAL_BEAT = env.flag("PORTAL_BEAT", True)
PORTAL_STOP_SECONDS = env.seconds("PORTAL_STOP_SECONDS", 20.0, least=0.1)

# --- Django ---------------------------------------------------------------------------------------------------
DEBUG = False
ALLOWED_HOSTS = env.words(
    "PORTAL_ALLOWED_HOSTS", "" if PRODUCTION else "127.0.0.1,localhost,[::1],testserver"
)
if PRODUCTION and not ALLOWED_HOSTS:
    raise ImproperlyConfigured(
        "PORTAL_ALLOWED_HOSTS is not set. Name the hosts that the portal is served under."
    )
CSRF_TRUSTED_ORIGINS = env.words("PORTAL_TRUSTED_ORIGINS", "")
INSTALLED_APPS = [
    "hermes_portal.apps.PortalConfig",
    "approvals.apps.ApprovalsConfig",
    "runs.apps.RunsConfig",
    "jobs.apps.JobsConfig",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django_htmx",
    "allauth",
    "allauth.account",
]
MIDDLEWARE = [
    "hermes_portal.middleware.SealedResponses",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "hermes_portal.middleware.SignedIn",
    "approvals.views.frame.SameViewer",
    "hermes_portal.middleware.DatabaseBusy",
]
ROOT_URLCONF = "hermes_portal.urls"
WSGI_APPLICATION = "hermes_portal.wsgi.application"
ASGI_APPLICATION = "hermes_portal.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "approvals.views.frame.frame",
            ],
        },
    }
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
USE_I18N = True
FORM_RENDERER = "django.forms.renderers.DjangoTemplates"
DATA_UPLOAD_MAX_MEMORY_SIZE = (
    3 * 1024 * 1024
)  # above the input limit, so that our own sentence is shown first

# --- database -------------------------------------------------------------------------------------------------
_database_url = env.text("DATABASE_URL", "")
DATABASES: dict[str, dict[str, object]]
if _database_url:
    DATABASES = {"default": env.postgres("DATABASE_URL", _database_url)}
    DATABASES["default"]["CONN_MAX_AGE"] = env.integer("PORTAL_DATABASE_KEEP_SECONDS", 60)
    DATABASES["default"]["CONN_HEALTH_CHECKS"] = True
    _options: dict[str, object] = {"options": "-c lock_timeout=5000 -c statement_timeout=30000"}
    DATABASES["default"]["OPTIONS"] = _options | DATABASES["default"]["OPTIONS"]  # type: ignore[operator]
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": DATA_DIR / "portal.sqlite3",
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 10,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
            },
        }
    }

# --- cache, queue ---------------------------------------------------------------------------------------------
_redis_url = env.text("REDIS_URL", "")
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": _redis_url}
    if _redis_url
    else {"BACKEND": "django.core.cache.backends.filebased.FileBasedCache", "LOCATION": DATA_DIR / "cache"}
}

CELERY_BROKER_URL = env.text("CELERY_BROKER_URL", "filesystem://localhost//")
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_DEFAULT_QUEUE = "default"
CELERY_TASK_ROUTES = {
    "approvals.tasks.execute": {"queue": "execute"},
    "runs.tasks.follow": {"queue": "streams"},
}
CELERY_TASK_PUBLISH_RETRY = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True
CELERY_TIMEZONE = "UTC"
if CELERY_BROKER_URL.startswith("filesystem:"):
    CELERY_BROKER_TRANSPORT = "hermes_portal.file_queue:Transport"
    _queue = str(_private_directory(DATA_DIR / "queue"))
    CELERY_BROKER_TRANSPORT_OPTIONS: dict[str, object] = {
        "data_folder_in": _queue,
        "data_folder_out": _queue,
        "control_folder": str(_private_directory(DATA_DIR / "queue-control")),
        "polling_interval": 0.1,
    }
else:
    # A mute broker must not hold a request: 1 s to publish. A redelivered message is harmless, the ledger claims once.
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        "socket_timeout": env.seconds("PORTAL_BROKER_TIMEOUT_SECONDS", 1.0),
        "socket_connect_timeout": env.seconds("PORTAL_BROKER_TIMEOUT_SECONDS", 1.0),
        "max_retries": 0,  # else a publisher looks for a broker that is down for 4 to 6 s; workers have their own count
        "visibility_timeout": 600,
    }
CELERY_BEAT_SCHEDULE = {
    name: {
        "task": f"{app}.tasks.{name}",
        "schedule": SWEEP_SECONDS,
        "options": {"expires": SWEEP_SECONDS * 2, "queue": "default"},
    }
    for app, name in (
        ("approvals", "expire"),
        ("approvals", "dispatch"),
        ("approvals", "settle_overdue"),
        ("runs", "reconcile"),
    )
}
CELERY_BEAT_SCHEDULE["checkpoint"] = {
    "task": "approvals.tasks.checkpoint",
    "schedule": env.seconds("PORTAL_CHECKPOINT_SECONDS", 300.0, least=1.0),
    "options": {"expires": 300, "queue": "default"},
}

# --- accounts and sessions ------------------------------------------------------------------------------------
AUTH_USER_MODEL = "approvals.User"
AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]
ACCOUNT_ADAPTER = "approvals.accounts.ClosedSignUp"
ACCOUNT_LOGIN_METHODS = {"username"}
ACCOUNT_SIGNUP_FIELDS = ["username*", "password1*"]
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_LOGOUT_ON_GET = False
ACCOUNT_SESSION_REMEMBER = False
LOGIN_URL = "/accounts/login/"
LOGIN_REDIRECT_URL = "/"
SESSION_COOKIE_AGE = env.integer("PORTAL_SESSION_SECONDS", 8 * 3600, least=60)
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"
CSRF_FAILURE_VIEW = "approvals.views.frame.csrf_failed"
# HTTPS is the deployment's; production mode insists unless it is told that it stands behind plain HTTP on purpose.
HTTPS = env.flag("PORTAL_HTTPS", PRODUCTION)
SESSION_COOKIE_SECURE = HTTPS
CSRF_COOKIE_SECURE = HTTPS
SECURE_SSL_REDIRECT = HTTPS
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = HTTPS
SECURE_HSTS_PRELOAD = HTTPS
if env.flag("PORTAL_BEHIND_PROXY", False):
    ALLAUTH_TRUSTED_PROXY_COUNT = 1  # else everybody behind the proxy shares one limit of failed sign-ins
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"

# --- files, logs ----------------------------------------------------------------------------------------------
STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
STATIC_ROOT = _private_directory(DATA_DIR / "static")
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = False
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"redact": {"()": "hermes_portal.logs.Redacting"}},
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line", "filters": ["redact"]}},
    "root": {"handlers": ["console"], "level": env.text("PORTAL_LOG_LEVEL", "INFO")},
    # httpx logs every address at INFO; run ids are not for the log
    "loggers": {"httpx": {"level": "WARNING"}, "httpcore": {"level": "WARNING"}},
}
