"""How much to ask: what an audit costs and promises, a budget, and a part of the items that can grow."""
