"""The coordinator: Flower ServerApp, round loop and strategies (never imports torch)."""
