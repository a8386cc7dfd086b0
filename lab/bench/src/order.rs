//! The order to one process of a benchmark: names and values, handed over in one variable.

use std::collections::BTreeMap;
use std::str::FromStr;

use anyhow::Context;

/// An order to a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    pub kind: String,
    values: BTreeMap<String, String>,
}

impl Order {
    /// An order of this kind, with nothing said yet.
    pub fn new(kind: &str) -> Order {
        Order { kind: kind.into(), values: BTreeMap::new() }
    }

    /// Says one thing more.
    pub fn with(mut self, name: &str, value: impl ToString) -> Order {
        self.values.insert(name.into(), value.to_string());
        self
    }

    /// The value under this name, as text.
    pub fn text(&self, name: &str) -> anyhow::Result<&str> {
        let found = self.values.get(name).map(String::as_str);
        found.with_context(|| format!("the order '{}' lacks '{name}'", self.kind))
    }

    /// The same value, parsed as a number or another type.
    pub fn get<T: FromStr>(&self, name: &str) -> anyhow::Result<T> {
        let text = self.text(name)?;
        text.parse().ok().with_context(|| format!("'{name}' cannot be '{text}'"))
    }

    /// Whether something was said under this name.
    pub fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    /// In one text. Values hold no line ends: they are numbers, and paths of ours.
    pub fn encode(&self) -> String {
        let mut text = self.kind.clone();
        for (name, value) in &self.values {
            text.push_str(&format!("\n{name}={value}"));
        }
        text
    }

    /// Takes such a text apart.
    pub fn decode(text: &str) -> Option<Order> {
        let mut lines = text.lines();
        let mut order = Order::new(lines.next()?);
        for line in lines {
            let (name, value) = line.split_once('=')?;
            order = order.with(name, value);
        }
        Some(order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_crosses_to_another_process() {
        let order = Order::new("create").with("folder", "/a b/c=d").with("count", 12);
        let again = Order::decode(&order.encode()).expect("it is one");
        assert_eq!(again, order);
        assert_eq!(again.get::<u64>("count").unwrap(), 12);
        assert!(again.get::<u64>("folder").is_err() && again.text("absent").is_err());
    }
}
