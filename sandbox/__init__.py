"""Local systemd hosts for the demo, for molecule and for trying things out."""
