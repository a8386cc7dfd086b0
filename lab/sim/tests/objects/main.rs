//! The store of a data server on a virtual disk.

mod checkpoint;
mod crash;
mod cuts;
mod damage;
mod full;
mod give_up;
mod object_life;
