//! A server that comes back: the same directory, the same port, as often as a test kills it.

use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use testing::process::{Process, Server, Stream};

use crate::client::Api;
use crate::world::World;

pub(crate) struct Host {
    pub(crate) world: World,
    pub(crate) address: String,
    settings: Vec<(&'static str, &'static str)>,
    server: Option<Server>,
}

impl Host {
    /// Starts a server in a directory of its own.
    pub(crate) fn new() -> Self {
        Self::with(World::new(), &[])
    }

    /// Starts a server in a given directory, with settings from the environment.
    pub(crate) fn with(world: World, settings: &[(&'static str, &'static str)]) -> Self {
        let mut host = Self {
            world,
            address: format!("127.0.0.1:{}", free_port()),
            settings: settings.to_vec(),
            server: None,
        };
        host.start();
        host
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = self.world.command(&["serve", "--listen", &self.address]);
        // A line per request would only slow the test down.
        command.env("REPRISE_LOG_LEVEL", "warn");
        command.envs(self.settings.iter().copied());
        command
    }

    pub(crate) fn start(&mut self) {
        let started = Server::start(&mut self.command());
        self.server = Some(started.unwrap_or_else(|said| panic!("{said:?}")));
    }

    /// Starts a server and kills it after a while, ready or not.
    pub(crate) fn start_and_kill(&self, after: Duration) {
        let starting = Process::start(&mut self.command(), Stream::Stderr);
        std::thread::sleep(after);
        drop(starting);
    }

    pub(crate) fn kill(&mut self) {
        self.server.take().unwrap().kill();
    }

    /// Gives the running server away.
    pub(crate) fn take(&mut self) -> Server {
        self.server.take().unwrap()
    }

    /// A client with connections of its own.
    pub(crate) fn api(&self) -> Api {
        let approver = std::fs::read_to_string(self.world.data().join("approver-key")).unwrap();
        let url = format!("http://{}", self.address);
        Api::new(&url, &self.key()).approving(approver.trim())
    }

    pub(crate) fn key(&self) -> String {
        let key = std::fs::read_to_string(self.world.data().join("api-key")).unwrap();
        key.trim().to_owned()
    }

    /// The log must be what was written and fold to what is stored.
    pub(crate) fn must_verify(&self) {
        self.world.ok(&["log", "verify"]);
        self.world.ok(&["log", "rebuild"]);
    }
}

/// Returns a port that no client is given for its own end of a connection. A client that tries to connect while the
/// server is away could otherwise get the server's port, connect to itself and keep the server out.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let first: u16 = range
        .ok()
        .and_then(|range| range.split_whitespace().next()?.parse().ok())
        .unwrap_or(32_768);
    let lowest = 10_000.min(first / 2);
    let start = fastrand::u16(..);
    for _ in 0..1_000 {
        let number = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = lowest + number % (first - lowest);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port below {first}");
}

/// A generator whose seed is printed, and shown when the test fails. The variable repeats a seed.
pub(crate) fn generator() -> fastrand::Rng {
    let given = std::env::var("REPRISE_TEST_SEED").ok();
    let seed = given.map_or_else(|| fastrand::u64(..), |text| text.parse().unwrap());
    println!("REPRISE_TEST_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}
