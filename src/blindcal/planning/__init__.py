"""Planning: what an audit will cost and how precise it will be."""
