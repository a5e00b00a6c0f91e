//! From the engine's views to the wire's values.

use canon::Value;
use engine::{Activity, Extra, Page, View};
use wire::Cursor;
use wire::render::{self, Resource, Source};

use crate::app::App;

/// Renders a view as a value.
pub(crate) fn view(app: &App, view: &View) -> Value {
    resource(app, view).value()
}

/// Renders a view as text.
pub(crate) fn bytes(app: &App, view: &View) -> Vec<u8> {
    resource(app, view).bytes()
}

fn resource<'a>(app: &App, view: &'a View) -> Resource<'a> {
    let extra = match &view.extra {
        Extra::None => render::Extra::None,
        Extra::Session {
            activity,
            last_event,
        } => render::Extra::Session {
            state: match activity {
                Activity::Active => "ACTIVE",
                Activity::Paused => "PAUSED",
                Activity::Idle => "IDLE",
                Activity::Closed => "CLOSED",
            },
            last_event_id: last_event.map(|position| app.engine.store().name().id(position)),
        },
        Extra::Message { workspace_id } => render::Extra::Message {
            workspace_id: workspace_id.as_ref().map(|id| id.as_str().to_owned()),
        },
        Extra::Artifact { receipt_id } => render::Extra::Artifact {
            receipt_id: receipt_id.as_ref().map(|id| id.as_str().to_owned()),
        },
        Extra::Outcome { messages } => render::Extra::Outcome {
            messages: messages
                .iter()
                .map(|inner| self::view(app, inner))
                .collect(),
        },
    };
    let source = Source {
        document: &view.document,
        payloads: &view.payloads,
    };
    render::resource(source, extra)
}

/// Renders a page.
pub(crate) fn page(app: &App, page: &Page) -> Value {
    let data = page.views.iter().map(|inner| view(app, inner)).collect();
    wire::list(data, page.next.map(|position| Cursor(position.0)))
}
