"""The wire of both sides: the gateway, its server and the kit for servers import it, and it imports none of them."""
