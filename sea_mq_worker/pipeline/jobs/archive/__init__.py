"""Archive: published events out of the outbox table into the lake."""
