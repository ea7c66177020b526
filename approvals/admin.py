"""Django admin: where tenants, accounts, roles, endpoints and policy are set up by hand.

Sealed (rule 12): an admin sees, chooses from and reads the history of their own tenants only, and what is missing or
foreign is the same 404. Nothing is deleted, nothing is done in bulk, every save goes through approvals/setup.py and
so has its evidence, and nobody gives a role to themselves.

A superuser is the operator of the installation: sees the configuration of every tenant here, adds tenants, and brings
an account of one tenant into another. It is no role: a superuser sees no approval, run or evidence, and decides
nothing, unless somebody else makes them a member. Accounts that belong to a further tenant can be seen by each of
their admins and changed by the superuser only: a new password would open the other tenant too.
"""

import json
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any

from allauth.account.decorators import secure_admin_login
from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import models, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.utils.html import format_html

from approvals import access, admin_forms, setup
from approvals.errors import Denied, Invalid
from approvals.evidence import Actor
from approvals.models import Endpoint, EndpointStatus, Membership, PolicyRevision, Role, Tenant, User

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin

FILTER_ENDINGS = (
    "",
    "__exact",
    "__id__exact",
    "__isnull",
)  # what Django's own list filters put into an address


def person(request: HttpRequest) -> User:
    """Who is signed in; the site has let nobody else in."""
    if not isinstance(request.user, User):
        raise PermissionDenied
    return request.user


def administered(user: User) -> models.QuerySet[Tenant]:
    """The tenants whose configuration a person may see and change here."""
    if user.is_active and user.is_superuser:
        return Tenant.objects.all()
    return access.tenants(user, Role.ADMIN)


