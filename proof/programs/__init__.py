"""Programs that tests start as processes of their own, in order to kill them."""
