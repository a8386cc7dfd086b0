//! Addresses: looking up, in both directions.

use std::ffi::{c_char, c_int};
use std::ptr;

use ropewalk_net::{Address, modules};

use super::{ask, put, text};
use crate::addresses::{Handle, URL_BYTES_MAX, reachable_parts};
use crate::errors::{self, EINVAL, ENAMETOOLONG, ENOPROTOOPT, EPROTO, ErrorCode};
use crate::library::{self, Library};
use crate::range;

/// The address of a URL, or of a list of them. No connection is made before something is posted.
///
/// # Safety
/// `new_addr` may be written, `id_string` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn BMI_addr_lookup(new_addr: *mut Handle, id_string: *const c_char) -> c_int {
    // SAFETY: the caller vouches for it.
    let url = match unsafe { text(id_string) } {
        Ok(Some(url)) if !new_addr.is_null() => url,
        Ok(_) => return -EINVAL,
        Err(error) => return error,
    };
    if url.len() >= URL_BYTES_MAX {
        return -ENAMETOOLONG;
    }
    ask(|library| {
        let handle = look_up(library, url)?;
        // SAFETY: the caller vouches for it.
        unsafe { put(new_addr, handle) };
        Ok(0)
    })
}

fn look_up(library: &Library, url: &str) -> Result<Handle, ErrorCode> {
    if let Some(handle) = library.addresses().looked_up(url) {
        return Ok(handle);
    }
    let parts = reachable_parts(url, &modules::schemes());
    if parts.is_empty() {
        return Err(-ENOPROTOOPT);
    }
    if !parts.iter().all(|(scheme, url)| modules::makes_sense(scheme, place(url))) {
        return Err(-EINVAL);
    }
    let all: Vec<&str> = parts.iter().map(|(_, url)| url.as_str()).collect();
    if let Ok(address) = Address::parse(&all.join(",")) {
        library.endpoint.reach_apart(&address).map_err(|error| library::refusal(&error))?;
    }
    // Networks that this process cannot use are passed over, where there is another.
    let (mut urls, mut refused) = (Vec::new(), None);
    for (scheme, url) in &parts {
        match library.activate(scheme, place(url)) {
            Ok(()) => urls.push(url.as_str()),
            Err(error) => refused = Some(error),
        }
    }
    if let Some(error) = refused.filter(|_| urls.is_empty()) {
        return Err(error);
    }
    let address = Address::parse(&urls.join(",")).map_err(|_| -EINVAL)?;
    let mut addresses = library.addresses();
    // Another thread may have been faster.
    if let Some(handle) = addresses.looked_up(url) {
        return Ok(handle);
    }
    let peer = library.endpoint.lookup(&address).map_err(errors::of_fault)?;
    Ok(addresses.add(url, peer))
}

/// A URL without its scheme.
fn place(url: &str) -> &str {
    url.split_once("://").map_or("", |(_, place)| place)
}

/// The URL of an address that was looked up; null for others. The library's until the address is dropped.
#[unsafe(no_mangle)]
pub extern "C" fn BMI_addr_rev_lookup(addr: Handle) -> *const c_char {
    let url = |library: &Library| library.addresses().url(addr).map(|url| url.as_ptr());
    library::with(url).flatten().unwrap_or(ptr::null())
}

/// The host of an address, never null. The library's until the address is dropped.
#[unsafe(no_mangle)]
pub extern "C" fn BMI_addr_rev_lookup_unexpected(addr: Handle) -> *const c_char {
    let host = |library: &Library| {
        library.addresses().host(&library.endpoint, addr).map(|host| host.as_ptr())
    };
    library::with(host).flatten().unwrap_or(c"UNKNOWN".as_ptr())
}

/// Whether an address is one that a pattern means: 1, or 0. `netmask`: bits that count, -1 for wildcards.
///
/// # Safety
/// `id_string` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn BMI_query_addr_range(
    addr: Handle,
    id_string: *const c_char,
    netmask: c_int,
) -> c_int {
    // SAFETY: the caller vouches for it.
    let pattern = match unsafe { text(id_string) } {
        Ok(Some(pattern)) => pattern,
        Ok(None) => return -EINVAL,
        Err(error) => return error,
    };
    if pattern.len() >= URL_BYTES_MAX {
        return -ENAMETOOLONG;
    }
    ask(|library| {
        let endpoint = &library.endpoint;
        let (schemes, host) = {
            let mut addresses = library.addresses();
            let schemes = addresses.schemes(endpoint, addr);
            let host = addresses.host(endpoint, addr).map(|host| host.to_string_lossy());
            // Shared memory knows no hosts.
            let nowhere = || (!schemes.is_empty()).then(String::new);
            let host = host.map(|host| host.into_owned()).or_else(nowhere).ok_or(-EPROTO)?;
            (schemes, host)
        };
        range::contains(pattern, netmask, &schemes, &host).map(c_int::from)
    })
}
