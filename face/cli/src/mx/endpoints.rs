//! `ropewalk mx endpoints`.

use ropewalk_rail_ether::{Interface, interfaces};
use serde_json::json;

use super::host::{Claim, Files};
use crate::remote::text::printable;
use crate::report::{print, print_json, say, table};

/// Arguments of `ropewalk mx endpoints`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk mx endpoints           lists endpoints, addresses and processes
  ropewalk mx endpoints --json    as JSON, an object on a line

A process opens an endpoint on an interface under a number, which is free again when the process \
ends. The schemes ether:// and mxoe:// have separate numbers. Endpoint 255 is the raw endpoint of \
a program that maps the network. Only root sees the processes of other users. The list covers the \
network namespace of this command.")]
pub struct Endpoints {
    /// Print a JSON object for each endpoint.
    #[arg(long)]
    json: bool,
}

/// Shows who has which endpoint.
pub fn run(arguments: &Endpoints) -> anyhow::Result<()> {
    let (claims, interfaces) = (Files::default().claims(), interfaces());
    let of = |claim: &Claim| interfaces.iter().find(|it| it.index == claim.interface);
    if arguments.json {
        for claim in &claims {
            let interface = of(claim);
            print_json(&json!({
                "interface": interface.map(|it| &it.name),
                "address": interface.map(|it| address(it, claim)),
                "scheme": claim.scheme,
                "endpoint": claim.endpoint,
                "process": claim.process.as_ref().map(|(number, _)| number),
                "program": claim.process.as_ref().map(|(_, name)| name),
            }))?;
        }
        return Ok(());
    }
    if claims.is_empty() {
        return say!("no endpoint is open on this host's interfaces");
    }
    let rows = claims.iter().map(|claim| row(claim, of(claim))).collect();
    let header = ["interface", "scheme", "endpoint", "address", "process", "program"];
    print(format!("{}\n", table(&header, rows)).as_bytes())
}

fn address(interface: &Interface, claim: &Claim) -> String {
    format!("{}://{}/{}", claim.scheme, interface.station, claim.endpoint)
}

fn row(claim: &Claim, interface: Option<&Interface>) -> Vec<String> {
    let unknown = || "-".to_string();
    let (process, program) = match &claim.process {
        Some((number, name)) => (number.to_string(), printable(name.as_bytes())),
        None => (unknown(), unknown()),
    };
    vec![
        interface.map_or_else(|| format!("number {}", claim.interface), |it| it.name.clone()),
        claim.scheme.to_string(),
        claim.endpoint.to_string(),
        interface.map_or_else(unknown, |it| address(it, claim)),
        process,
        program,
    ]
}

#[cfg(test)]
mod tests {
    use super::super::info::tests::nic;
    use super::*;

    #[test]
    fn a_row_says_whose_endpoint_it_is_where_that_is_known() {
        let process = Some((77, "serv\x1ber".to_string()));
        let claim = Claim { interface: 7, scheme: "mxoe", endpoint: 3, process };
        let interface = nic("eth0", 1500).interface.expect("one");
        let address = "mxoe://02:00:00:00:00:01/3";
        assert_eq!(row(&claim, Some(&interface)), ["eth0", "mxoe", "3", address, "77", "serv?er"]);
        let claim = Claim { process: None, ..claim };
        assert_eq!(row(&claim, None), ["number 7", "mxoe", "3", "-", "-", "-"]);
    }
}
