//! The metadata store on a virtual disk.

mod crash;
mod damage;
mod full;
mod store_life;
