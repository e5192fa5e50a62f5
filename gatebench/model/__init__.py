"""The transformer: five gate sites, one place that interprets a gate, exact accounting."""
