//! Operation codes.

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// The operation that a request asks for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Opcode {
            $($(#[$doc])* $name = $code,)*
        }

        impl Opcode {
            /// All codes that are known here, in the order of their numbers.
            pub const ALL: &[Opcode] = &[$(Opcode::$name,)*];

            /// The opcode with this number, if there is one.
            #[inline]
            pub fn from_number(number: u32) -> Option<Opcode> {
                match number {
                    $($code => Some(Opcode::$name),)*
                    _ => None,
                }
            }
        }
    };
}

opcodes! {
    Lookup = 1,
    Forget = 2,
    GetAttributes = 3,
    SetAttributes = 4,
    ReadLink = 5,
    SymbolicLink = 6,
    MakeNode = 8,
    MakeDirectory = 9,
    Unlink = 10,
    RemoveDirectory = 11,
    Rename = 12,
    Link = 13,
    Open = 14,
    Read = 15,
    Write = 16,
    StatFs = 17,
    Release = 18,
    Fsync = 20,
    SetXattr = 21,
    GetXattr = 22,
    ListXattr = 23,
    RemoveXattr = 24,
    Flush = 25,
    Init = 26,
    OpenDirectory = 27,
    ReadDirectory = 28,
    ReleaseDirectory = 29,
    FsyncDirectory = 30,
    GetLock = 31,
    SetLock = 32,
    SetLockWait = 33,
    Access = 34,
    Create = 35,
    Interrupt = 36,
    BlockMap = 37,
    Destroy = 38,
    Ioctl = 39,
    Poll = 40,
    NotifyReply = 41,
    BatchForget = 42,
    Fallocate = 43,
    ReadDirectoryPlus = 44,
    Rename2 = 45,
    Seek = 46,
    CopyFileRange = 47,
    /// Only virtio-fs asks this.
    SetupMapping = 48,
    /// Only virtio-fs asks this.
    RemoveMapping = 49,
    SyncFs = 50,
    TemporaryFile = 51,
    Statx = 52,
    CopyFileRange64 = 53,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_each_others_inverse() {
        for opcode in Opcode::ALL {
            assert_eq!(Opcode::from_number(*opcode as u32), Some(*opcode));
        }
        for unknown in [0, 7, 19, 54, 4096, u32::MAX] {
            assert_eq!(Opcode::from_number(unknown), None);
        }
    }
}
