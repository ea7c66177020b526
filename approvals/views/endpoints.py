"""Endpoints of one's tenants and what each of them can be asked."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from approvals import access, operations
from approvals.models import Endpoint
from hermes_portal import clock
from hermes_portal.hermes import capabilities as table


@require_safe
def endpoints(request: HttpRequest) -> HttpResponse:
    """The servers, with what was last seen of each."""
    rows = (
        access.scoped(Endpoint.objects.all(), request.user)
        .select_related("tenant", "seen")
        .order_by("endpoint_id")
    )
    return render(
        request,
        "approvals/endpoints.html",
        {"section": "endpoints", "endpoints": list(rows), "now": clock.now()},
    )


@require_safe
def capabilities(request: HttpRequest, endpoint_id: str) -> HttpResponse:
    """The thirteen ids and contracts of one endpoint, as a page or, by Accept, as JSON."""
    endpoint = access.get_or_404(
        Endpoint.objects.select_related("tenant", "seen"), request.user, endpoint_id=endpoint_id
    )
    contracts = table.as_json(endpoint.endpoint_id)
    if request.get_preferred_type(["text/html", "application/json"]) == "application/json":
        return JsonResponse(
            {"endpoint_id": endpoint.endpoint_id, "tenant": endpoint.tenant.slug, "capabilities": contracts}
        )
    rows = [
        {"json": contract, "contract": table.CONTRACTS[name], "offered": operations.offered(name)}
        for name, contract in zip(table.CONTRACTS, contracts, strict=True)
    ]
    return render(
        request, "approvals/capabilities.html", {"section": "endpoints", "endpoint": endpoint, "rows": rows}
    )
