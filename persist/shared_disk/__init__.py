"""The storage mode of a shared file system: its log, fence, opener, dead logs and reaper."""
