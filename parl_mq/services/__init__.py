"""One asyncio service a role."""
