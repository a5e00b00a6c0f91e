//! The cheapest server of the same make: takes a POST with a body, looks at nothing, keeps nothing.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};

use anyhow::{Context, Result};
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::post;

use crate::noise::cpu_seconds;

/// The first argument that makes this program such a server.
pub(crate) const COMMAND: &str = "serve-bare";

/// Serves until it is killed; says its address first.
pub(crate) async fn serve() -> ExitCode {
    async fn take(body: Bytes) -> (StatusCode, Bytes) {
        (StatusCode::CREATED, body)
    }
    let router = axum::Router::new().route("/v1/sessions/{session}/messages", post(take));
    let Ok(listener) = tokio::net::TcpListener::bind("127.0.0.1:0").await else {
        return ExitCode::FAILURE;
    };
    if let Ok(address) = listener.local_addr() {
        println!("{address}");
    }
    match axum::serve(listener, router).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// A running one.
#[derive(Debug)]
pub(crate) struct Bare {
    child: Child,
    pub(crate) address: String,
}

impl Bare {
    /// Starts one.
    pub(crate) fn start() -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg(COMMAND)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a bare server")?;
        let mut address = String::new();
        BufReader::new(child.stdout.take().context("stdout is not piped")?)
            .read_line(&mut address)?;
        Ok(Self {
            child,
            address: address.trim().to_owned(),
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn cpu_seconds(&self) -> f64 {
        cpu_seconds(self.pid())
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // It holds nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
