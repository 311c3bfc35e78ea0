// pg-transactional-outbox with its replication listener, and a handler that publishes to JetStream.

import { jetstream } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";
import pg from "pg";
import outbox from "pg-transactional-outbox";

const PARALLEL = 20;
const slot = "relay";
const publication = "outbox";
const setup = {
  outboxOrInbox: "outbox",
  database: "bench",
  schema: "public",
  table: "outbox",
  listenerRole: "postgres",
  publication,
  replicationSlot: slot,
};
const database = { connectionString: process.env.DATABASE_URL };

async function prepare() {
  const client = new pg.Client(database);
  await client.connect();
  await client.query(outbox.DatabaseSetup.dropAndCreateTable(setup));
  await client.query(outbox.DatabaseSetup.setupReplicationCore(setup));
  await client.query("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", [slot]);
  await client.end();
}

async function run() {
  const broker = await connect({ servers: process.env.NATS_URL, maxReconnectAttempts: -1 });
  const stream = jetstream(broker);
  const publisher = {
    handle: async (message) => {
      await stream.publish(process.env.SUBJECT, JSON.stringify(message.payload), { msgID: message.id });
    },
  };
  const config = {
    outboxOrInbox: "outbox",
    dbListenerConfig: database,
    dbHandlerConfig: { ...database, max: PARALLEL },
    settings: {
      dbSchema: "public",
      dbTable: "outbox",
      dbPublication: publication,
      dbReplicationSlot: slot,
      enableMaxAttemptsProtection: false,
      enablePoisonousMessageProtection: false,
    },
  };
  const logger = { ...outbox.getDisabledLogger(), warn: console.warn, error: console.error };
  const concurrencyStrategy = outbox.createReplicationMultiConcurrencyController(
    (message) => (message.segment ? "segment-mutex" : "semaphore"),
    { maxSemaphoreParallelism: PARALLEL },
  );
  const [shutdown] = outbox.initializeReplicationMessageListener(config, publisher, logger, {
    concurrencyStrategy,
  });
  process.once("SIGTERM", async () => {
    await shutdown();
    await broker.drain();
    process.exit(0);
  });
}

await (process.argv[2] === "prepare" ? prepare() : run());
