"""Orders: a Flask service on psycopg2 that writes an event in the transaction of an order.

Run it with ``flask --app service run --port 8000``.
"""

import os

import psycopg2
from flask import Flask, request

from sea_mq_worker.producer import Event, enqueue_sync

URL = os.environ["SEA_MQ_DATABASE_URL"]

app = Flask(__name__)

with psycopg2.connect(URL) as setup, setup.cursor() as cursor:
    cursor.execute("CREATE TABLE IF NOT EXISTS flask_orders (id SERIAL PRIMARY KEY, item TEXT NOT NULL)")
setup.close()


@app.post("/orders")
def place() -> tuple[dict[str, int], int]:
    connection = psycopg2.connect(URL)
    try:
        with connection, connection.cursor() as cursor:  # one transaction: commit, or rollback after an error
            item = request.get_json()["item"]
            cursor.execute("INSERT INTO flask_orders (item) VALUES (%s) RETURNING id", (item,))
            (order,) = cursor.fetchone()
            enqueue_sync(
                cursor,
                Event(
                    aggregate_type="order",
                    aggregate_id=str(order),
                    event_type="flask_order.placed",
                    payload={"order": order, "item": item},
                ),
            )
    finally:
        connection.close()
    return {"order": order}, 201
