"""``python -m sea_mq_worker``."""

from sea_mq_worker.cli import app


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
