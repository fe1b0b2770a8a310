"""An audit: prepare, ask, conclude."""
