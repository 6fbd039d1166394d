"""What and when."""

from django.apps import AppConfig


class JobsConfig(AppConfig):
    """Definitions of jobs; registers the start-up checks."""

    name = "jobs"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from jobs import checks  # noqa: F401
