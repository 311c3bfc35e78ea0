// Moves the rows of Watermill's outbox table to JetStream with Watermill's own router.
package main

import (
	"context"
	stdsql "database/sql"
	"errors"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	_ "github.com/lib/pq"
	natsio "github.com/nats-io/nats.go"
)

const (
	topic       = "events"
	poisonTopic = "poison"
	subject     = "bench.event.made.v1"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	logger := watermill.NewStdLogger(false, false)
	batch, _ := strconv.Atoi(os.Getenv("BATCH_SIZE")) // 0 is Watermill's default
	database, err := stdsql.Open("postgres", os.Getenv("DATABASE_URL"))
	must(err)
	subscriber, err := sql.NewSubscriber(database, sql.SubscriberConfig{
		ConsumerGroup:    "relay",
		PollInterval:     200 * time.Millisecond,
		SchemaAdapter:    sql.DefaultPostgreSQLSchema{SubscribeBatchSize: batch},
		OffsetsAdapter:   sql.DefaultPostgreSQLOffsetsAdapter{},
		InitializeSchema: true,
	}, logger)
	must(err)
	if len(os.Args) > 1 && os.Args[1] == "create-table" {
		must(subscriber.SubscribeInitialize(topic))
		must(subscriber.SubscribeInitialize(poisonTopic))
		return
	}
	publisher, err := nats.NewPublisher(nats.PublisherConfig{
		URL:         os.Getenv("NATS_URL"),
		NatsOptions: []natsio.Option{natsio.MaxReconnects(-1), natsio.RetryOnFailedConnect(true)},
		Marshaler:   &nats.NATSMarshaler{},
		JetStream:   nats.JetStreamConfig{TrackMsgId: true},
	}, logger)
	must(err)
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, logger)
	must(err)
	aside, err := sql.NewPublisher(database, sql.PublisherConfig{SchemaAdapter: sql.DefaultPostgreSQLSchema{}}, logger)
	must(err)
	poison, err := middleware.PoisonQueueWithFilter(aside, poisonTopic, func(err error) bool {
		return errors.Is(err, natsio.ErrMaxPayload)
	})
	must(err)
	router.AddMiddleware(poison)
	// Published within the handler, as Watermill's forwarder does: middleware does not see what fails behind it.
	router.AddNoPublisherHandler("relay", topic, subscriber, func(msg *message.Message) error {
		return publisher.Publish(subject, msg)
	})
	must(router.Run(ctx))
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
