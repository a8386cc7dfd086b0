use ropewalk_base::descriptor::NODES_HERE_MAX;
use ropewalk_base::random::Random;

use super::*;

/// A type as the standard describes it: each element with its displacement, and what its bounds come from.
#[derive(Debug, Clone, Default)]
struct Model {
    map: Vec<(i64, Element)>,
    /// From a lower to an upper bound; true: set by `resized`.
    spans: Vec<(i64, i64, bool)>,
}

impl Model {
    fn of(element: Element) -> Model {
        let spans = vec![(0, element.shape().extent as i64, false)];
        Model { map: vec![(0, element)], spans }
    }

    fn bounds(&self) -> (i64, i64) {
        let is_set = self.spans.iter().any(|span| span.2);
        let counted = || self.spans.iter().filter(|span| span.2 == is_set);
        let lower = counted().map(|span| span.0).min().unwrap_or(0);
        (lower, counted().map(|span| span.1).max().unwrap_or(0))
    }

    fn extent(&self) -> i64 {
        self.bounds().1 - self.bounds().0
    }

    /// Copies of models, each moved.
    fn joined(parts: &[(i64, Model)]) -> Model {
        let mut all = Model::default();
        for (by, part) in parts {
            all.map.extend(part.map.iter().map(|(at, it)| (at + by, *it)));
            all.spans.extend(part.spans.iter().map(|span| (span.0 + by, span.1 + by, span.2)));
        }
        all
    }

    /// The same as a struct, which ends where an element could follow.
    fn rounded(mut self) -> Model {
        let (lower, upper) = self.bounds();
        let alignment = self.map.iter().map(|(_, it)| alignment(*it)).max().unwrap_or(1);
        let whole = (upper - lower).div_euclid(alignment) * alignment;
        let over = if whole < upper - lower { alignment } else { 0 };
        if !self.spans.is_empty() {
            self.spans.push((lower, lower + whole + over, false));
        }
        self
    }

    /// Instances side by side, from a displacement on, for each block.
    fn blocks(&self, blocks: &[(u64, i64)]) -> Model {
        let extent = self.extent();
        let each = |(count, at): &(u64, i64)| {
            let at = *at;
            (0..*count).map(move |number| (at + number as i64 * extent, self.clone()))
        };
        Model::joined(&blocks.iter().flat_map(each).collect::<Vec<_>>())
    }

    /// The bytes of `count` instances, in their order.
    fn bytes(&self, count: u64) -> Vec<i64> {
        let mut bytes = Vec::new();
        for number in 0..count as i64 {
            for (at, element) in &self.map {
                let at = at + number * self.extent();
                let shape = element.shape();
                bytes.extend((0..shape.value as i64).map(|byte| at + byte));
                if let Some(index) = shape.index_at {
                    bytes.extend((0..4).map(|byte| at + index as i64 + byte));
                }
            }
        }
        bytes
    }
}

fn alignment(element: Element) -> i64 {
    match element {
        Element::I8 | Element::U8 | Element::Bool | Element::Byte => 1,
        Element::I16 | Element::U16 => 2,
        Element::I64 | Element::U64 | Element::F64 | Element::Complex64 => 8,
        Element::F64Index | Element::I64Index => 8,
        Element::LongDouble | Element::LongDoubleIndex => 16,
        _ => 4,
    }
}

fn bytes(of: &Descriptor, count: u64) -> Vec<i64> {
    of.pieces(count, 0).flat_map(|it| it.offset..it.offset + it.bytes as i64).collect()
}

fn compare(made: &Datatype, model: &Model, what: &str) {
    for count in 0..4 {
        assert_eq!(bytes(made.descriptor(), count), model.bytes(count), "{count} of {what}");
    }
    let (lower, upper) = model.bounds();
    assert_eq!((made.lower_bound(), made.extent()), (lower, upper - lower), "{what}");
    let all = model.bytes(1);
    assert_eq!(made.size(), all.len() as u64);
    let bounds = all.iter().min().map_or(0..0, |first| *first..all.iter().max().unwrap() + 1);
    assert_eq!(made.true_bounds(), bounds, "{what}");
    let kinds: Vec<Element> = model.map.iter().map(|(_, element)| *element).collect();
    let class = match kinds.as_slice() {
        [] => Class::Nothing,
        [first, rest @ ..] if rest.iter().all(|it| it == first) => Class::One(*first),
        _ => Class::Mixed,
    };
    assert_eq!(made.class(), class, "{what}");
    let is_one = class != Class::Mixed;
    assert_eq!(made.elements(), is_one.then_some(kinds.len() as u64));
    if is_one {
        let whole = |(at, it): &(i64, Element)| *at..at + it.shape().extent as i64;
        let padded: Vec<i64> = model.map.iter().flat_map(whole).collect();
        assert_eq!(bytes(made.padded(), 1), padded, "{what}");
    }
}

