//! Tests of path migration.
