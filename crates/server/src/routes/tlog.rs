//! The receipt log for everyone: keys, schema, checkpoint and tiles in the C2SP layout.
//!
//! Hashes and signatures only. What a receipt says stays behind the credential.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use receipts::tiles::{self, TILE_WIDTH, Tile};
use wire::Code;

use super::Routes;
use crate::app::App;
use crate::failure::{Failure, Reply};

pub(super) fn routes(routes: Routes) -> Routes {
    routes
        .get_parts("/.well-known/jwks.json", keys)
        .get_parts("/schemas/receipt-2026-04-25.schema.json", schema)
        .get_parts("/tlog/checkpoint", checkpoint)
        .get_below("/tlog/tile/{*path}", "/tlog/tile/{path}", tile)
}

/// Full tiles never change.
const IMMUTABLE: &str = "public, max-age=31536000, immutable";
/// The newest head does, and so do partial tiles: they give way to fuller ones.
const SHORT: &str = "public, max-age=5";

fn cached(media_type: &'static str, cache: &'static str, body: Vec<u8>) -> Response {
    let headers: [(HeaderName, &str); 3] = [
        (header::CONTENT_TYPE, media_type),
        (header::CACHE_CONTROL, cache),
        (header::ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
    ];
    (headers, body).into_response()
}

async fn keys(State(app): State<Arc<App>>) -> Response {
    let jwks = app.engine.authority().keys.to_jwks();
    cached("application/jwk-set+json", "public, max-age=60", jwks)
}

async fn schema() -> Response {
    let text = wire::receipt::SCHEMA.as_bytes().to_vec();
    cached("application/schema+json", "public, max-age=3600", text)
}

fn nothing(message: &str) -> Failure {
    Failure::new(Code::ResourceNotFound, message)
}

async fn checkpoint(State(app): State<Arc<App>>) -> Reply {
    match app.engine.checkpoint().await? {
        Some(text) => Ok(cached(
            "text/plain; charset=utf-8",
            SHORT,
            text.into_bytes(),
        )),
        None => Err(nothing("no head is sealed yet")),
    }
}

async fn tile(State(app): State<Arc<App>>, Path(path): Path<String>) -> Reply {
    let path = format!("tile/{path}");
    let unknown = || nothing("no such tile");
    let (bytes, width) = if let Some((index, width)) = tiles::parse_entries_path(&path) {
        (app.engine.entries(index, width).await?, width)
    } else {
        let tile = Tile::parse(&path).ok_or_else(unknown)?;
        (app.engine.tile(tile).await?, tile.width)
    };
    let cache = match u64::from(width) == TILE_WIDTH {
        true => IMMUTABLE,
        false => SHORT,
    };
    let bytes = bytes.ok_or_else(unknown)?;
    Ok(cached("application/octet-stream", cache, bytes))
}
