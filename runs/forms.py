"""Forms of runs: what a start may say, and how its fields become the documented input."""

import re
import secrets
from typing import Any

from django import forms

from approvals.forms import Written
from approvals.models import Endpoint
from hermes_portal.hermes import strictjson

TEXTS = ("instructions", "model", "session_id", "previous_response_id")
LOOKS_LIKE_JSON = re.compile(r'\s*(\[\s*)?\{\s*"')


def fresh_key() -> str:
    """An idempotency key for one drawing of a form: a double click is one action."""
    return f"form-{secrets.token_hex(12)}"


class StartForm(forms.Form):
    """The start of a run. What the input may be is judged by the capability's own checks, not here."""

    endpoint = forms.ModelChoiceField(
        queryset=Endpoint.objects.none(),
        to_field_name="endpoint_id",
        error_messages={
            "required": "Choose an endpoint.",
            "invalid_choice": "This endpoint is not known, or you may not ask for runs there.",
        },
    )
    input = Written(required=False, strip=False)
    plain = forms.BooleanField(required=False)
    conversation_history = Written(required=False)
    instructions = Written(required=False, strip=False)
    model = forms.CharField(required=False)
    session_id = forms.CharField(required=False)
    session_key = forms.CharField(required=False, strip=False)
    previous_response_id = forms.CharField(required=False)
    reason = Written(required=False)
    idempotency_key = forms.CharField(required=False, strip=False)

    def clean_input(self) -> object:
        """A text; or JSON that is no text, unless "plain" says that it is one (messages, contract 0.19 (b))."""
        text: str = self.cleaned_data["input"]
        if self.data.get("plain"):
            return text
        try:
            value = _json(text)
        except forms.ValidationError:
            if LOOKS_LIKE_JSON.match(text):
                raise
            return text
        return text if isinstance(value, str) else value

    def clean_conversation_history(self) -> object:
        text = self.cleaned_data["conversation_history"]
        if not text.strip():
            return None
        return _json(text)

    def raw(self) -> dict[str, Any]:
        """The documented wire form: provider input in `body`, the session key beside it."""
        data = self.cleaned_data
        body: dict[str, Any] = {"input": data["input"]}
        if data.get("conversation_history") is not None:
            body["conversation_history"] = data["conversation_history"]
        body |= {name: data[name] for name in TEXTS if data[name]}
        return {"body": body} | ({"session_key": data["session_key"]} if data["session_key"] else {})


def _json(text: str) -> object:
    """Strict JSON, without characters that would be replaced on the way: what is shown is what is sent (rule 3)."""
    try:
        parsed = strictjson.loads(text)
    except strictjson.StrictJSONError as error:
        reason = "a mistake in it" if error.reason == "not_json" else error.reason.replace("_", " ")
        raise forms.ValidationError(
            f"This JSON cannot be read: {reason}. Correct it, or send it as plain text."
        ) from None
    if parsed.sanitised:
        raise forms.ValidationError("It holds a NUL or half a character (a lone surrogate). Take it out.")
    return parsed.value


def field_of(member: str) -> str:
    """The form's field for a member of the input: `body.input[2].content` is `input`."""
    return member.removeprefix("body.").split("[")[0].split(".")[0]


class StopForm(forms.Form):
    """Asking for a stop."""

    reason = Written(required=False)
    idempotency_key = forms.CharField(required=False, strip=False)
