//! A relay from this project's `outbox_events` to JetStream: claim a batch, publish it pipelined, mark it.
//!
//! The yardstick of what Rust could reach by the worker's steps, so it has only what these need. One instance at a
//! time; whatever goes wrong ends the process, and the next start puts back what was in hand.

use std::time::Duration;

use anyhow::{Context, Result};
use async_nats::jetstream::{self, context::PublishAckFuture};
use async_nats::{HeaderMap, HeaderName, HeaderValue};
use chrono::{DateTime, SecondsFormat, Utc};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde_json::{Map, Value};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio_postgres::{Client, Config, NoTls, Row};
use uuid::Uuid;

const NAME: &str = "rust";
const BATCH: i64 = 500;
const IDLE: Duration = Duration::from_millis(20);

/// What CloudEvents wants encoded in a header's value, besides all that is not ASCII.
const ENCODED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

const PUT_BACK: &str = "
UPDATE outbox_events SET state = 'PENDING', claimed_at = NULL, claimed_by = NULL
 WHERE is_open AND state = 'CLAIMED' AND claimed_by = $1";

const CLAIM: &str = "
UPDATE outbox_events
   SET state = 'CLAIMED', claimed_at = statement_timestamp(), claimed_by = $1,
       publish_attempts = publish_attempts + 1, first_attempt_at = coalesce(first_attempt_at, statement_timestamp())
 WHERE ctid = ANY (ARRAY(
       SELECT o.ctid
         FROM outbox_events o
        WHERE o.is_open AND o.publish_error IS NULL AND o.state = 'PENDING' AND o.available_at <= now() AND {lane}
        ORDER BY o.available_at, o.seq
        LIMIT $2
          FOR UPDATE SKIP LOCKED))
RETURNING claimed_at, id, aggregate_type, aggregate_id, event_type, event_version, payload::text AS payload,
          occurred_at, correlation_id, causation_id, partition_key, headers::text AS headers,
          metadata::text AS metadata";

const UNORDERED: &str = "o.ordering_key IS NULL";

/// The first event of each key that is not settled: what follows has to wait until it is.
const HEADS: &str = "o.ordering_key IS NOT NULL AND NOT EXISTS (
    SELECT FROM outbox_events earlier
     WHERE earlier.is_open AND earlier.ordering_key = o.ordering_key AND earlier.seq < o.seq
)";

const MARK: &str = "
UPDATE outbox_events o
   SET state = 'PUBLISHED', claimed_at = NULL, claimed_by = NULL, published_at = clock_timestamp(),
       publish_error = NULL, stream = $3, stream_seq = v.stream_seq
  FROM unnest($4::uuid[], $5::bigint[]) AS v (id, stream_seq)
 WHERE o.id = v.id AND o.state = 'CLAIMED' AND o.claimed_by = $1 AND o.claimed_at = $2";

/// A claimed batch on its way: its messages are sent, their acknowledgements still to come.
struct Sent {
    claimed_at: DateTime<Utc>,
    acks: Vec<(Uuid, PublishAckFuture)>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let context = setting("RELAY_CONTEXT")?;
    let nats = async_nats::connect(setting("NATS_URL")?).await?;
    let stream = jetstream::new(nats);
    let stop = watch_signals()?;
    database().await?.execute(PUT_BACK, &[&NAME]).await?;
    tokio::try_join!(lane(UNORDERED, &stream, &context, stop.clone()), lane(HEADS, &stream, &context, stop),)?;
    Ok(())
}

/// Claim the next batch while those before are on their way.
async fn lane(which: &str, stream: &jetstream::Context, context: &str, stop: watch::Receiver<bool>) -> Result<()> {
    let (to_publish, claimed) = mpsc::channel(1);
    let (to_mark, sent) = mpsc::channel(1);
    tokio::try_join!(claim(which, to_publish, stop), publish(stream, context, claimed, to_mark), mark(sent),)?;
    Ok(())
}

async fn claim(lane: &str, to_publish: mpsc::Sender<Vec<Row>>, stop: watch::Receiver<bool>) -> Result<()> {
    let database = database().await?;
    let statement = database.prepare(&CLAIM.replace("{lane}", lane)).await?;
    while !*stop.borrow() {
        let rows = database.query(&statement, &[&NAME, &BATCH]).await?;
        if rows.is_empty() {
            tokio::time::sleep(IDLE).await;
            continue;
        }
        to_publish.send(rows).await?;
    }
    Ok(())
}

async fn publish(
    stream: &jetstream::Context,
    context: &str,
    mut claimed: mpsc::Receiver<Vec<Row>>,
    to_mark: mpsc::Sender<Sent>,
) -> Result<()> {
    while let Some(rows) = claimed.recv().await {
        let mut acks = Vec::with_capacity(rows.len());
        for row in &rows {
            let event_type: &str = row.get("event_type");
            let subject = format!("{context}.event.{event_type}.v{}", row.get::<_, i32>("event_version"));
            let payload = row.get::<_, String>("payload").into();
            let ack = stream.publish_with_headers(subject, headers(row, context)?, payload).await?;
            acks.push((row.get("id"), ack));
        }
        to_mark.send(Sent { claimed_at: rows[0].get("claimed_at"), acks }).await?;
    }
    Ok(())
}

async fn mark(mut sent: mpsc::Receiver<Sent>) -> Result<()> {
    let database = database().await?;
    let statement = database.prepare(MARK).await?;
    while let Some(batch) = sent.recv().await {
        let (mut ids, mut places, mut stream) = (Vec::new(), Vec::new(), String::new());
        for (id, ack) in batch.acks {
            let ack = ack.await?;
            ids.push(id);
            places.push(i64::try_from(ack.sequence)?);
            stream = ack.stream;
        }
        database.execute(&statement, &[&NAME, &batch.claimed_at, &stream, &ids, &places]).await?;
    }
    Ok(())
}

/// The headers that the worker sends: message id, CloudEvents in binary mode, trace context, the row's own.
fn headers(row: &Row, context: &str) -> Result<HeaderMap> {
    let id = row.get::<_, Uuid>("id").to_string();
    let aggregate = format!("{}/{}", row.get::<_, &str>("aggregate_type"), row.get::<_, &str>("aggregate_id"));
    let occurred_at: DateTime<Utc> = row.get("occurred_at");
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", id.as_str());
    headers.insert("ce-specversion", "1.0");
    headers.insert("ce-id", id);
    headers.insert("ce-source", format!("/{context}"));
    headers.insert("ce-type", encoded(row.get("event_type")));
    headers.insert("ce-time", occurred_at.to_rfc3339_opts(SecondsFormat::Micros, true));
    headers.insert("ce-subject", encoded(&aggregate));
    headers.insert("ce-eventversion", row.get::<_, i32>("event_version").to_string());
    for (name, column) in [("ce-correlationid", "correlation_id"), ("ce-causationid", "causation_id")] {
        if let Some(other) = row.get::<_, Option<Uuid>>(column) {
            headers.insert(name, other.to_string());
        }
    }
    if let Some(key) = row.get("partition_key") {
        headers.insert("ce-partitionkey", encoded(key));
    }
    for (name, value) in object(row, "metadata")? {
        if name == "traceparent" || name == "tracestate" {
            add(&mut headers, &name, &value)?;
        }
    }
    for (name, value) in object(row, "headers")? {
        add(&mut headers, &name, &value)?;
    }
    Ok(headers)
}

fn add(headers: &mut HeaderMap, name: &str, value: &Value) -> Result<()> {
    let value: HeaderValue = value.as_str().context("a header that is no string")?.parse()?;
    headers.insert(name.parse::<HeaderName>()?, value);
    Ok(())
}

fn object(row: &Row, column: &str) -> Result<Map<String, Value>> {
    let text: Option<&str> = row.get(column);
    Ok(text.map(serde_json::from_str).transpose()?.unwrap_or_default())
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

async fn database() -> Result<Client> {
    let mut config: Config = setting("DATABASE_URL")?.parse()?;
    // Plans for the values at hand would read the whole table, whose statistics know of no claimed row.
    config.options("-c plan_cache_mode=force_generic_plan");
    let (client, connection) = config.connect(NoTls).await?;
    // Its failure ends every request of the client, which tells of it.
    tokio::spawn(connection);
    Ok(client)
}

fn setting(name: &str) -> Result<String> {
    std::env::var(name).with_context(|| name.to_owned())
}

/// True once SIGTERM has come.
fn watch_signals() -> Result<watch::Receiver<bool>> {
    let mut terminated = signal(SignalKind::terminate())?;
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        terminated.recv().await;
        sender.send(true)
    });
    Ok(receiver)
}
