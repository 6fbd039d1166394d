from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("occurrences", "0002_roles")]
    operations = [migrations.AddField("looppass", "heard_until", models.DateTimeField(null=True))]
