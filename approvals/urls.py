"""Addresses of the queue, approvals, actions, evidence and endpoints."""

from django.urls import path

from approvals.views import actions, approvals, endpoints, evidence, health, queue

urlpatterns = [
    path("", queue.queue, name="home"),
    path("approvals/", queue.queue, name="queue"),
    path("approvals/<uuid:pk>/", approvals.approval, name="approval"),
    path("approvals/<uuid:pk>/decide/", approvals.decide, name="decide"),
    path("approvals/<uuid:pk>/withdraw/", approvals.withdraw, name="withdraw"),
    path("approvals/<uuid:pk>/revoke/", approvals.revoke, name="revoke"),
    path("approvals/<uuid:pk>/exact/", approvals.exact, name="exact"),
    path("approvals/<uuid:pk>/aside/", approvals.aside, name="aside"),
    path("requests/", actions.requests, name="requests"),
    path("actions/<uuid:pk>/", actions.action, name="action"),
    path("actions/<uuid:pk>/close/", actions.close, name="close"),
    path("evidence/", evidence.evidence, name="evidence"),
    path("evidence/export/", evidence.export, name="export"),
    path("endpoints/", endpoints.endpoints, name="endpoints"),
    path("endpoints/<str:endpoint_id>/capabilities/", endpoints.capabilities, name="capabilities"),
    path("healthz", health.healthz, name="healthz"),
]
