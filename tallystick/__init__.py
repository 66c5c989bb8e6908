"""Run evaluations and benchmarks that cost money around a durable ledger."""
