"""The only place that reads the server's environment. `SCHEDULER_*` settings are defined in `jobs.conf`.

Embedded (nothing set): SQLite, a SQLite-file broker and in-memory live updates, all under one data folder.
Distributed: `DATABASE_URL`, `BROKER_URL` and `REDIS_URL` name PostgreSQL, RabbitMQ and Redis.
"""

from __future__ import annotations

import difflib
import os
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import quote

import environ

from jobs.conf import load
from tickwork.errors import ConfigurationError

env = environ.Env()
BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(env.str("TICKWORK_DATA_DIR", default=str(BASE_DIR / ".data"))).expanduser().resolve()

SCHEDULER = load(os.environ)


def _refuse_misspelt_names() -> None:
    """A misspelt name would be a setting without effect, such as data in another folder than was asked for."""
    known = ("TICKWORK_DATA_DIR", "TICKWORK_BEHIND_TLS", "TICKWORK_LOG_FORMAT", "TICKWORK_LOG_LEVEL")
    for name in os.environ:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
        if near and name not in known:
            raise ConfigurationError(f"{name} is not a setting; did you mean {near[0]}?")


def _flag(name: str) -> bool:
    """A boolean of the environment; not set is False."""
    text = env.str(name, default="").strip().lower()
    if text not in ("true", "false", ""):
        raise ConfigurationError(f"{name} is {text!r}; allowed are true and false")
    return bool(text == "true")


def _in_data_dir(name: str) -> Path:
    """A file of the data folder, which is made when it is missing; only its owner may look into it."""
    try:
        DATA_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(DATA_DIR, os.W_OK | os.X_OK):
            raise PermissionError(0, "it cannot be written to")
    except OSError as error:
        raise ConfigurationError(
            f"TICKWORK_DATA_DIR is {str(DATA_DIR)!r}: {error.strerror}; name a folder that this user may write"
        ) from None
    return DATA_DIR / name


def _secret_key() -> str:
    """`DJANGO_SECRET_KEY`, or in embedded mode a key made once and kept in the data folder, readable by its owner
    only.
    """
    if key := env.str("DJANGO_SECRET_KEY", default=""):
        return str(key)
    if env.str("DATABASE_URL", default=""):
        raise ConfigurationError("DJANGO_SECRET_KEY is not set; several processes need the same long random text there")
    path = _in_data_dir("secret_key")
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(50))
    except FileExistsError:
        pass
    return path.read_text()


_refuse_misspelt_names()


# ── who may come in ────────────────────────────────────────────────────────────────────────────────
DEBUG = _flag("DJANGO_DEBUG")
SECRET_KEY = _secret_key()
ALLOWED_HOSTS = env.list("DJANGO_ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("DJANGO_CSRF_TRUSTED_ORIGINS", default=[])
# Behind TLS everything that TLS allows is on; without it (the embedded start on loopback) a secure cookie would lock
# people out.
BEHIND_TLS = _flag("TICKWORK_BEHIND_TLS")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = BEHIND_TLS
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if BEHIND_TLS else None
SECURE_HSTS_SECONDS = 31_536_000 if BEHIND_TLS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = BEHIND_TLS
SECURE_REDIRECT_EXEMPT = [r"^health/"]
SESSION_COOKIE_HTTPONLY = True
X_FRAME_OPTIONS = "DENY"
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "overview"
LOGOUT_REDIRECT_URL = "login"

# ── what it is made of ─────────────────────────────────────────────────────────────────────────────
INSTALLED_APPS = [
    "daphne",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "rest_framework.authtoken",
    "jobs",
    "workers_app",
    "occurrences",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "scheduler_project.middleware.ContentSecurityPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
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
            ],
        },
    },
]
ROOT_URLCONF = "scheduler_project.urls"
ASGI_APPLICATION = "scheduler_project.asgi.application"
STATIC_URL = "static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = True
WHITENOISE_MAX_AGE = 3600

# ── time and language ──────────────────────────────────────────────────────────────────────────────
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-gb"
USE_I18N = True


