"""A task that does nothing but say that it ran."""

import socket

from celery import shared_task


@shared_task
def empty(port: int) -> None:
    """Tells whoever waits at this UDP port of this machine. Results are ignored, so this is the way back."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.sendto(b"done", ("127.0.0.1", port))
