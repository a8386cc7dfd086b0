//! What a row shall reach, and how many of its trials did not.

/// Of so many trials two may miss what a row shall reach.
const TRIALS_OF_TWO: usize = 100;

/// The reach of a row, and its trials.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    reach: f64,
    /// Trials beyond the reach.
    missed: usize,
    trials: usize,
    text: String,
}

impl Verdict {
    fn new(reach: f64, missed: usize, trials: usize, text: String) -> Verdict {
        Verdict { reach, missed, trials, text }
    }

    /// Values that shall not be above.
    pub fn at_most(reach: f64, unit: &str, values: &[f64]) -> Verdict {
        let (missed, all) = (values.iter().filter(|value| **value > reach).count(), values.len());
        Verdict::new(reach, missed, all, format!("reach {reach} {unit}: {missed} of {all} above"))
    }

    /// Values that shall not be below.
    pub fn at_least(reach: f64, unit: &str, values: &[f64]) -> Verdict {
        let (missed, all) = (values.iter().filter(|value| **value < reach).count(), values.len());
        Verdict::new(reach, missed, all, format!("reach {reach} {unit}: {missed} of {all} below"))
    }

    /// Gaps that shall not be above this and the longest gap of the undisturbed stream: `controls` has that of each
    /// trial, from the time before its fault.
    pub fn beside(reach: f64, unit: &str, values: &[f64], controls: &[f64]) -> Verdict {
        let missed = values.iter().zip(controls).filter(|(value, own)| **value > reach + **own);
        let (missed, all) = (missed.count(), values.len());
        let text = format!("reach {reach} {unit}: {missed} of {all} above it + their own gap");
        Verdict::new(reach, missed, all, text)
    }

    /// For an outcome: numbers, and a sentence for people.
    pub fn params(&self) -> Vec<(&'static str, String)> {
        let kept = self.missed * TRIALS_OF_TWO <= self.trials;
        vec![
            ("reach", self.reach.to_string()),
            ("missed", self.missed.to_string()),
            ("kept", kept.to_string()),
            ("verdict", format!("\"{}\"", self.text)),
        ]
    }
}

/// The values of all trials as JSON.
pub fn listed(values: &[f64]) -> String {
    let values: Vec<String> = values.iter().map(|value| format!("{value:.3}")).collect();
    format!("[{}]", values.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_of_two_hundred_trials_may_miss() {
        let kept = |slow: usize| {
            let values: Vec<f64> = (0..200).map(|it| if it < slow { 16.0 } else { 15.0 }).collect();
            let params = Verdict::at_most(15.0, "ms", &values).params();
            (params[1].1.clone(), params[2].1.clone())
        };
        assert_eq!(kept(2), ("2".into(), "true".into()));
        assert_eq!(kept(3), ("3".into(), "false".into()));
        assert_eq!(Verdict::at_least(95.0, "%", &[95.0, 94.0]).missed, 1);
    }

    #[test]
    fn the_gap_of_the_undisturbed_stream_is_allowed_for() {
        let verdict = Verdict::beside(15.0, "ms", &[18.0, 22.0, 25.0], &[4.0, 4.0, 10.0]);
        let text = "reach 15 ms: 1 of 3 above it + their own gap";
        assert_eq!((verdict.missed, verdict.text.as_str()), (1, text));
        assert_eq!(listed(&[1.0, 2.25]), "[1.000,2.250]");
    }
}
