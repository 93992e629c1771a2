//! The real program behind a real PgBouncer.
