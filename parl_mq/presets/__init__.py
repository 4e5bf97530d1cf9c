"""Published presets, one TOML file each."""
