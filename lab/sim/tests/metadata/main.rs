//! The metadata store on a virtual disk.

mod crash;
mod damage;
mod full;
mod members;
mod shared_voter;
mod store_life;
mod votes;
