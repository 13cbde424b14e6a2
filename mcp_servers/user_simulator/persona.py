"""Who a user is that a model or a person plays. Data only, from Python or from JSON."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from mcp_servers.user_simulator.scenario import Answer


class Persona(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    persona: str
    """Who they are, and how they talk."""
    goal: str
    """What they want, which the agent has to find out."""
    opening: str | None = None
    """What they say first; None leaves it to whoever plays them."""
    stop: str = "what you want has been done, or the assistant has made clear that it cannot be done"
    """When they leave."""
    patience: int = Field(default=3, ge=0)
    """How many messages in a row may bring them no further; at the next one they leave."""
    gives_up: str = "This is not getting me anywhere. Goodbye."
    at_a_loss: str = "I do not see how that helps me."
    """Said where a message brings them no further and they have no words of their own."""
    farewell: str = "Thank you. Goodbye."
    """Said where they leave without a word."""
    max_replies: int = Field(default=15, ge=1)
    answers: tuple[Answer, ...] = ()
    """To questions that servers ask within calls: the first that fits is given, the rest declined."""
