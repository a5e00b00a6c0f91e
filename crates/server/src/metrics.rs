//! Counters in the text form that Prometheus reads.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use engine::{Histogram, Metrics};

/// Answers by route and status.
type Routes = BTreeMap<String, BTreeMap<u16, Histogram>>;

/// Requests by method, route and status. Routes are templates, so their number is bounded.
#[derive(Debug, Default)]
pub(crate) struct HttpMetrics {
    requests: Mutex<BTreeMap<&'static str, Routes>>,
    /// Connections open.
    pub(crate) connections: AtomicU64,
}

impl HttpMetrics {
    pub(crate) fn observe(&self, method: &'static str, route: &str, status: u16, took: Duration) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let routes = requests.entry(method).or_default();
        // Every request comes here: a route is copied only when it is new.
        if !routes.contains_key(route) {
            routes.insert(route.to_owned(), BTreeMap::new());
        }
        if let Some(of_route) = routes.get_mut(route) {
            of_route.entry(status).or_default().observe(took);
        }
    }

    /// Returns everything there is to count.
    pub(crate) fn text(&self, engine: &Metrics) -> String {
        let mut out = String::new();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = [
            ("turns_total", "Turns taken", &engine.turns),
            (
                "commits_total",
                "Durable commits of turns, one sync each",
                &engine.commits,
            ),
            ("commands_total", "Commands answered", &engine.commands),
            ("refusals_total", "Commands refused", &engine.refusals),
            (
                "conflicts_total",
                "Turns repeated after a conflict",
                &engine.conflicts,
            ),
            ("events_total", "Events appended", &engine.events),
        ];
        for (name, help, counter) in counters {
            single(&mut out, name, "counter", help, load(counter));
        }
        let gauges = [
            ("tasks_queued", "Tasks waiting for a worker", &engine.queued),
            ("tasks_running", "Tasks being worked on", &engine.running),
            ("streams_open", "Event streams open", &engine.streams),
            (
                "http_connections_open",
                "Connections open",
                &self.connections,
            ),
        ];
        for (name, help, gauge) in gauges {
            single(&mut out, name, "gauge", help, load(gauge));
        }
        heading(
            &mut out,
            "turn_seconds",
            "histogram",
            "From a turn's first read to its commit",
        );
        histogram(&mut out, "turn_seconds", "", &engine.turn_seconds);
        heading(
            &mut out,
            "http_request_seconds",
            "histogram",
            "From a request's head to its answer's head",
        );
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let by_status = requests.iter().flat_map(|(method, routes)| {
            let routes = routes.iter();
            routes.flat_map(move |(route, of_route)| {
                of_route
                    .iter()
                    .map(move |(status, seen)| (method, route, status, seen))
            })
        });
        for (method, route, status, seen) in by_status {
            let labels = format!("method=\"{method}\",route=\"{route}\",status=\"{status}\"");
            histogram(&mut out, "http_request_seconds", &labels, seen);
        }
        out
    }
}

// Writing to a string cannot fail.

fn heading(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(
        out,
        "# HELP reprise_{name} {help}.\n# TYPE reprise_{name} {kind}"
    );
}

fn single(out: &mut String, name: &str, kind: &str, help: &str, value: u64) {
    heading(out, name, kind, help);
    let _ = writeln!(out, "reprise_{name} {value}");
}

fn histogram(out: &mut String, name: &str, labels: &str, seen: &Histogram) {
    let (buckets, sum, count) = seen.snapshot();
    let comma = if labels.is_empty() { "" } else { "," };
    for (bound, total) in buckets {
        let _ = writeln!(
            out,
            "reprise_{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {total}"
        );
    }
    let _ = writeln!(
        out,
        "reprise_{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}"
    );
    let _ = writeln!(
        out,
        "reprise_{name}_sum{{{labels}}} {sum}\nreprise_{name}_count{{{labels}}} {count}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_comment_or_a_name_with_a_number() {
        let http = HttpMetrics::default();
        http.observe("GET", "/v1/tasks/{task_id}", 200, Duration::from_millis(3));
        let text = http.text(&Metrics::default());
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(name.starts_with("reprise_"), "{line}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
        assert!(text.contains(
            "reprise_http_request_seconds_count{method=\"GET\",route=\"/v1/tasks/{task_id}\",status=\"200\"} 1"
        ));
    }
}
