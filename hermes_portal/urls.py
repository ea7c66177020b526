"""All addresses. They are stable; who gets what from each is tests/test_sealing_table.py."""

from allauth.account import views as accounts
from django.urls import URLPattern, URLResolver, include, path

from approvals import admin

# Only these of allauth's pages exist: no sign-up, no e-mail, no reset by mail.
_account_patterns: list[URLPattern] = [
    path("login/", accounts.login, name="account_login"),
    path("logout/", accounts.logout, name="account_logout"),
    path("inactive/", accounts.account_inactive, name="account_inactive"),
    path("signup/", accounts.signup, name="account_signup"),
    path("reauthenticate/", accounts.reauthenticate, name="account_reauthenticate"),
    path("password/change/", accounts.password_change, name="account_change_password"),
]

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("approvals.urls")),
    path("runs/", include("runs.urls")),
    path("accounts/", include(_account_patterns)),
    path("admin/", admin.site.urls),
]

handler400 = "approvals.views.frame.bad_request"
handler403 = "approvals.views.frame.forbidden"
handler404 = "approvals.views.frame.not_found"
handler500 = "approvals.views.frame.server_error"
