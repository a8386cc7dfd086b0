//! The handlers of SIGSEGV and SIGBUS.
//!
//! A handler of ours has the flags and the mask of the one that was there before, as far as they fit: the kernel then does for
//! that one what it would have done.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{
    AtomicPtr,
    Ordering::{Acquire, Release},
};

use super::routines;

/// The actions that were there before. They are never freed: a handler may be in one at any time.
static SEGMENT: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());
static BUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// Flags of the earlier action that ours has, too.
const KEPT_FLAGS: c_int = libc::SA_NODEFER | libc::SA_RESTART;

/// Installs both handlers; once for a process.
pub fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| [libc::SIGSEGV, libc::SIGBUS].into_iter().for_each(install_for));
}

fn install_for(signal: c_int) {
    // SAFETY: an action is plain data, for which zeros are the default; the calls read and write the actions that they are given,
    // and our handler has the type that the flags say.
    unsafe {
        let mut earlier: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(signal, ptr::null(), &mut earlier) != 0 {
            return;
        }
        // The handler may run as soon as it is installed.
        earlier_of(signal).store(Box::into_raw(Box::new(earlier)), Release);
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = handle as *const () as usize;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | earlier.sa_flags & KEPT_FLAGS;
        ours.sa_mask = earlier.sa_mask;
        libc::sigaction(signal, &ours, ptr::null_mut());
    }
}

fn earlier_of(signal: c_int) -> &'static AtomicPtr<libc::sigaction> {
    if signal == libc::SIGBUS { &BUS } else { &SEGMENT }
}

/// Ends a routine whose instruction met memory that is not there. Everything else is the earlier handler's.
extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel calls this with an information and a context, which nobody else has.
    unsafe {
        // Of a signal that somebody sent no instruction is the cause.
        let is_fault = (*info).si_code > 0;
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let at = &mut registers[libc::REG_RIP as usize];
        if is_fault && routines::instructions().contains(&(*at as usize)) {
            *at = routines::recovery() as i64;
            return;
        }
        hand_on(signal, info, context);
    }
}

/// Gives a signal to the one who would have had it.
///
/// # Safety
/// Called by the handler, with what the kernel gave it.
unsafe fn hand_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let earlier = earlier_of(signal).load(Acquire);
    // SAFETY: an action that was stored is never freed or changed. Its handler has the type that its flags say.
    unsafe {
        let action = earlier.as_ref();
        let handler = action.map_or(libc::SIG_DFL, |action| action.sa_sigaction);
        let flags = action.map_or(0, |action| action.sa_flags);
        let is_sent = (*info).si_code <= 0;
        // The kernel ignores no fault.
        if handler == libc::SIG_DFL || handler == libc::SIG_IGN && !is_sent {
            reset(signal);
            if is_sent {
                // No instruction brings it about again.
                libc::raise(signal);
            }
            return;
        }
        if handler == libc::SIG_IGN {
            return;
        }
        if flags & libc::SA_RESETHAND != 0 {
            reset(signal);
        }
        if flags & libc::SA_SIGINFO != 0 {
            type Informed = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
            std::mem::transmute::<usize, Informed>(handler)(signal, info, context);
        } else {
            std::mem::transmute::<usize, extern "C" fn(c_int)>(handler)(signal);
        }
    }
}

/// From now on the signal does what it does where nobody handles it: at its instruction the fault happens again.
///
/// # Safety
/// None: `sigaction` may be called in a handler.
unsafe fn reset(signal: c_int) {
    // SAFETY: as in `install_for`; zeros are the default action.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, &default, ptr::null_mut());
    }
}
