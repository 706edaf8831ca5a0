//! Replays a recording and names what nothing ordered.

use crate::order::{Actor, Order, Race};
use crate::record::{Entry, Trace};
use std::collections::HashMap;

/// The accesses of `trace` that no event and no launch ordered, at most 100. The order in which
/// they happened to run does not matter, so a race is found even in a run that it left unharmed.
///
/// Where the oldest entries of a recording were dropped, what remains is checked by itself.
pub fn check(trace: &Trace) -> Vec<Race> {
    let mut order = Order::default();
    for (&buffer, label) in &trace.labels {
        order.register(buffer, label);
    }
    let (mut launches, mut events) = (HashMap::new(), HashMap::new());
    for entry in &trace.entries {
        match entry {
            Entry::Launched { launch, .. } => {
                launches.insert(*launch, order.clock(Actor::Host));
            }
            Entry::Ran { launch, lane, job, touches, .. } => {
                if let Some(clock) = launches.remove(launch) {
                    order.after(Actor::Lane(*lane), &clock);
                }
                order.act(Actor::Lane(*lane), job, touches);
            }
            Entry::Recorded { lane, event } => {
                events.insert(*event, order.clock(Actor::Lane(*lane)));
            }
            Entry::Waited { lane, event, .. } => {
                if let Some(clock) = events.get(event) {
                    order.after(Actor::Lane(*lane), clock);
                }
            }
            Entry::HostSaw { event } | Entry::HostWaited { event, .. } => {
                if let Some(clock) = events.get(event) {
                    order.after(Actor::Host, clock);
                }
            }
            Entry::HostTouched { what, touch } => {
                order.act(Actor::Host, what, std::slice::from_ref(touch));
            }
            Entry::Owner { .. } => {}
        }
    }
    order.races().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Lanes, Pending, Readback, Schedule, Shared, Sim, SimOptions, Staging};

    /// Three overlapped steps: rows in, table written, read by the forward lane, result out.
    fn recorded() -> Trace {
        let sim = Sim::with(SimOptions { seed: 5, record: 1_000, ..SimOptions::default() });
        let lanes = Lanes::new(&sim);
        let mut rows = Staging::new(&sim, "rows", 3, 2);
        let mut table: Shared<u32, Schedule, Sim> = Shared::new(&sim, "table", 4);
        let mut out = Readback::new(&sim, "out", 2, 1);
        let mut before = None;
        for step in 0..3u32 {
            {
                let rows = rows.stage(&lanes.schedule, &[step, step + 1]);
                let mut table = table.write(&lanes.schedule);
                let arguments = (rows.view(), table.range(0..2));
                lanes
                    .schedule
                    .launch("fill", arguments, |(rows, table)| table.copy_from_slice(rows));
            }
            let table = table.read(&lanes.forward);
            let mut out = out.fill(&lanes.forward, 1);
            let arguments = (table.view(), out.view());
            lanes.forward.launch("sum", arguments, |(table, out)| out[0] = table.iter().sum());
            let landing: Option<Pending<u32, Sim>> = before.replace(out.pending());
            if let Some(landing) = landing {
                landing.land().unwrap();
            }
        }
        sim.drain();
        assert_eq!(sim.races(), []);
        sim.recorder().unwrap().trace()
    }

    #[test]
    fn a_correct_program_has_no_race() {
        let trace = recorded();
        assert_eq!(trace.dropped(), 0);
        assert_eq!(check(&trace), []);
    }

    /// What remains when the oldest entries are gone has no race either.
    #[test]
    fn a_cut_recording_has_no_race() {
        let trace = recorded();
        for kept in 0..trace.len() {
            let entries = trace.entries[trace.len() - kept..].to_vec();
            assert_eq!(check(&Trace { entries, ..trace.clone() }), [], "the last {kept} entries");
        }
    }

    #[test]
    fn a_pair_that_lost_its_event_is_named() {
        let whole = recorded();
        let mut found = Vec::new();
        for at in 0..whole.len() {
            let lane = match whole.entries[at] {
                Entry::Waited { lane, .. } => lane.name(),
                Entry::HostWaited { .. } => "host",
                _ => continue,
            };
            let mut trace = whole.clone();
            trace.entries.remove(at);
            for race in check(&trace) {
                found.push((lane, race.buffer, race.first.job, race.second.job));
            }
        }
        found.sort_unstable();
        found.dedup();
        // The forward lane did not wait for the write; the schedule lane did not wait for the
        // read; the host did not wait for the result before it read it.
        assert!(found.contains(&("forward", "table", "fill", "sum")), "{found:?}");
        assert!(found.contains(&("schedule", "table", "sum", "fill")), "{found:?}");
        assert!(found.contains(&("host", "out", "sum", "load")), "{found:?}");
    }

    #[test]
    fn a_pair_that_lost_its_launch_is_named() {
        let mut trace = recorded();
        trace.entries.retain(|entry| !matches!(entry, Entry::Launched { job: "fill", .. }));
        let races = check(&trace);
        let rows = races.iter().find(|race| race.buffer == "rows").expect("a race on the rows");
        assert_eq!((rows.first.job, rows.second.job), ("store", "fill"));
    }
}
