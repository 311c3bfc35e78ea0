"""The soak: a whole deployment on loopback, hurt by a seeded plan, then audited; see docs/proof/soak.md."""