# ── where things are kept ──────────────────────────────────────────────────────────────────────────
def _database() -> dict[str, Any]:
    database: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3"}
    if env.str("DATABASE_URL", default=""):
        try:
            database = env.db_url("DATABASE_URL")
            engine = database["ENGINE"].rsplit(".", 1)[-1]
        except Exception:  # the library's error may quote the URL and with it the password
            raise ConfigurationError(
                "DATABASE_URL cannot be read; expected postgres://user:password@host:port/name or sqlite:///path"
            ) from None
    else:
        engine = "sqlite3"
        database["NAME"] = str(_in_data_dir("tickwork.sqlite3"))
    if engine == "sqlite3":
        # IMMEDIATE: a transaction takes the write lock when it begins, so none fails half way (SQLITE_BUSY_SNAPSHOT).
        database["OPTIONS"] = {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA mmap_size=134217728; "
            "PRAGMA journal_size_limit=67108864; PRAGMA cache_size=-16000;",
        }
        Path(database["NAME"]).parent.mkdir(parents=True, exist_ok=True)
    elif engine == "postgresql":
        database["CONN_MAX_AGE"] = None
        database["CONN_HEALTH_CHECKS"] = True
        # A server that vanished without a word (power, network) must not hold a loop for the hours that the system's
        # own keepalive takes.
        vanished = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 20_000}
        database["OPTIONS"] = {"connect_timeout": 5, **vanished, **database.get("OPTIONS", {})}
    else:
        raise ConfigurationError(f"DATABASE_URL names {engine!r}; allowed are postgres:// and sqlite:///")
    return database


DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

BROKER_URL = env.str("BROKER_URL", default="") or f"sqlite:///{quote(str(_in_data_dir('broker.sqlite3')))}"

REDIS_URL = env.str("REDIS_URL", default="")
if REDIS_URL and not REDIS_URL.startswith(("redis://", "rediss://", "unix://")):
    raise ConfigurationError("REDIS_URL cannot be read; expected redis://host:6379/0, rediss://… or unix://path")
if REDIS_URL:
    CHANNEL_LAYERS: dict[str, Any] = {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            # Without these two, redis-py ends idle subscribers and the pool overruns.
            "CONFIG": {"hosts": [{"address": REDIS_URL, "socket_timeout": None, "max_connections": 200}]},
        }
    }
else:
    CHANNEL_LAYERS = {"default": {"BACKEND": "scheduler_project.layers.LoopBoundChannelLayer"}}

# Largest body that a request may have; a batch of runs with much data needs more than Django's default.
DATA_UPLOAD_MAX_MEMORY_SIZE = max(4 * 1024 * 1024, 2 * SCHEDULER.max_data_bytes)

# ── the API ────────────────────────────────────────────────────────────────────────────────────────
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "rest_framework.authentication.TokenAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["scheduler_project.api.ModelPermissions"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["scheduler_project.api.StrictJSONParser"],
    "DEFAULT_PAGINATION_CLASS": "scheduler_project.api.Keyset",
    "EXCEPTION_HANDLER": "scheduler_project.problems.problem_details",
    "PAGE_SIZE": 50,
    "NON_FIELD_ERRORS_KEY": "body",
    "URL_FORMAT_OVERRIDE": None,
}

# ── logs ───────────────────────────────────────────────────────────────────────────────────────────
LOGGING_CONFIG = "scheduler_project.logs.configure"
LOGGING = {
    "format": env.str("TICKWORK_LOG_FORMAT", default="console"),
    "level": env.str("TICKWORK_LOG_LEVEL", default="INFO").upper(),
}
if LOGGING["format"] not in ("console", "json"):
    raise ConfigurationError(f"TICKWORK_LOG_FORMAT is {LOGGING['format']!r}; allowed are console and json")
if LOGGING["level"] not in ("DEBUG", "INFO", "WARNING", "ERROR"):
    raise ConfigurationError(f"TICKWORK_LOG_LEVEL is {LOGGING['level']!r}; allowed are DEBUG, INFO, WARNING and ERROR")