/// A type and its model, of at most `depth` constructors.
fn random(random: &mut Random, depth: u32) -> (Datatype, Model, String) {
    let below = |random: &mut Random, limit: u64| random.next_u64() % limit;
    if depth == 0 || below(random, 8) == 0 {
        let element = Element::ALL[below(random, Element::ALL.len() as u64) as usize];
        return (Datatype::of(element), Model::of(element), format!("{element:?}"));
    }
    let (one, model, name) = self::random(random, depth - 1);
    let extent = model.extent();
    let (count, length) = (below(random, 4), below(random, 3));
    let stride = below(random, 9) as i64 - 4;
    let blocks: Vec<(u64, i64)> =
        (0..count).map(|_| (below(random, 3), below(random, 40) as i64 - 20)).collect();
    let by_extent = |blocks: &[(u64, i64)]| -> Vec<(u64, i64)> {
        blocks.iter().map(|(count, at)| (*count, at * extent)).collect()
    };
    match below(random, 8) {
        0 => {
            let made = one.contiguous(count).unwrap();
            (made, model.blocks(&[(count, 0)]), format!("{count} {name}"))
        }
        1 => {
            let at: Vec<_> = (0..count as i64).map(|it| (length, it * stride * extent)).collect();
            let made = one.vector(count, length, stride).unwrap();
            (made, model.blocks(&at), format!("vector {count} {length} {stride} {name}"))
        }
        2 => {
            let at: Vec<_> = (0..count as i64).map(|it| (length, it * stride)).collect();
            let made = one.hvector(count, length, stride).unwrap();
            (made, model.blocks(&at), format!("hvector {count} {length} {stride} {name}"))
        }
        3 => {
            let made = one.indexed(&blocks).unwrap();
            (made, model.blocks(&by_extent(&blocks)), format!("indexed {blocks:?} {name}"))
        }
        4 => {
            let made = one.hindexed(&blocks).unwrap();
            (made, model.blocks(&blocks), format!("hindexed {blocks:?} {name}"))
        }
        5 => {
            let (lower, bytes) = (stride, below(random, 40) as i64);
            let made = one.resized(lower, bytes).unwrap();
            let spans = vec![(lower, lower + bytes, true)];
            (made, Model { spans, ..model }, format!("resized {lower} {bytes} {name}"))
        }
        6 => {
            let (other, other_model, other_name) = self::random(random, depth - 1);
            let (a, b) = (below(random, 30) as i64, below(random, 30) as i64);
            let made = Datatype::structure(&[(1, a, &one), (length, b, &other)]).unwrap();
            let parts = [(0, model.blocks(&[(1, a)])), (0, other_model.blocks(&[(length, b)]))];
            let joined = Model::joined(&parts).rounded();
            (made, joined, format!("struct {a} ({name}), {length} at {b} ({other_name})"))
        }
        _ => {
            let at: Vec<i64> = blocks.iter().map(|(_, at)| *at).collect();
            let each: Vec<_> = at.iter().map(|at| (length, at * extent)).collect();
            let made = one.indexed_block(length, &at).unwrap();
            (made, model.blocks(&each), format!("blocks of {length} at {at:?} {name}"))
        }
    }
}

#[test]
fn predefined_types_have_their_data_and_their_padding() {
    for element in Element::ALL {
        compare(&Datatype::of(element), &Model::of(element), &format!("{element:?}"));
    }
    assert_eq!(Datatype::of(Element::F64Index).size(), 12);
    assert_eq!(Datatype::of(Element::F64Index).extent(), 16);
    assert_eq!(Datatype::of(Element::I16Index).true_bounds(), 0..8);
}

#[test]
fn data_of_derived_types_are_those_of_a_model_in_the_same_order() {
    let mut source = Random::from_seed(11);
    for _ in 0..3000 {
        let depth = 1 + (source.next_u64() % 3) as u32;
        let (made, model, name) = random(&mut source, depth);
        compare(&made, &model, &name);
    }
}

#[test]
fn subarrays_take_their_part_of_the_array_in_both_orders() {
    let element = Element::I32;
    for order in [Order::C, Order::Fortran] {
        let dimensions = [(4, 2, 1), (5, 3, 2), (3, 1, 1)];
        let made = Datatype::of(element).subarray(&dimensions, order).unwrap();
        let mut want = Vec::new();
        let (a, b, c) = (1..3, 2..5, 1..2);
        match order {
            Order::C => {
                for (x, y, z) in
                    a.flat_map(|x| b.clone().flat_map(move |y| (1..2).map(move |z| (x, y, z))))
                {
                    want.push((((x * 5 + y) * 3 + z) * 4, element));
                }
            }
            Order::Fortran => {
                for (z, y, x) in
                    c.flat_map(|z| b.clone().flat_map(move |y| (1..3).map(move |x| (z, y, x))))
                {
                    want.push((((z * 5 + y) * 4 + x) * 4, element));
                }
            }
        }
        let model = Model { map: want, spans: vec![(0, 240, true)] };
        compare(&made, &model, &format!("{order:?}"));
    }
    let empty = Datatype::of(element).subarray(&[(4, 0, 4), (5, 5, 0)], Order::C).unwrap();
    assert_eq!((empty.size(), empty.extent(), empty.class()), (0, 80, Class::Nothing));
    let outside = Datatype::of(element).subarray(&[(4, 1, 0), (5, 3, 3)], Order::C).unwrap_err();
    assert_eq!(
        outside.to_string(),
        "a subarray has 3 elements from 3 on in dimension 1, of an array with 5"
    );
}

