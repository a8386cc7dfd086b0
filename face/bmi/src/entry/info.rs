//! Options, set and asked for.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering;

use ropewalk_net::{RailOption, modules};

use super::{ask, code};
use crate::addresses::{Handle, peer_of};
use crate::errors::{EINVAL, ENETDOWN, ENOMEM, ENOSYS, ErrorCode};
use crate::library::{self, Library};
use crate::options::number as option;
use crate::unexpected::UNEXPECTED_BYTES_MAX;

/// Sets an option; see bmi.h. Options that we do not know are passed over.
///
/// # Safety
/// `inout_parameter` points to what the option says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn BMI_set_info(
    addr: Handle,
    option: c_int,
    inout_parameter: *mut c_void,
) -> c_int {
    ask(|library| {
        if addr == 0 && !library.is_active() {
            return Err(-EINVAL);
        }
        let value = || {
            let value = inout_parameter.cast::<c_int>();
            // SAFETY: these options have an int; null is refused.
            if value.is_null() { Err(-EINVAL) } else { Ok(unsafe { value.read_unaligned() }) }
        };
        let bytes = || value().and_then(|value| u32::try_from(value).map_err(|_| -EINVAL));
        let endpoint = &library.endpoint;
        let known = |known: bool| if known { Ok(0) } else { Err(-EINVAL) };
        match option {
            option::INC_ADDR_REF => known(library.addresses().refer(addr)),
            option::DEC_ADDR_REF => known(library.addresses().release(endpoint, addr)),
            option::DROP_ADDR | option::TCP_CLOSE_SOCKET => {
                known(library.addresses().forget(endpoint, addr))
            }
            option::TCP_BUFFER_SEND_SIZE => {
                endpoint.set_option("tcp", RailOption::SendBufferBytes(bytes()?));
                Ok(0)
            }
            option::TCP_BUFFER_RECEIVE_SIZE => {
                endpoint.set_option("tcp", RailOption::ReceiveBufferBytes(bytes()?));
                Ok(0)
            }
            option::TCP_CHECK_UNEXPECTED => {
                library.options.checks_unexpected.store(value()? != 0, Ordering::Relaxed);
                Ok(0)
            }
            option::TRUSTED_CONNECTION => {
                eprintln!(
                    "libbmi: lists of trusted hosts and ports are not supported; use a firewall, \
                     or BMI_query_addr_range"
                );
                Err(-ENOSYS)
            }
            _ => Ok(0),
        }
    })
}

/// Asks about an option; see bmi.h. The list of transport methods is available before the library is
/// initialized, too.
///
/// # Safety
/// `inout_parameter` points to what the option says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn BMI_get_info(
    addr: Handle,
    option: c_int,
    inout_parameter: *mut c_void,
) -> c_int {
    if option == option::CHECK_INIT {
        let active = library::with(Library::is_active).unwrap_or(false);
        return if active { 0 } else { -ENETDOWN };
    }
    if matches!(
        option,
        option::TRANSPORT_METHODS_STRING | option::TRANSPORT_METHODS_STRING_ORANGEFS
    ) {
        return code(methods_string(inout_parameter.cast()));
    }
    ask(|library| {
        if inout_parameter.is_null() {
            return Err(-EINVAL);
        }
        let int = |value: i64| {
            let value = value.clamp(0, i64::from(c_int::MAX)) as c_int;
            // SAFETY: not null, and these options have an int.
            unsafe { inout_parameter.cast::<c_int>().write_unaligned(value) };
            Ok(0)
        };
        match option {
            option::CHECK_MAXSIZE => int(library.options.message_bytes_max),
            option::GET_UNEXP_SIZE => {
                int(UNEXPECTED_BYTES_MAX.min(library.options.message_bytes_max))
            }
            option::WHY_UNREACHABLE => {
                if !library.endpoint.is_known(peer_of(addr)) {
                    return Err(-EINVAL);
                }
                let why = library.endpoint.why_unreachable(peer_of(addr));
                // SAFETY: not null, and the option has a pointer.
                unsafe { put_text(inout_parameter.cast(), why.as_deref()) }?;
                Ok(why.is_some().into())
            }
            option::TCP_GET_PORT => match library.port() {
                Some(port) => int(port.into()),
                None => Err(-ENETDOWN),
            },
            option::DROP_ADDR_QUERY => int(library.addresses().is_droppable(addr).into()),
            option::GET_METH_ADDR => {
                if !library.endpoint.is_known(peer_of(addr)) {
                    return Err(-EINVAL);
                }
                let opaque = ptr::without_provenance_mut::<c_void>(addr as usize);
                // SAFETY: not null, and the option has a pointer.
                unsafe { inout_parameter.cast::<*mut c_void>().write_unaligned(opaque) };
                Ok(0)
            }
            _ => Err(-ENOSYS),
        }
    })
}

// SAFETY: this is the signature of the C library.
unsafe extern "C" {
    /// The allocator that callers free strings with.
    fn malloc(bytes: usize) -> *mut c_void;
}

/// Writes the names of all modules, which the caller frees; their count.
fn methods_string(to: *mut *mut c_char) -> Result<c_int, ErrorCode> {
    if to.is_null() {
        return Err(-EINVAL);
    }
    let schemes = modules::schemes();
    let text: String = schemes.iter().map(|scheme| format!("{scheme},")).collect();
    // SAFETY: not null, and the option has a pointer.
    unsafe { put_text(to, Some(&text)) }?;
    Ok(schemes.len() as c_int)
}

/// Writes a copy of a text, which the caller frees; null where there is none.
///
/// # Safety
/// `to` may be written.
unsafe fn put_text(to: *mut *mut c_char, text: Option<&str>) -> Result<(), ErrorCode> {
    let mut copy = ptr::null_mut();
    if let Some(text) = text {
        // SAFETY: any number of bytes may be asked for.
        copy = unsafe { malloc(text.len() + 1) }.cast::<u8>();
        if copy.is_null() {
            return Err(-ENOMEM);
        }
        // SAFETY: the copy has room for the text and its end.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr(), copy, text.len());
            copy.add(text.len()).write(0);
        }
    }
    // SAFETY: the caller vouches for it.
    unsafe { to.write_unaligned(copy.cast()) };
    Ok(())
}
