"""Orders: a Django service in one file that writes an event in the transaction of an order.

Run it with ``uvicorn service:application --port 8000``.
"""

import json
import os
from urllib.parse import unquote, urlsplit

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.db import connection, models, transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from sea_mq_worker.producer import Event, enqueue_sync

database = urlsplit(os.environ["SEA_MQ_DATABASE_URL"])
settings.configure(
    ALLOWED_HOSTS=["127.0.0.1", "localhost"],
    ROOT_URLCONF=__name__,
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": database.hostname,
            "PORT": database.port,
            "USER": unquote(database.username or ""),
            "PASSWORD": unquote(database.password or ""),
            "NAME": database.path.removeprefix("/"),
        }
    },
)
django.setup()


class Order(models.Model):
    item = models.TextField()

    class Meta:
        app_label = "orders"

    def __str__(self) -> str:
        return self.item


def place(request: HttpRequest) -> JsonResponse:
    with transaction.atomic():
        order = Order.objects.create(item=json.loads(request.body)["item"])
        event = Event(
            aggregate_type="order",
            aggregate_id=str(order.pk),
            event_type="django_order.placed",
            payload={"order": order.pk, "item": order.item},
        )
        enqueue_sync(connection, event)
    return JsonResponse({"order": order.pk}, status=201)


urlpatterns = [path("orders", place)]

# A project has a migration instead.
if "orders_order" not in connection.introspection.table_names():
    with connection.schema_editor() as editor:
        editor.create_model(Order)

application = get_asgi_application()