#[test]
fn a_struct_is_as_long_as_a_c_compiler_makes_it_unless_it_is_resized() {
    let (byte, number) = (Datatype::of(Element::I8), Datatype::of(Element::F64));
    let made = Datatype::structure(&[(1, 0, &number), (1, 8, &byte)]).unwrap();
    assert_eq!((made.size(), made.extent()), (9, 16));
    let made = Datatype::structure(&[(1, 0, &number), (1, 8, &byte.resized(0, 1).unwrap())]);
    // The mark of one part counts for all.
    assert_eq!((made.as_ref().unwrap().lower_bound(), made.unwrap().extent()), (8, 1));
}

#[test]
fn what_reaches_too_far_or_has_too_many_pieces_is_refused() {
    let number = Datatype::of(Element::F64);
    let far = Err(TypeError::Malformed(Malformed::TooFar));
    assert_eq!(number.contiguous(u64::MAX).map(drop), far);
    assert_eq!(number.contiguous(1 << 54).map(drop), far);
    assert_eq!(number.vector(2, 1, i64::MAX).map(drop), far);
    assert_eq!(number.hvector(u64::MAX, 1, i64::MIN).map(drop), far);
    assert_eq!(number.hindexed(&[(1, i64::MAX)]).map(drop), far);
    assert_eq!(number.resized(i64::MIN, i64::MIN).map(drop), far);
    assert_eq!(number.subarray(&[(1 << 40, 1, 0), (1 << 40, 1, 0)], Order::C).map(drop), far);
    let most = NODES_HERE_MAX as i64;
    let many: Vec<i64> = (0..=most).map(|it| it * 3).collect();
    let error = number.indexed_block(1, &many).unwrap_err();
    assert_eq!(error, TypeError::Malformed(Malformed::TooMany));
    assert!(error.to_string().contains("more than 1048576 pieces"), "{error}");
    let most = number.indexed_block(1, &many[1..]).unwrap();
    assert_eq!(most.size(), 8 << 20);
    assert!(most.indexed_block(1, &[0, most.extent()]).is_err());
}

/// Sections have the bytes of their type, in the same order, and none of them is too long.
#[test]
fn a_long_type_travels_in_sections_that_have_its_bytes() {
    let pair = Datatype::of(Element::F64Index);
    let irregular = |many: i64| -> Vec<(u64, i64)> {
        (0..many).map(|it| (1 + it as u64 % 3, it * 5 - 70 + it % 2)).collect()
    };
    let long = pair.indexed(&irregular(3000)).unwrap();
    let short = pair.indexed(&irregular(400)).unwrap();
    let types = [
        long.clone(),
        short.clone(),
        long.vector(2, 2, 3).unwrap(),
        Datatype::structure(&[(3, 8, &short), (2, 700_000, &long), (5, -9_000_000, &pair)])
            .unwrap(),
        long.resized(-16, 400_000).unwrap(),
    ];
    for (at, datatype) in types.iter().enumerate() {
        for padded in [false, true] {
            let of = if padded { datatype.padded() } else { datatype.descriptor() };
            let (mut found, mut numbers) = (Vec::new(), Vec::new());
            let told = datatype.travel(padded, 1000, 2, |part| {
                assert!(part.shape.may_travel());
                assert_eq!(part.from, found.len() as u64);
                let bytes = part.shape.pieces(part.count, 0);
                let bytes = bytes.flat_map(|it| it.offset..it.offset + it.bytes as i64);
                found.extend(bytes.map(|it| it + part.address));
                assert_eq!(part.bytes, found.len() as u64 - part.from);
                assert!(!padded || part.bytes.is_multiple_of(16), "whole elements");
                numbers.push(part.number);
                if numbers.len() > 400 { Err(()) } else { Ok(()) }
            });
            assert_eq!(told, Ok(()));
            let wanted: Vec<i64> = bytes(of, 2).into_iter().map(|it| it + 1000).collect();
            assert!(found == wanted, "{at} {padded}");
            assert_eq!(numbers.len() == 1, of.may_travel(), "{at} {padded}");
        }
    }
    assert_eq!(long.travel(false, 0, 2, |_| Err(7)), Err(7));
}

#[test]
fn negative_bounds_are_kept() {
    let number = Datatype::of(Element::I32);
    let made = number.vector(3, 2, -4).unwrap();
    assert_eq!(made.true_bounds(), -32..8);
    assert_eq!((made.lower_bound(), made.extent()), (-32, 40));
    assert_eq!(made.dup().inner.number, made.inner.number);
    assert_ne!(number.vector(3, 2, -4).unwrap().inner.number, made.inner.number);
}
