"""Who."""

from django.apps import AppConfig


class WorkersAppConfig(AppConfig):
    """The registry of workers."""

    name = "workers_app"
    verbose_name = "workers"
    default_auto_field = "django.db.models.BigAutoField"
