//! The identity of this host, for peers that want to know whether they share memory.

/// A number that is the same for all processes of one kernel and network namespace; 0 where it
/// cannot be told. Only a hint: a rail proves that memory is shared.
pub fn host_number() -> u64 {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id");
    // Threads of a process can be in several.
    let namespace = std::fs::read_link("/proc/thread-self/ns/net");
    match (boot, namespace) {
        (Ok(boot), Ok(namespace)) => {
            let low = ropewalk_base::checksum::crc32c(&boot);
            let name = namespace.as_os_str().as_encoded_bytes();
            let high = ropewalk_base::checksum::append(low, name);
            (u64::from(high) << 32 | u64::from(low)) | 1
        }
        _ => 0,
    }
}

/// Randomness of the operating system, for identities and seeds.
pub fn random_seed() -> u64 {
    let mut bytes = [0u8; 8];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    assert_eq!(filled, Ok(8), "the kernel has randomness for eight bytes");
    u64::from_ne_bytes(bytes)
}

/// Whether this host tells whose process is at the other end of a connection over TCP within it.
pub fn tells_users() -> bool {
    ropewalk_rail_tcp::tells_users()
}

/// The groups of a user, his own first, as the host's name services have them; none where they know none.
/// Asked of `id`, which knows all of the services. Blocks for some milliseconds.
pub fn groups_of(user: u32) -> Vec<u32> {
    use std::process::{Command, Stdio};
    let mut command = Command::new("id");
    command.args(["-G", "--", &user.to_string()]).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let text = text.unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
}

pub use ropewalk_rail::host::interface_of;
