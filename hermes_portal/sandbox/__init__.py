"""A real Hermes API server beside a model that plays from a script, for the demo and the tests."""

from hermes_portal.sandbox.sandbox import Sandbox, SandboxError, Server

__all__ = ["Sandbox", "SandboxError", "Server"]
