"""The provider's wire contract: how the portal speaks to a Hermes API server. Nothing here knows Django."""
