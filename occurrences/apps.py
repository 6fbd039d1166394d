"""What happened."""

from django.apps import AppConfig


class OccurrencesConfig(AppConfig):
    """Each run, from birth to oblivion."""

    name = "occurrences"
    default_auto_field = "django.db.models.BigAutoField"
