//! One snapshot as exposition text.
