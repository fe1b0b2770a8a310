"""The one engine that asks: every request of every command goes through it."""
