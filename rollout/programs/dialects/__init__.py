"""How programs write requests and read answers: chat completions, Responses, Messages."""
