"""What the adapters of trainers share: settings, running environments, the preflight, statistics."""
