"""What every package uses: errors, validation, locks, interrupts, progress, devices, downloads."""
