//! The kernel FT of the NAS benchmarks: a heat equation by Fourier transforms in three dimensions, of slabs that members
//! have.

use std::f64::consts::PI;
use std::ops::{Add, Mul, Sub};

use anyhow::ensure;

use crate::paths::kernels::class::Class;
use crate::paths::kernels::group::{Group, Word, part};
use crate::paths::kernels::random::Random;

/// The strength of diffusion.
const ALPHA: f64 = 1e-6;
/// Points that a checksum adds up.
const SUMMED: usize = 1024;
/// The largest relative difference from the published values.
const TOLERANCE: f64 = 1e-12;

/// A complex number.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Complex(f64, f64);

impl Add for Complex {
    type Output = Complex;
    fn add(self, other: Complex) -> Complex {
        Complex(self.0 + other.0, self.1 + other.1)
    }
}

impl Sub for Complex {
    type Output = Complex;
    fn sub(self, other: Complex) -> Complex {
        Complex(self.0 - other.0, self.1 - other.1)
    }
}

impl Mul for Complex {
    type Output = Complex;
    fn mul(self, other: Complex) -> Complex {
        Complex(self.0 * other.0 - self.1 * other.1, self.0 * other.1 + self.1 * other.0)
    }
}

/// The lengths of the axes x, y, z, and the published checksums of the steps.
type Problem = ([usize; 3], &'static [(f64, f64)]);

fn problem(class: Class) -> Problem {
    match class {
        Class::S => (
            [64, 64, 64],
            &[
                (554.608_700_496_4, 484.536_333_197_8),
                (554.638_540_918_9, 486.530_426_951_1),
                (554.614_840_617_1, 488.391_072_233_6),
                (554.542_360_741_5, 490.127_316_904_6),
                (554.425_503_962_4, 491.747_585_799_3),
                (554.268_341_190_2, 493.259_724_494_1),
            ],
        ),
        Class::W => (
            [128, 128, 32],
            &[
                (567.361_217_894_4, 529.324_684_917_5),
                (563.143_688_527_1, 528.214_998_662_9),
                (559.402_408_997_0, 527.099_655_803_7),
                (556.069_804_702_0, 526.002_790_492_5),
                (553.089_899_125_0, 524.940_084_563_3),
                (550.415_973_453_8, 523.921_224_708_6),
            ],
        ),
        Class::A => (
            [256, 256, 128],
            &[
                (504.673_500_819_3, 511.404_790_551_0),
                (505.941_231_973_4, 509.880_966_643_3),
                (506.937_689_628_7, 509.814_404_221_3),
                (507.789_286_847_4, 510.133_613_075_9),
                (508.523_309_539_1, 510.491_465_519_4),
                (509.148_709_995_9, 510.791_784_280_3),
            ],
        ),
        Class::B => (
            [512, 256, 256],
            &[
                (517.764_357_157_9, 507.780_345_859_7),
                (515.452_129_126_3, 508.824_943_159_9),
                (514.640_922_864_9, 509.620_891_265_9),
                (514.237_875_621_3, 510.102_338_761_9),
                (513.962_666_773_7, 510.397_661_061_7),
                (513.742_346_008_2, 510.594_801_980_2),
                (513.554_705_687_8, 510.740_416_578_3),
                (513.391_092_546_6, 510.857_657_366_1),
                (513.247_070_539_0, 510.957_727_852_3),
                (513.119_772_998_4, 511.046_030_448_3),
                (513.007_031_928_3, 511.125_243_380_0),
                (512.907_053_703_2, 511.196_807_771_8),
                (512.818_288_350_2, 511.261_623_306_4),
                (512.739_373_338_3, 511.320_360_555_1),
                (512.669_106_202_0, 511.373_592_809_3),
                (512.606_427_600_4, 511.421_846_054_8),
                (512.550_407_657_0, 511.465_613_976_0),
                (512.500_233_172_0, 511.505_359_596_6),
                (512.455_195_184_6, 511.541_513_040_7),
                (512.414_677_002_9, 511.574_469_221_1),
            ],
        ),
    }
}

/// Transforms of one length, a power of two.
struct Plan {
    /// Powers of the root of unity.
    roots: Vec<Complex>,
    /// Where each place goes before the first pass.
    swaps: Vec<(usize, usize)>,
}

impl Plan {
    fn new(len: usize) -> Plan {
        let root = |power: usize| {
            let angle = 2.0 * PI * power as f64 / len as f64;
            Complex(angle.cos(), angle.sin())
        };
        let bits = len.trailing_zeros();
        let turned = |place: usize| place.reverse_bits() >> (usize::BITS - bits);
        let swaps = (0..len).map(|place| (place, turned(place)));
        Plan {
            roots: (0..len / 2).map(root).collect(),
            swaps: swaps.filter(|(one, other)| one < other).collect(),
        }
    }

    /// Transforms values in place, without a factor; `forward` decides the sign of the exponent.
    fn transform(&self, values: &mut [Complex], forward: bool) {
        for (one, other) in &self.swaps {
            values.swap(*one, *other);
        }
        let len = values.len();
        let mut half = 1;
        while half < len {
            let stride = len / (2 * half);
            for block in values.chunks_exact_mut(2 * half) {
                let (low, high) = block.split_at_mut(half);
                let roots = self.roots.iter().step_by(stride);
                for ((low, high), root) in low.iter_mut().zip(high).zip(roots) {
                    let root = if forward { *root } else { Complex(root.0, -root.1) };
                    let turned = *high * root;
                    (*low, *high) = (*low + turned, *low - turned);
                }
            }
            half *= 2;
        }
    }
}

/// A member's slab of planes: in space of the axis z, of frequencies of the axis x.
struct Slab {
    lens: [usize; 3],
    members: usize,
    /// Planes along z and x that are this member's.
    own_z: std::ops::Range<usize>,
    own_x: std::ops::Range<usize>,
    plans: [Plan; 3],
}

impl Slab {
    /// The transform from space, stored as `[z][y][x]`, to frequencies, stored as `[x][y][z]`.
    fn forward(&self, group: &mut Group, mut values: Vec<Complex>) -> anyhow::Result<Vec<Complex>> {
        self.planes(&mut values, true);
        let mut values = self.exchange(group, &values, true)?;
        let along_z = values.chunks_exact_mut(self.lens[2]);
        along_z.for_each(|line| self.plans[2].transform(line, true));
        Ok(values)
    }

    /// The way back.
    fn inverse(&self, group: &mut Group, mut values: Vec<Complex>) -> anyhow::Result<Vec<Complex>> {
        let along_z = values.chunks_exact_mut(self.lens[2]);
        along_z.for_each(|line| self.plans[2].transform(line, false));
        let mut values = self.exchange(group, &values, false)?;
        self.planes(&mut values, false);
        Ok(values)
    }

    /// Transforms of planes of x and y.
    fn planes(&self, values: &mut [Complex], forward: bool) {
        let [nx, ny, _] = self.lens;
        let mut column = vec![Complex::default(); ny];
        for plane in values.chunks_exact_mut(nx * ny) {
            plane.chunks_exact_mut(nx).for_each(|line| self.plans[0].transform(line, forward));
            for x in 0..nx {
                for (y, place) in column.iter_mut().enumerate() {
                    *place = plane[y * nx + x];
                }
                self.plans[1].transform(&mut column, forward);
                for (y, value) in column.iter().enumerate() {
                    plane[y * nx + x] = *value;
                }
            }
        }
    }

    /// Slabs of z become slabs of x, or the other way round: each member gives each other one what they have in common.
    fn exchange(
        &self,
        group: &mut Group,
        values: &[Complex],
        to_x: bool,
    ) -> anyhow::Result<Vec<Complex>> {
        let [nx, ny, nz] = self.lens;
        let (own, length) = match to_x {
            true => (self.own_z.len(), nx),
            false => (self.own_x.len(), nz),
        };
        // In both layouts a line of the last axis is cut among members, and becomes the first axis.
        let blocks = (0..self.members).map(|member| {
            let places = part(length, member, self.members);
            let mut bytes = Vec::with_capacity(own * ny * places.len() * 16);
            for line in values.chunks_exact(length) {
                for value in &line[places.clone()] {
                    value.0.put(&mut bytes);
                    value.1.put(&mut bytes);
                }
            }
            bytes
        });
        let blocks = blocks.collect();
        let (mine, other) = match to_x {
            true => (self.own_x.len(), nz),
            false => (self.own_z.len(), nx),
        };
        let len_of = |member: usize| part(other, member, self.members).len() * ny * mine * 16;
        let lens: Vec<usize> = (0..self.members).map(len_of).collect();
        let found = group.all_to_all_v(blocks, &lens)?;
        let mut result = vec![Complex::default(); mine * ny * other];
        for (member, bytes) in found.iter().enumerate() {
            let mut numbers = bytes.chunks_exact(16);
            for far in part(other, member, self.members) {
                for y in 0..ny {
                    for near in 0..mine {
                        let Some(number) = numbers.next() else { break };
                        let value = Complex(f64::get(&number[..8]), f64::get(&number[8..]));
                        result[(near * ny + y) * other + far] = value;
                    }
                }
            }
        }
        Ok(result)
    }

    /// How much each frequency of this member fades in a step.
    fn fading(&self) -> Vec<f64> {
        let [nx, ny, nz] = self.lens;
        // Frequencies above the half count from below.
        let square = |place: usize, len: usize| {
            let signed = (place + len / 2) % len;
            let distance = signed as f64 - (len / 2) as f64;
            distance * distance
        };
        let mut factors = Vec::with_capacity(self.own_x.len() * ny * nz);
        for x in self.own_x.clone() {
            for y in 0..ny {
                for z in 0..nz {
                    let squares = square(x, nx) + square(y, ny) + square(z, nz);
                    factors.push((-4.0 * ALPHA * PI * PI * squares).exp());
                }
            }
        }
        factors
    }

    /// The sum over some points of space, which all members get.
    fn checksum(&self, group: &mut Group, values: &[Complex]) -> anyhow::Result<(f64, f64)> {
        let [nx, ny, nz] = self.lens;
        let mut sum = Complex::default();
        for point in 1..=SUMMED {
            let (x, y, z) = (point % nx, 3 * point % ny, 5 * point % nz);
            if self.own_z.contains(&z) {
                sum = sum + values[((z - self.own_z.start) * ny + y) * nx + x];
            }
        }
        let sums = group.all_sum(&[sum.0, sum.1])?;
        let points = (nx * ny * nz) as f64;
        Ok((sums[0] / points, sums[1] / points))
    }
}

/// Solves the problem of a class, and compares its checksums with the published ones.
///
/// # Errors
/// A checksum differs.
pub fn run(group: &mut Group, class: Class) -> anyhow::Result<()> {
    let (lens, wanted) = problem(class);
    let [nx, ny, nz] = lens;
    let (rank, members) = (group.rank(), group.size());
    let slab = Slab {
        lens,
        members,
        own_z: part(nz, rank, members),
        own_x: part(nx, rank, members),
        plans: lens.map(Plan::new),
    };
    let plane = nx * ny;
    let mut random = Random::after((2 * plane * slab.own_z.start) as u64);
    let mut value = || {
        let real = random.next();
        Complex(real, random.next())
    };
    let space: Vec<Complex> = (0..plane * slab.own_z.len()).map(|_| value()).collect();
    let fading = slab.fading();
    let mut frequencies = slab.forward(group, space)?;
    for (step, wanted) in wanted.iter().enumerate() {
        frequencies
            .iter_mut()
            .zip(&fading)
            .for_each(|(value, factor)| *value = Complex(value.0 * factor, value.1 * factor));
        let space = slab.inverse(group, frequencies.clone())?;
        let found = slab.checksum(group, &space)?;
        let is_close = |found: f64, wanted: f64| ((found - wanted) / wanted).abs() <= TOLERANCE;
        ensure!(
            is_close(found.0, wanted.0) && is_close(found.1, wanted.1),
            "FT: checksum {found:?} instead of {wanted:?} in step {}",
            step + 1
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::kernels::group::tests::together;

    #[test]
    fn the_published_checksums_come_out() {
        together(4, 1, |group| run(group, Class::S));
    }

    #[test]
    fn a_transform_and_its_inverse_multiply_by_the_length() {
        let plan = Plan::new(16);
        let given: Vec<Complex> = (0..16).map(|n| Complex(f64::from(n), 1.0)).collect();
        let mut values = given.clone();
        plan.transform(&mut values, true);
        assert!((values[0] - Complex(120.0, 16.0)).0.abs() < 1e-9);
        plan.transform(&mut values, false);
        for (value, given) in values.iter().zip(&given) {
            let rest = Complex(value.0 / 16.0, value.1 / 16.0) - *given;
            assert!(rest.0.abs() < 1e-12 && rest.1.abs() < 1e-12);
        }
    }
}
