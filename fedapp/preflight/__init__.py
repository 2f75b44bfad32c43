"""What a hospital's operator learns before joining: `fedapp site check`."""
