from django.db import migrations, models


class Migration(migrations.Migration):
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(primary_key=True)),
                ("product", models.CharField(max_length=100)),
                ("receipt", models.TextField(blank=True)),
            ],
        )
    ]
