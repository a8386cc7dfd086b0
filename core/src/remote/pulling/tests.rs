use ropewalk_base::slots::SlotId;

use super::*;

const MIB: u64 = 1 << 20;

fn link(rail: u8) -> LinkId {
    LinkId { rail, slot: SlotId { index: 0, generation: 1 } }
}

fn get(index: u32) -> OperationId {
    OperationId(SlotId { index, generation: 1 })
}

/// Reads a get over links with these rates in bytes a second; the bytes that each has read, and how long all took.
fn read(bytes: u64, rates: &[u64]) -> (Vec<u64>, Duration) {
    let (mut pulling, mut pulled) = (Pulling::default(), Pulled::new(bytes, rates.len()));
    pulling.begin(get(1), bytes);
    // Parts of each link in turn, with the times at which they end.
    let mut under_way: Vec<(Time, usize, u64)> = Vec::new();
    let mut free_at = vec![Time::ZERO; rates.len()];
    let mut read = vec![0; rates.len()];
    let mut now = Time::ZERO;
    loop {
        while let Some(next) = pulling.next() {
            let links = (0..rates.len()).map(|rail| link(rail as u8));
            let most = pulled.next_bytes(bytes);
            let Some((chosen, part)) = pulling.choose(links, most) else { break };
            assert!(part <= most);
            assert_eq!(u64::from(pulling.take(next, part, &mut pulled, bytes).bytes), part);
            let rail = usize::from(chosen.rail);
            pulling.asked(chosen, part, now);
            let begin = free_at[rail].max(now);
            free_at[rail] = begin + Duration::from_nanos(part * 1_000_000_000 / rates[rail]);
            under_way.push((free_at[rail], rail, part));
        }
        under_way.sort_unstable();
        if under_way.is_empty() {
            break;
        }
        let (end, rail, part) = under_way.remove(0);
        now = end;
        read[rail] += part;
        pulling.ended(link(rail as u8), part, true, now);
    }
    assert_eq!(read.iter().sum::<u64>(), bytes);
    assert_eq!(pulling.counts(None, None)[3], 0);
    (read, now.since(Time::ZERO))
}

#[test]
fn links_read_in_the_ratio_of_their_rates() {
    let fast = 125_000_000;
    for (rates, least) in
        [([fast, fast], 0.95), ([fast, fast / 10], 0.95), ([fast / 10, fast], 0.95)]
    {
        let (shares, took) = read(256 * MIB, &rates);
        let both = 256.0 * MIB as f64 / (rates[0] + rates[1]) as f64;
        let reached = both / took.as_secs_f64();
        println!("{rates:?}: {shares:?} in {took:?}, {reached:.3} of their sum");
        assert!(reached > least, "{rates:?}: {shares:?}, {reached:.3}");
    }
}

#[test]
fn a_short_get_does_not_wait_for_a_slow_link() {
    let (fast, slow) = (125_000_000, 1_250_000);
    for bytes in [1000, 2 * UNIT_BYTES, MIB, 8 * MIB] {
        let (_, alone) = read(bytes, &[fast]);
        let (_, both) = read(bytes, &[fast, slow]);
        // Until its rate is known the slow one has one part.
        let first = Duration::from_nanos(UNIT_BYTES * 1_000_000_000 / slow);
        assert!(both <= alone.max(first), "{bytes} bytes: {both:?}, alone {alone:?}");
    }
}

#[test]
fn a_part_that_came_back_goes_first_and_nothing_else_is_asked_for_twice() {
    let bytes = 10 * UNIT_BYTES + 5;
    let (mut pulling, mut pulled) = (Pulling::default(), Pulled::new(bytes, 1));
    pulling.begin(get(1), bytes);
    let mut seen = [0; 11];
    let mut given_back = false;
    while let Some(next) = pulling.next() {
        let fresh = pulled.next_bytes(bytes).min(2 * UNIT_BYTES);
        let len = if let Next::Again(..) = next { UNIT_BYTES } else { fresh };
        let part = pulling.take(next, len, &mut pulled, bytes);
        let index = (part.offset() / UNIT_BYTES) as usize;
        if index == 4 && !given_back {
            given_back = true;
            pulling.give_back(get(1), part);
            assert_eq!(pulling.next(), Some(Next::Again(get(1), part)), "it goes in two");
            continue;
        }
        seen[index] += part.bytes;
    }
    assert!(given_back);
    assert_eq!(seen.iter().map(|it| u64::from(*it)).sum::<u64>(), bytes);
    assert!(seen[4] == UNIT_BYTES as u32 && seen[5] == UNIT_BYTES as u32, "{seen:?}");
}

#[test]
fn gets_take_turns_and_one_that_ends_leaves_nothing() {
    let bytes = 4 * MIB;
    let (mut pulling, mut pulled) = (Pulling::default(), [Pulled::new(bytes, 2); 2]);
    (0..2).for_each(|index| pulling.begin(get(index), bytes));
    let mut order = Vec::new();
    for _ in 0..4 {
        let Some(next @ Next::Fresh(id)) = pulling.next() else { panic!("a fresh part") };
        pulling.take(next, UNIT_BYTES, &mut pulled[id.0.index as usize], bytes);
        order.push(id.0.index);
    }
    assert_eq!(order, [0, 1, 0, 1]);
    pulling.give_back(get(0), Part::new(0, 100));
    pulling.asked_by_frames(&mut pulled[0], 100);
    pulling.end(get(0), &mut pulled[0], bytes);
    assert_eq!(pulling.next(), Some(Next::Fresh(get(1))));
    assert_eq!(pulling.counts(None, Some(get(0))), [0, 0, 0, pulled[1].left(bytes)]);
}

#[test]
fn more_bytes_than_were_asked_for_by_frames_count_no_more() {
    let (mut pulling, mut pulled) = (Pulling::default(), Pulled::new(MIB, 1));
    pulling.begin(get(0), MIB);
    pulling.asked_by_frames(&mut pulled, 100);
    pulling.frames_came(&mut pulled, 60);
    pulling.frames_came(&mut pulled, 60);
    assert_eq!((pulled.by_frames, pulling.has_frame_room(BY_FRAMES_MAX)), (0, true));
}

#[test]
fn a_part_of_a_list_has_the_pieces_that_lie_in_it() {
    let lens = [UNIT_BYTES / 2, UNIT_BYTES, 0, UNIT_BYTES / 2 + 7];
    let piece =
        |(index, len): (usize, &u64)| RemoteSegment { offset: index as u64 * MIB, len: *len };
    let list: Vec<RemoteSegment> = lens.iter().enumerate().map(piece).collect();
    let bytes = lens.iter().sum();
    let first = Part::new(0, UNIT_BYTES);
    let half = UNIT_BYTES / 2;
    let segment = |offset, len| RemoteSegment { offset, len };
    let pieces = |part: Part| part.segments(&list).collect::<Vec<_>>();
    assert_eq!(pieces(first), [segment(0, half), segment(MIB, half)]);
    let second = Part::new(UNIT_BYTES, UNIT_BYTES);
    assert_eq!(pieces(second), [segment(MIB + half, half), segment(3 * MIB, half)]);
    assert_eq!(pieces(Part::new(2 * UNIT_BYTES, 7)), [segment(3 * MIB + half, 7)]);
    let layout = RemoteLayout::List(list.into());
    assert_eq!(Part::new(0, bytes).remote(&layout, bytes), layout);
    let at = RemoteLayout::At(9);
    assert_eq!(second.remote(&at, MIB), RemoteLayout::At(9 + UNIT_BYTES));
}
