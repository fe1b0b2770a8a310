"""What audits found: figures and their record, and runs read back, compared, merged, gated and deployed."""
