//! For those who operate the server: is it alive, is it ready, what does it count.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::Routes;
use crate::app::App;
use crate::failure::{Failure, Reply};

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get_parts("/healthz", alive)
        .get_parts("/readyz", ready)
        .get_parts("/metrics", metrics)
}

async fn alive() -> &'static str {
    "ok\n"
}

async fn ready(State(app): State<Arc<App>>) -> Reply {
    if app.engine.is_draining() {
        return Err(Failure::draining());
    }
    app.engine.health().await?;
    Ok("ready\n".into_response())
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    let text = app.http.text(app.engine.metrics());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}
