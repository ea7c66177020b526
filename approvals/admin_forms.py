"""Forms of Django admin. They clean as the services do, so that what is wrong is said beside its field."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from django import forms
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError

from approvals import evidence, setup
from approvals.errors import Invalid
from approvals.models import Endpoint, Membership, PolicyRevision, Role, Tenant, User
from approvals.policy import PolicyError, load_document, parse_rules
from hermes_portal import canonical
from hermes_portal.hermes import network

if TYPE_CHECKING:
    Form = forms.ModelForm[Any]
else:
    Form = forms.ModelForm

T = TypeVar("T")
V = TypeVar("V")


def cleaned(clean: Callable[[T], V], value: T) -> V:
    """A service's `Invalid` as the form's own error."""
    try:
        return clean(value)
    except Invalid as error:
        raise ValidationError(list(error.errors.values())) from error


def _secret(label: str, help_text: str) -> forms.CharField:
    """Write-only: what is stored or was typed is never put into a page."""
    widget = forms.PasswordInput(render_value=False, attrs={"autocomplete": "new-password"})
    return forms.CharField(label=label, help_text=help_text, widget=widget, required=False, strip=False)


def _roles(help_text: str) -> forms.MultipleChoiceField:
    return forms.MultipleChoiceField(
        choices=Role.choices, widget=forms.CheckboxSelectMultiple, required=False, help_text=help_text
    )


class TenantForm(Form):
    """A new tenant."""

    class Meta:
        model = Tenant
        fields = ("slug", "name")

    def clean_slug(self) -> str:
        slug: str = self.cleaned_data["slug"]
        if slug == evidence.SYSTEM:
            raise ValidationError("This slug is the name of the portal's own chain.")
        return slug


class NewAccountForm(Form):
    """A new account with its first roles."""

    new_password = _secret("Password", "At least 8 characters. Without one nobody can sign in yet.")
    tenant = forms.ModelChoiceField(Tenant.objects.none())
    roles = _roles("Roles never imply each other.")

    class Meta:
        model = User
        fields = ("username",)

    def clean_username(self) -> str:
        return cleaned(setup.clean_username, self.cleaned_data["username"])

    def clean_new_password(self) -> str:
        return _good_password(self.cleaned_data["new_password"], self.instance)

    def clean_roles(self) -> list[str]:
        if not self.cleaned_data["roles"]:
            raise ValidationError("Give at least one role: an account without any belongs to no tenant.")
        return list(self.cleaned_data["roles"])


class AccountForm(Form):
    """Deactivates an account or gives it a new password."""

    new_password = _secret(
        "New password", "Leave empty to keep the present one. Evidence says who replaced it."
    )

    class Meta:
        model = User
        fields = ("is_active",)

    def clean_new_password(self) -> str:
        return _good_password(self.cleaned_data["new_password"], self.instance)


def _good_password(password: str, user: User) -> str:
    if password:
        validate_password(password, user)
    return password


class NewMembershipForm(Form):
    """Gives roles to an account; those that it holds stay."""

    roles = _roles("Nobody gives a role to themselves.")

    class Meta:
        model = Membership
        fields = ("tenant", "user")

    def clean_roles(self) -> list[str]:
        if not self.cleaned_data["roles"]:
            raise ValidationError("Give at least one role.")
        return list(self.cleaned_data["roles"])


class MembershipForm(Form):
    """All roles of one account in one tenant."""

    roles = _roles("What is not ticked is taken away; none at all ends the membership.")

    class Meta:
        model = Membership
        fields = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        held = setup.roles(self.instance.user, self.instance.tenant)
        self.initial["roles"] = [role.value for role in held]


class EndpointForm(Form):
    """An endpoint; its token is written and never read."""

    new_token = _secret("Token", "16 to 512 visible ASCII characters. Leave empty to keep the present one.")
    allow_networks = forms.CharField(
        label="Allowed private networks",
        help_text="One network a line, such as 10.1.2.0/24. Without any, only public addresses are reached.",
        widget=forms.Textarea(attrs={"rows": 3, "cols": 40}),
        required=False,
    )
    check_now = forms.BooleanField(
        label="Look whether it answers",
        help_text="Reads health and capabilities after saving, with the token.",
        required=False,
    )

    class Meta:
        model = Endpoint
        fields = ("tenant", "endpoint_id", "base_url", "approval_wait", "enabled")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.present_url = self.instance.base_url
        self.initial["allow_networks"] = "\n".join(self.instance.allow_networks)

    def clean_endpoint_id(self) -> str:
        return cleaned(setup.clean_endpoint_id, self.cleaned_data["endpoint_id"])

    def clean_base_url(self) -> str:
        return cleaned(setup.clean_base_url, self.cleaned_data["base_url"])

    def clean_approval_wait(self) -> int:
        return cleaned(setup.clean_approval_wait, self.cleaned_data["approval_wait"])

    def clean_allow_networks(self) -> list[str]:
        return cleaned(setup.clean_networks, self.cleaned_data["allow_networks"].split())

    def clean_new_token(self) -> str:
        token: str = self.cleaned_data["new_token"]
        return cleaned(setup.clean_token, token) if token else ""

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        if "new_token" in self.errors or "base_url" not in values or values.get("new_token"):
            return values
        if not self.present_url:
            self.add_error("new_token", "A new endpoint needs a token.")
        elif network.origin(values["base_url"]) != network.origin(self.present_url):
            self.add_error("new_token", setup.OTHER_ORIGIN)
        return values


class PolicyForm(Form):
    """A pasted policy document, which becomes the next revision."""

    document = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 24, "cols": 100, "spellcheck": "false"}),
        help_text="All rules of the tenant, not only the new ones. docs/policy.md says what a document holds.",
        strip=False,
    )
    language = forms.ChoiceField(choices=[("toml", "TOML"), ("json", "JSON")], initial="toml")

    class Meta:
        model = PolicyRevision
        fields = ("tenant", "reason")
        widgets = {"reason": forms.Textarea(attrs={"rows": 3, "cols": 100})}

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        if "document" in values and "language" in values:
            self._read(values)
        return values

    def _read(self, values: dict[str, Any]) -> None:
        """Puts the parsed document in place of its text, or says what is wrong with it."""
        try:
            raw = values["document"].encode()
            values["document"] = load_document(raw, f"pasted.{values['language']}")
            rules = parse_rules(values["document"]).canonical()
        except (PolicyError, UnicodeEncodeError) as error:
            self.add_error("document", str(error))
            return
        tenant = values.get("tenant")
        present = setup.policy_in_force(tenant) if tenant else None
        if present and present.digest == canonical.digest(rules):
            self.add_error("document", f"Revision {present.number} says this already. Nothing would change.")
