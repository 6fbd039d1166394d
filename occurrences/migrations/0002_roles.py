"""Two groups to begin with: `viewer` sees everything, `operator` also acts. An administrator may change both."""

from django.contrib.auth.management import create_permissions
from django.db import migrations

APPS = ("jobs", "workers_app", "occurrences")
ACTIONS = {
    "jobs": ("add_job", "change_job", "delete_job"),
    "occurrences": ("change_occurrence", "change_failedoccurrence"),
}
# Answers kept for idempotency keys are of no use to people, and may hold what others asked for.
HIDDEN = ("view_idempotencyrecord",)


def make_roles(apps, schema_editor):
    """Permissions are usually made after all migrations; the groups need them now."""
    using = schema_editor.connection.alias
    for label in APPS:
        config = apps.get_app_config(label)
        # An app of a migration's state has no module, and without one gets no permissions.
        module, config.models_module = getattr(config, "models_module", None), True
        create_permissions(config, apps=apps, verbosity=0, using=using)
        config.models_module = module
    Group = apps.get_model("auth", "Group")
    Permission = apps.get_model("auth", "Permission")
    known = Permission.objects.using(using).filter(content_type__app_label__in=APPS)
    views = list(known.filter(codename__startswith="view_").exclude(codename__in=HIDDEN))
    acts = [
        known.get(content_type__app_label=label, codename=codename) for label, names in ACTIONS.items() for codename in names
    ]
    for name, permissions in (("viewer", views), ("operator", views + acts)):
        group, _ = Group.objects.using(using).get_or_create(name=name)
        group.permissions.add(*permissions)


def remove_roles(apps, schema_editor):
    """Groups with members stay: somebody relies on them."""
    Group = apps.get_model("auth", "Group")
    Group.objects.using(schema_editor.connection.alias).filter(name__in=("viewer", "operator"), user=None).delete()


class Migration(migrations.Migration):
    dependencies = [
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
        ("jobs", "0001_first"),
        ("workers_app", "0001_first"),
        ("occurrences", "0001_first"),
    ]
    operations = [migrations.RunPython(make_roles, remove_roles)]
