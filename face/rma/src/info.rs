//! What a window is made with, as text: `key=value` pairs with `;` between them. Keys are MPI's where it has them; one that
//! is not known here is ignored, as MPI demands.

use ropewalk_rma::{AccumulateOrdering, Implementation, WindowOptions};

use crate::codes::{ERR_INFO, Failure, failure};

/// Reads options. Without a word about it windows are by remote access.
pub fn read(text: &str, displacement_unit: u32) -> Result<WindowOptions, Failure> {
    changed(WindowOptions { displacement_unit, ..WindowOptions::default() }, text)
}

/// The same options but for those that a text names.
pub fn changed(mut options: WindowOptions, text: &str) -> Result<WindowOptions, Failure> {
    let pairs = text.split(';').map(str::trim).filter(|pair| !pair.is_empty());
    for pair in pairs {
        let both = pair.split_once('=').map(|(key, value)| (key.trim(), value.trim()));
        let both = both.ok_or_else(|| failure(ERR_INFO, format!("info '{pair}' has no '=' in it")));
        let (key, value) = both?;
        set(&mut options, key, value)
            .ok_or_else(|| failure(ERR_INFO, format!("info '{key}' cannot be '{value}'")))?;
    }
    Ok(options)
}

/// Sets one option; `None` where the value is none.
fn set(options: &mut WindowOptions, key: &str, value: &str) -> Option<()> {
    match key {
        "implementation" => options.implementation = implementation(value)?,
        "name" => options.name = value.to_string(),
        "no_locks" => options.no_locks = truth(value)?,
        "accumulate_ordering" => options.accumulate_ordering = ordering(value)?,
        "accumulate_ops" => {
            // Both promise what `same_op` says.
            options.same_op = matches!(value, "same_op" | "same_op_no_op");
            options.same_op.then_some(())?;
        }
        "mpi_accumulate_granularity" => options.granularity = value.parse().ok()?,
        "alloc_shm" => options.map_memory = truth(value)?,
        "alloc_shared_noncontig" => options.noncontiguous = truth(value)?,
        "counters" => options.counters = value.parse().ok()?,
        "eager_bytes" => options.eager_bytes = value.parse().ok()?,
        "check" => options.check = truth(value)?,
        _ => {}
    }
    Some(())
}

fn implementation(value: &str) -> Option<Implementation> {
    match value {
        "direct" => Some(Implementation::Direct),
        "direct_accumulate_at_origin" => Some(Implementation::DirectAccumulateAtOrigin),
        "messages" => Some(Implementation::Messages),
        _ => None,
    }
}

fn truth(value: &str) -> Option<bool> {
    match value {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// Every order that MPI can be asked for in part is kept as a whole.
fn ordering(value: &str) -> Option<AccumulateOrdering> {
    if value == "none" {
        return Some(AccumulateOrdering::None);
    }
    let is_order = |word: &str| ["rar", "raw", "war", "waw"].contains(&word.trim());
    value.split(',').all(is_order).then_some(AccumulateOrdering::Strict)
}

/// The options of a window, as they would be read.
pub fn write(options: &WindowOptions) -> String {
    let implementation = match options.implementation {
        Implementation::Direct => "direct",
        Implementation::DirectAccumulateAtOrigin => "direct_accumulate_at_origin",
        Implementation::Messages => "messages",
    };
    let ordering = match options.accumulate_ordering {
        AccumulateOrdering::Strict => "rar,raw,war,waw",
        AccumulateOrdering::None => "none",
    };
    let mut text = format!(
        "implementation={implementation};no_locks={};accumulate_ordering={ordering};mpi_accumulate_granularity={};eager_bytes={};alloc_shm={};alloc_shared_noncontig={};counters={};check={}",
        options.no_locks,
        options.granularity,
        options.eager_bytes,
        options.map_memory,
        options.noncontiguous,
        options.counters,
        options.check
    );
    if options.same_op {
        text.push_str(";accumulate_ops=same_op_no_op");
    }
    if !options.name.is_empty() {
        text.push_str(&format!(";name={}", options.name));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_the_usual_window_by_remote_access() {
        let options = read("", 4).unwrap();
        assert_eq!(options.implementation, Implementation::Direct);
        assert_eq!(options, WindowOptions { displacement_unit: 4, ..WindowOptions::default() });
        assert_eq!(read(" ; ", 4).unwrap().implementation, Implementation::Direct);
    }

    #[test]
    fn all_keys_are_read_and_what_is_written_is_read_again() {
        let text = "implementation=messages; no_locks = true;accumulate_ordering=none;\
                    accumulate_ops=same_op;mpi_accumulate_granularity=64;eager_bytes=100;\
                    name=halo;alloc_shm=false;alloc_shared_noncontig=true;counters=3;check=true;unheard_of=1";
        let options = read(text, 8).unwrap();
        let wanted = WindowOptions {
            implementation: Implementation::Messages,
            name: "halo".into(),
            displacement_unit: 8,
            same_op: true,
            accumulate_ordering: AccumulateOrdering::None,
            no_locks: true,
            granularity: 64,
            eager_bytes: 100,
            map_memory: false,
            noncontiguous: true,
            counters: 3,
            check: true,
        };
        assert_eq!(options, wanted);
        assert_eq!(read(&write(&options), 8).unwrap(), options);
        let usual = read("accumulate_ordering=raw,waw", 1).unwrap();
        assert_eq!(usual.accumulate_ordering, AccumulateOrdering::Strict);
        assert_eq!(read(&write(&usual), 1).unwrap(), usual);
    }

    #[test]
    fn values_that_make_no_sense_are_named() {
        for (text, words) in [
            ("no_locks", "'no_locks' has no '='"),
            ("no_locks=yes", "'no_locks' cannot be 'yes'"),
            ("implementation=magic", "'magic'"),
            ("accumulate_ordering=waw,now", "'waw,now'"),
            ("accumulate_ops=any", "'any'"),
            ("eager_bytes=-1", "'-1'"),
            ("alloc_shm=no", "'no'"),
            ("alloc_shared_noncontig=1", "'1'"),
        ] {
            let failure = read(text, 1).unwrap_err();
            assert_eq!(failure.code, ERR_INFO);
            assert!(failure.words.contains(words), "{}", failure.words);
        }
    }
}
