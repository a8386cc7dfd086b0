//! The kernels and their sizes.

/// A kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// Integer sort.
    Is,
    /// Fourier transforms.
    Ft,
    /// A wavefront like that of LU.
    Lu,
}

/// A size, as the NAS benchmarks name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    S,
    W,
    A,
    B,
}

impl Kernel {
    pub const ALL: [Kernel; 3] = [Kernel::Is, Kernel::Ft, Kernel::Lu];

    pub fn name(self) -> &'static str {
        match self {
            Kernel::Is => "is",
            Kernel::Ft => "ft",
            Kernel::Lu => "lu",
        }
    }

    pub fn named(name: &str) -> Option<Kernel> {
        Kernel::ALL.into_iter().find(|kernel| kernel.name() == name)
    }
}

impl Class {
    pub const ALL: [Class; 4] = [Class::S, Class::W, Class::A, Class::B];

    pub fn name(self) -> &'static str {
        match self {
            Class::S => "s",
            Class::W => "w",
            Class::A => "a",
            Class::B => "b",
        }
    }

    /// Whether a kernel of this size takes so little time that the first messages of its processes count.
    pub fn wants_warming(self) -> bool {
        matches!(self, Class::S | Class::W)
    }

    pub fn named(name: &str) -> Option<Class> {
        Class::ALL.into_iter().find(|class| class.name() == name)
    }
}
