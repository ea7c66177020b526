"""What a service says no with. Views translate: Invalid 422, Forbidden 422, Denied 403, Conflict 409."""

from django.core.exceptions import PermissionDenied


class Invalid(Exception):
    """Input that a person can correct; `errors` maps a field to a sentence that says how."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.errors = {field: sentence}


class Forbidden(Exception):
    """Policy forbids it; `sentence` is for the requester."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


class Denied(PermissionDenied):
    """This person may not do this, whatever the state."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence
