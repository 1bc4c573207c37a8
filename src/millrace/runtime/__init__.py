"""The runtime: what producers and workers use. asyncio lives here and above, nowhere below."""
