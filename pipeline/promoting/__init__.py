"""From a registered version to an endpoint and back; see docs/promote.md and docs/serve.md."""