class PortalAdmin(admin.AdminSite):
    """Lets in active staff who are admin of some tenant, and superusers. Signing in happens on the portal's page."""

    site_title = site_header = "Hermes approval portal"
    index_title = "Set-up"
    site_url = "/"

    def has_permission(self, request: HttpRequest) -> bool:
        user = request.user
        if not isinstance(user, User) or not user.is_active or not user.is_staff:
            return False
        return user.is_superuser or administered(user).exists()

    def admin_view(self, view: Any, cacheable: bool = False) -> Any:
        """As Django's, and who is signed in without being an admin is told so instead of asked to sign in."""
        sealed = super().admin_view(view, cacheable)

        def inner(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if request.user.is_authenticated and not self.has_permission(request):
                raise PermissionDenied
            response: HttpResponseBase = sealed(request, *args, **kwargs)
            return response

        return update_wrapper(inner, view)

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Goes to /accounts/login/: one way to sign in, with its limits on attempts."""
        if request.user.is_authenticated and not self.has_permission(request):
            raise PermissionDenied
        response: HttpResponse = secure_admin_login(super().login)(request, extra_context)
        return response

    def password_change(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        return redirect("account_change_password")


site = PortalAdmin(name="admin")


class SealedAdmin(ModelAdmin):
    """The base of every page here: scoped, without deletion and bulk actions, saved by a service."""

    actions = None
    view_on_site = False
    list_per_page = 50
    readonly = False

    def scope(self, user: User) -> models.Q:
        """Which rows belong to the person's tenants."""
        return models.Q(tenant__in=administered(user))

    def saved(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> models.Model:
        """Calls the service and returns the row."""
        raise NotImplementedError

    # --- what there is

    def get_queryset(self, request: HttpRequest) -> models.QuerySet[Any]:
        return super().get_queryset(request).filter(self.scope(person(request)))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """The row. A foreign id, an unknown one and one that is no id raise the same Http404."""
        found = super().get_object(request, object_id, from_field)
        if found is None:
            raise Http404("Not found.")
        return found

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Only the filters on the page: a lookup across tables could be asked about what cannot be seen."""
        filters: Any = self.list_filter
        offered = {one if isinstance(one, str) else one[0] for one in filters}
        return lookup in {f"{name}{ending}" for name in offered for ending in FILTER_ENDINGS}

    def formfield_for_foreignkey(
        self, db_field: models.ForeignKey[Any, Any], request: HttpRequest, **kwargs: Any
    ) -> Any:
        if db_field.related_model is Tenant:
            kwargs["queryset"] = administered(person(request)).order_by("name")
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    # --- what may be done

    def has_module_permission(self, request: HttpRequest) -> bool:
        return site.has_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        if not site.has_permission(request):
            return False
        return obj is None or self.get_queryset(request).filter(pk=obj.pk).exists()

    def has_add_permission(self, request: HttpRequest) -> bool:
        return site.has_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return not self.readonly and self.has_view_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    # --- saving

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        row = self.saved(request, obj, form, change)
        obj.pk, obj._state.adding, obj._state.db = row.pk, False, row._state.db
        if type(obj)._default_manager.filter(pk=row.pk).exists():
            obj.refresh_from_db()

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """What a service refuses at the last moment, because somebody was faster, is said on the page."""
        try:
            return super().changeform_view(request, *args, **kwargs)
        except Invalid as error:
            said = " ".join(error.errors.values())
        except Denied as error:
            said = error.sentence
        self.message_user(request, said, messages.ERROR)
        return HttpResponseRedirect(request.get_full_path())

    def by(self, request: HttpRequest) -> Actor:
        return Actor.user(person(request))


class TenantAdmin(SealedAdmin):
    """Added by a superuser, never changed: its slug is the name of its evidence."""

    form = admin_forms.TenantForm
    readonly = True
    list_display = ("slug", "name", "created_at")
    fields = ("slug", "name")

    def scope(self, user: User) -> models.Q:
        return models.Q(pk__in=administered(user))

    def has_add_permission(self, request: HttpRequest) -> bool:
        return super().has_add_permission(request) and person(request).is_superuser

    def saved(self, request: HttpRequest, obj: Tenant, form: Any, change: bool) -> Tenant:
        return setup.add_tenant(slug=obj.slug, name=obj.name, by=self.by(request))


class UserAdmin(SealedAdmin):
    """Accounts of one's tenants: made with their first roles, deactivated, given a new password."""

    list_display = ("username", "is_active", "last_login")
    list_filter = ("is_active",)
    search_fields = ("username",)
    ordering = ("username",)

    def scope(self, user: User) -> models.Q:
        if user.is_active and user.is_superuser:
            return models.Q()
        return models.Q(pk__in=Membership.objects.filter(tenant__in=administered(user)).values("user"))

    def has_change_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """Not one's own account (that is /accounts/password/change/), and none that reaches further than oneself."""
        if not super().has_change_permission(request, obj):
            return False
        me = person(request)
        if obj is None or me.is_superuser:
            return obj is None or obj != me
        elsewhere = obj.memberships.exclude(tenant__in=administered(me)).exists()
        return obj != me and not obj.is_superuser and not elsewhere

    def get_form(
        self, request: HttpRequest, obj: User | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        kwargs["form"] = admin_forms.AccountForm if obj else admin_forms.NewAccountForm
        form = super().get_form(request, obj, change, **kwargs)
        if obj is None:
            tenant = form.base_fields["tenant"]
            assert isinstance(tenant, forms.ModelChoiceField)
            tenant.queryset = administered(person(request)).order_by("name")
        return form

    def get_fields(self, request: HttpRequest, obj: User | None = None) -> Any:
        if obj is None:
            return ("username", "new_password", "tenant", "roles")
        if not self.has_change_permission(request, obj):
            return ("username", "is_active", "held")
        return ("username", "is_active", "new_password", "held")

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> Any:
        return ("username", "held") if obj else ()

    @admin.display(description="Roles")
    def held(self, user: User) -> str:
        """Where the page's reader is admin; other tenants stay unnamed."""
        return (
            ", ".join(f"{row.get_role_display()} of {row.tenant}" for row in self._memberships_shown(user))
            or "-"
        )

    def _memberships_shown(self, user: User) -> list[Membership]:
        return getattr(user, "shown", [])

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        user = super().get_object(request, object_id, from_field)
        rows = Membership.objects.filter(user=user, tenant__in=administered(person(request)))
        user.shown = list(rows.select_related("tenant").order_by("tenant__name", "role"))
        return user

    def saved(self, request: HttpRequest, obj: User, form: Any, change: bool) -> User:
        values = form.cleaned_data
        password = values["new_password"] or None
        if change:
            present = User.objects.get(pk=obj.pk)
            return setup.change_user(
                user=present, active=values["is_active"], password=password, by=self.by(request)
            )
        user = setup.add_user(values["username"], password, by=self.by(request))
        setup.set_roles(user=user, tenant=values["tenant"], roles=values["roles"], by=self.by(request))
        return user


class MembershipAdmin(SealedAdmin):
    """Roles. One row is one role; its page shows all roles of that account in that tenant."""

    list_display = ("user", "role", "tenant")
    list_filter = ("role", ("tenant", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("user", "tenant")
    search_fields = ("user__username",)
    ordering = ("tenant__name", "user__username", "role")

    def get_form(
        self, request: HttpRequest, obj: Membership | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        kwargs["form"] = admin_forms.MembershipForm if obj else admin_forms.NewMembershipForm
        return super().get_form(request, obj, change, **kwargs)

    def get_fields(self, request: HttpRequest, obj: Membership | None = None) -> Any:
        return ("tenant", "user", "roles")

    def get_readonly_fields(self, request: HttpRequest, obj: Membership | None = None) -> Any:
        return ("tenant", "user") if obj else ()

    def formfield_for_foreignkey(
        self, db_field: models.ForeignKey[Any, Any], request: HttpRequest, **kwargs: Any
    ) -> Any:
        """Accounts of one's own tenants; only a superuser brings one from elsewhere. Never oneself."""
        if db_field.related_model is User:
            me = person(request)
            reachable = User.objects.filter(is_active=True).exclude(pk=me.pk)
            if not me.is_superuser:
                mine = Membership.objects.filter(tenant__in=administered(me))
                reachable = reachable.filter(pk__in=mine.values("user"))
            kwargs["queryset"] = reachable.order_by("username")
        return super().formfield_for_foreignkey(db_field, request, **kwargs)

    def saved(self, request: HttpRequest, obj: Membership, form: Any, change: bool) -> Membership:
        roles = [*form.cleaned_data["roles"], *([] if change else setup.roles(obj.user, obj.tenant))]
        setup.set_roles(user=obj.user, tenant=obj.tenant, roles=roles, by=self.by(request))
        rows = Membership.objects.filter(user=obj.user, tenant=obj.tenant)
        return rows.filter(pk=obj.pk).first() or rows.first() or obj

    def render_change_form(self, request: HttpRequest, context: dict[str, Any], **kwargs: Any) -> Any:  # type: ignore[override]
        context["show_save_and_continue"] = False  # the row may be the role that is taken away
        return super().render_change_form(request, context, **kwargs)


class EndpointAdmin(SealedAdmin):
    """Hermes servers. A change of what is trusted makes what was asked before it stale (rule 3)."""

    form = admin_forms.EndpointForm
    list_display = ("endpoint_id", "tenant", "base_url", "enabled", "health")
    list_filter = ("enabled", ("tenant", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("tenant", "seen")
    search_fields = ("endpoint_id", "base_url")
    ordering = ("endpoint_id",)
    seen_fields = (
        "revision",
        "credential_revision",
        "created_at",
        "health",
        "version",
        "features",
        "checked_at",
        "detail",
    )

    def get_fieldsets(self, request: HttpRequest, obj: Endpoint | None = None) -> Any:
        trusted = ["tenant", "endpoint_id", "base_url", "new_token", "approval_wait", "allow_networks"]
        if obj is None:
            return [(None, {"fields": [*trusted, "check_now"]})]
        return [
            (None, {"fields": [*trusted, "enabled", "check_now"]}),
            ("Seen there", {"fields": self.seen_fields}),
        ]

    def get_readonly_fields(self, request: HttpRequest, obj: Endpoint | None = None) -> Any:
        return ("tenant", "endpoint_id", *self.seen_fields) if obj else ()

    def saved(self, request: HttpRequest, obj: Endpoint, form: Any, change: bool) -> Endpoint:
        values = form.cleaned_data
        given = {name: values[name] for name in ("base_url", "approval_wait", "allow_networks")}
        if change:
            endpoint = setup.change_endpoint(
                endpoint=Endpoint.objects.get(pk=obj.pk),
                token=values["new_token"] or None,
                enabled=values["enabled"],
                by=self.by(request),
                **given,
            )
        else:
            endpoint = setup.add_endpoint(
                tenant=values["tenant"],
                endpoint_id=values["endpoint_id"],
                token=values["new_token"],
                by=self.by(request),
                **given,
            )
        if values["check_now"]:
            transaction.on_commit(partial(self._check, request, endpoint))
        return endpoint

    def _check(self, request: HttpRequest, endpoint: Endpoint) -> None:
        """After the commit: no network call inside a transaction."""
        seen = setup.check_endpoint(endpoint, by=self.by(request))
        good = seen.health == EndpointStatus.Health.OK
        said = f"{endpoint.endpoint_id}: {seen.get_health_display().lower()}. {seen.detail}".rstrip()
        self.message_user(request, said, messages.SUCCESS if good else messages.WARNING)

    @admin.display
    def health(self, endpoint: Endpoint) -> str:
        return endpoint.seen.get_health_display()

    @admin.display
    def version(self, endpoint: Endpoint) -> str:
        return endpoint.seen.version or "-"

    @admin.display
    def features(self, endpoint: Endpoint) -> str:
        return ", ".join(sorted(name for name, there in endpoint.seen.features.items() if there)) or "-"

    @admin.display
    def checked_at(self, endpoint: Endpoint) -> Any:
        return endpoint.seen.checked_at

    @admin.display
    def detail(self, endpoint: Endpoint) -> str:
        return endpoint.seen.detail or "-"


class PolicyRevisionAdmin(SealedAdmin):
    """Policy: read, and replaced as a whole by pasting a document with a reason."""

    form = admin_forms.PolicyForm
    readonly = True
    list_display = ("tenant", "number", "reason", "author", "created_at")
    list_filter = (("tenant", admin.RelatedOnlyFieldListFilter),)
    list_select_related = ("tenant", "author")
    ordering = ("tenant__name", "-number")

    def get_fields(self, request: HttpRequest, obj: PolicyRevision | None = None) -> Any:
        if obj is None:
            return ("tenant", "language", "document", "reason")
        return ("tenant", "number", "reason", "author", "created_at", "digest", "document")

    def get_readonly_fields(self, request: HttpRequest, obj: PolicyRevision | None = None) -> Any:
        return ("document",) if obj else ()

    @admin.display(description="Rules")
    def document(self, revision: PolicyRevision) -> str:
        return format_html("<pre>{}</pre>", json.dumps(revision.rules, indent=2, ensure_ascii=False))

    def saved(self, request: HttpRequest, obj: PolicyRevision, form: Any, change: bool) -> PolicyRevision:
        values = form.cleaned_data
        return setup.load_policy(
            tenant=values["tenant"],
            document=values["document"],
            reason=values["reason"],
            author=person(request),
            by=self.by(request),
        )


PAGES: dict[type[models.Model], type[SealedAdmin]] = {
    Tenant: TenantAdmin,
    User: UserAdmin,
    Membership: MembershipAdmin,
    Endpoint: EndpointAdmin,
    PolicyRevision: PolicyRevisionAdmin,
}
for model, page in PAGES.items():
    site.register(model, page)
