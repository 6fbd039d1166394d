"""Django settings of the Celery peer: the result backend's tables, and a connection that is kept open."""

import os
from urllib.parse import urlsplit

_url = urlsplit(os.environ["DATABASE_URL"])

SECRET_KEY = "bench"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.contenttypes", "django_celery_results"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _url.path.lstrip("/"),
        "USER": _url.username,
        "PASSWORD": _url.password or "",
        "HOST": _url.hostname,
        "PORT": _url.port,
        # One connection per process for its whole life (with CELERY_DB_REUSE_MAX in bench_app).
        "CONN_MAX_AGE": None,
    }
}
