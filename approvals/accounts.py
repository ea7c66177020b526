"""How people sign in: accounts are made by an admin or a command, never by a visitor."""

from allauth.account.adapter import DefaultAccountAdapter
from django.http import HttpRequest


class ClosedSignUp(DefaultAccountAdapter):  # type: ignore[misc]
    """django-allauth without sign-up."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Never: an account without a role sees nothing anyway, and roles come from an admin."""
        return False
