//! The query.
