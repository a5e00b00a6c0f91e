//! Which path leads where. One file per family of resources.
//!
//! Routes are listed as they are added, so that a test can hold them against the API's description.

mod absent;
mod artifacts;
mod branches;
mod discovery;
mod events;
mod governed;
mod memory;
mod messages;
mod operation;
mod permissions;
mod personas;
mod receipts;
mod records;
mod sessions;
mod tasks;
mod tlog;
mod vaults;
mod workspaces;

use std::sync::Arc;

use axum::Router;
use axum::handler::Handler;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{self, MethodFilter, MethodRouter};
use futures_util::future::BoxFuture;

use crate::app::App;
use crate::call::{Call, write};
use crate::gate;

/// Routes under construction.
pub(crate) struct Routes {
    router: Router<Arc<App>>,
    listed: Vec<(&'static str, &'static str)>,
}

/// What becomes of a call.
trait Answer: Future<Output: IntoResponse> + Send + 'static {}

impl<F: Future<Output: IntoResponse> + Send + 'static> Answer for F {}

/// Any handler of calls. To the router all of them are one type: what it does around a handler is compiled once, and not for
/// each of a hundred.
type CallHandler = Arc<dyn Fn(Call) -> BoxFuture<'static, Response> + Send + Sync>;

fn erased<F: Answer>(handler: fn(Call) -> F) -> CallHandler {
    Arc::new(move |call| {
        let answer = handler(call);
        Box::pin(async move { answer.await.into_response() })
    })
}

impl Routes {
    fn new() -> Self {
        Self {
            router: Router::new(),
            listed: Vec::new(),
        }
    }

    fn on(
        mut self,
        method: &'static str,
        path: &'static str,
        handler: MethodRouter<Arc<App>>,
    ) -> Self {
        self.router = self.router.route(path, handler);
        self.listed.push((method, path));
        self
    }

    /// Adds a route that takes the rest of the path as its last parameter; the description names it without the star.
    fn get_below<H: Handler<T, Arc<App>>, T: 'static>(
        mut self,
        path: &'static str,
        described: &'static str,
        handler: H,
    ) -> Self {
        self.router = self.router.route(path, routing::get(handler));
        self.listed.push(("get", described));
        self
    }

    /// Adds a route whose handler takes other parts of a request than a [`Call`].
    fn get_parts<H: Handler<T, Arc<App>>, T: 'static>(
        self,
        path: &'static str,
        handler: H,
    ) -> Self {
        self.on("get", path, routing::get(handler))
    }

    fn call(
        self,
        method: &'static str,
        filter: MethodFilter,
        path: &'static str,
        handler: CallHandler,
    ) -> Self {
        let handler = move |call: Call| handler(call);
        self.on(method, path, routing::on(filter, handler))
    }

    fn get<F: Answer>(self, path: &'static str, handler: fn(Call) -> F) -> Self {
        self.call("get", MethodFilter::GET, path, erased(handler))
    }

    fn post<F: Answer>(self, path: &'static str, handler: fn(Call) -> F) -> Self {
        self.call("post", MethodFilter::POST, path, erased(handler))
    }

    fn put<F: Answer>(self, path: &'static str, handler: fn(Call) -> F) -> Self {
        self.call("put", MethodFilter::PUT, path, erased(handler))
    }

    fn patch<F: Answer>(self, path: &'static str, handler: fn(Call) -> F) -> Self {
        self.call("patch", MethodFilter::PATCH, path, erased(handler))
    }

    fn delete<F: Answer>(self, path: &'static str, handler: fn(Call) -> F) -> Self {
        self.call("delete", MethodFilter::DELETE, path, erased(handler))
    }
}

/// Routes that need neither version nor credential.
fn open() -> Routes {
    [discovery::open, operation::routes, tlog::routes]
        .into_iter()
        .fold(Routes::new(), |routes, family| family(routes))
}

/// Routes that need both.
fn guarded() -> Routes {
    [
        discovery::guarded,
        workspaces::routes,
        sessions::routes,
        messages::routes,
        tasks::routes,
        branches::routes,
        events::routes,
        artifacts::routes,
        vaults::routes,
        personas::routes,
        permissions::routes,
        receipts::routes,
        records::routes,
        absent::routes,
    ]
    .into_iter()
    .fold(Routes::new(), |routes, family| family(routes))
}

/// Routes of other protocols: they need a credential, and say nothing of a version.
fn keyed() -> Routes {
    governed::routes(memory::routes(Routes::new()))
}

/// Returns the whole surface.
pub(crate) fn router(app: Arc<App>) -> Router {
    let guard = from_fn_with_state(Arc::clone(&app), gate::inner);
    let guarded = guarded().router.route_layer(guard);
    let guard = from_fn_with_state(Arc::clone(&app), gate::keyed);
    let keyed = keyed().router.route_layer(guard);
    open()
        .router
        .merge(guarded)
        .merge(keyed)
        .fallback(gate::no_route)
        .method_not_allowed_fallback(gate::no_method)
        .layer(from_fn_with_state(Arc::clone(&app), gate::wrap_request))
        .with_state(app)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_route_is_described_and_every_description_is_routed() {
        let families = [open(), guarded(), keyed()];
        let listed = families.into_iter().flat_map(|family| family.listed);
        let routed: BTreeSet<(&str, &str)> = listed.collect();
        let described: BTreeSet<(&str, &str)> = wire::openapi::operations()
            .map(|operation| (operation.method, operation.path))
            .collect();
        assert_eq!(routed, described);
        for (method, path) in open().listed {
            let operation = wire::openapi::operations()
                .find(|operation| operation.method == method && operation.path == path);
            assert!(
                operation.is_some_and(wire::openapi::Operation::public),
                "{path}"
            );
        }
    }
}
