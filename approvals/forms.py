"""Forms of approvals: what a decision, a look at the queue and an export may say."""

from datetime import UTC, datetime

from django import forms

from approvals.models import Kind, Tenant

# Choices that reach further than the command on the screen; each needs its own tick (case 4).
WIDER = ("session", "always")


class Written(forms.CharField):
    """What a person wrote. Browsers send every line break as CR LF (HTML, form submission); a line feed is meant."""

    def to_python(self, value: object) -> str:
        text: str = super().to_python(value) or ""
        return text.replace("\r\n", "\n")


class DecideForm(forms.Form):
    """One vote. Single values only: a field that was sent twice is refused, not guessed (case 4)."""

    verdict = forms.CharField(required=False, max_length=16)
    choice = forms.CharField(required=False, max_length=16, strip=False)
    confirm = forms.CharField(required=False, max_length=16)
    reason = Written(
        required=False,
        max_length=4000,
        error_messages={"max_length": "Shorten the reason to 2,000 characters."},
    )
    seen = forms.CharField(
        max_length=64, error_messages={"required": "Load the page again: what you saw is missing."}
    )

    def clean(self) -> dict[str, object]:
        data: dict[str, object] = super().clean() or self.cleaned_data
        for name in ("verdict", "choice", "seen"):
            if hasattr(self.data, "getlist") and len(self.data.getlist(name)) > 1:
                self.add_error(name, "Choose one, not several.")
        choice = data.get("choice")
        if data.get("verdict") != "deny" and choice in WIDER and data.get("confirm") != choice:
            self.add_error("confirm", "This reaches further than this command. Tick its box as well.")
        return data


class ReasonForm(forms.Form):
    """A reason for the record."""

    reason = Written(required=False, max_length=4000)


class EvidenceFilter(forms.Form):
    """What of the evidence to list. A value that is not known is no filter."""

    tenant = forms.SlugField(required=False)
    kind = forms.ChoiceField(required=False, choices=[("", "every kind"), *Kind.choices])
    before = forms.IntegerField(required=False, min_value=1, max_value=2**53)


class ExportForm(forms.Form):
    """Which part of which chain to export; times are UTC."""

    tenant = forms.ModelChoiceField(
        queryset=Tenant.objects.none(), to_field_name="slug", error_messages={"required": "Choose a tenant."}
    )
    since = forms.CharField(required=False, max_length=40)
    until = forms.CharField(required=False, max_length=40)

    def clean_since(self) -> datetime | None:
        return _instant(self.cleaned_data["since"])

    def clean_until(self) -> datetime | None:
        return _instant(self.cleaned_data["until"])


def _instant(text: str) -> datetime | None:
    """An ISO 8601 instant, in UTC unless it says otherwise."""
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise forms.ValidationError("Write the time as 2030-01-31T12:00, in UTC.") from None
    if not 1000 <= found.year <= 9998:  # beyond, UTC may not exist and RFC 3339 would lack a digit
        raise forms.ValidationError("Write a year from 1000 to 9998.")
    return found if found.tzinfo else found.replace(tzinfo=UTC)
