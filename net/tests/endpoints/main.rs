//! Endpoints beside each other, over every medium. One program for all of them: separate ones would compile the same
//! code again.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/stranger.rs"]
mod stranger;

mod atomics;
mod audiences;
mod calls;
mod copies;
mod credit;
mod crossing;
mod cut;
mod events;
mod fair;
mod faults;
mod foreign;
mod fragments;
mod group;
mod idle_links;
mod interrupted;
mod keys;
mod locks;
mod messages;
mod names;
mod need;
mod nodes;
mod ordering;
mod pathless;
mod probe;
mod puts;
mod regions;
mod sealed;
mod sealed_packets;
mod settle;
mod several;
mod standing;
mod strided;
mod unconfirmed;
mod unreached;
