"""Alembic's entry: run the scripts on the connection, and in the transaction, that the caller hands over."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], target_metadata=None)
context.run_migrations()
