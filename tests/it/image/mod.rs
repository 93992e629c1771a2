//! The image that is shipped, in a real engine: `make image-test`.
//!
//! Every container has a read-only root, no capabilities and no way to new privileges.

mod build;
mod contents;
mod docker;
mod memory;
mod names;
mod process;
#[path = "../../../benches/support/resident.rs"]
mod resident;
mod sbom;
mod secure;
