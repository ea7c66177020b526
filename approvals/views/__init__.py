"""Pages of approvals: each view loads, calls one service, translates one typed error and renders."""
