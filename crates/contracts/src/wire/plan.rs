//! Planning a request: what narrowing removed is taken out of the bytes, and nothing else changes.

use std::collections::BTreeSet;

use super::doc::{At, Edits, quoted};
use super::offer::Offer;
use super::request::WireRequest;
use super::{Wire, choice};
use crate::narrow::Narrowing;

/// What is done to a request before it is sent.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// The tools that go; none outside enforcement.
    pub narrowing: Option<&'a Narrowing>,
    /// What the model is told about tools.
    pub feedback: Option<&'a str>,
    /// Whether usage must be known: a cost limit is set.
    pub count_usage: bool,
}

impl WireRequest {
    /// Returns the bytes to send. Without anything to change they are the caller's own.
    pub fn planned(&self, plan: Plan<'_>) -> Vec<u8> {
        let Some(doc) = &self.doc else {
            return self.unread.clone();
        };
        let mut edits = Edits::default();
        let removed = |offer: &Offer| {
            plan.narrowing
                .is_some_and(|narrowing| narrowing.removed(&offer.name).is_some())
        };
        let gone: Vec<bool> = self.offers.iter().map(removed).collect();
        if plan.narrowing.is_some() {
            self.ask_for_approvals(doc.root(), &mut edits, &gone);
        }
        if gone.iter().any(|gone| *gone) {
            if gone.iter().all(|gone| *gone) {
                self.drop_all(doc.root(), &mut edits);
            } else {
                self.drop_some(doc.root(), &mut edits, &gone);
            }
        }
        if let Some(text) = plan.feedback {
            self.insert_feedback(doc.root(), &mut edits, text);
        }
        if plan.count_usage && self.wire == Wire::OpenAiChat && self.is_stream() {
            self.ask_for_usage(doc.root(), &mut edits);
        }
        if edits.is_empty() {
            return doc.text().as_bytes().to_vec();
        }
        edits.apply(doc.text()).into_bytes()
    }

    /// Says whether the extra chunk with usage was asked for by the session alone.
    pub(super) fn hides_usage(&self, count_usage: bool) -> bool {
        count_usage && self.wire == Wire::OpenAiChat && self.is_stream() && !self.wants_usage()
    }

    fn drop_some(&self, root: At<'_>, edits: &mut Edits, gone: &[bool]) {
        let Some(tools) = root.get("tools").and_then(At::items) else {
            return;
        };
        let is_gone = |index: usize| {
            let mut own = self
                .offers
                .iter()
                .zip(gone)
                .filter(|(offer, _)| offer.index == index);
            // An empty set offers nothing and stays as it is.
            let any = self.offers.iter().any(|offer| offer.index == index);
            any && own.all(|(_, gone)| *gone)
        };
        let places: Vec<_> = tools.iter().map(|tool| tool.place()).collect();
        edits.remove(&places, is_gone);
        for (index, set) in tools
            .iter()
            .enumerate()
            .filter(|(index, _)| !is_gone(*index))
        {
            let members = set.get("tools").and_then(At::items).unwrap_or_default();
            let places: Vec<_> = members.iter().map(|member| member.place()).collect();
            edits.remove(&places, |place| {
                let mut own = self.offers.iter().zip(gone);
                own.any(|(offer, gone)| {
                    *gone && offer.index == index && offer.member == Some(place)
                })
            });
        }
        let names: BTreeSet<&str> = self
            .offers
            .iter()
            .zip(gone)
            .filter(|(_, gone)| **gone)
            .map(|(offer, _)| offer.name.as_str())
            .collect();
        let list = root
            .get("tool_choice")
            .and_then(|entry| choice::list(self.wire, entry));
        if let Some(entries) = list.and_then(At::items) {
            let places: Vec<_> = entries.iter().map(|entry| entry.place()).collect();
            let listed: Vec<Option<String>> = entries
                .iter()
                .map(|entry| choice::named(self.wire, *entry))
                .collect();
            edits.remove(&places, |index| {
                let name = listed.get(index).and_then(Option::as_deref);
                name.is_some_and(|name| names.contains(name))
            });
        }
    }

    fn drop_all(&self, root: At<'_>, edits: &mut Edits) {
        let used = match self.wire {
            Wire::OpenAiChat | Wire::OpenAiResponses => None,
            Wire::AnthropicMessages => used_tools(root),
        };
        let Some(used) = used else {
            let members = root.member_places();
            let places: Vec<_> = members.iter().map(|(_, place)| place.clone()).collect();
            edits.remove(&places, |index| {
                let name = members.get(index).map(|(name, _)| name.as_str());
                let goes = match self.wire {
                    Wire::OpenAiChat | Wire::OpenAiResponses => {
                        ["tools", "tool_choice", "parallel_tool_calls"].as_slice()
                    }
                    Wire::AnthropicMessages => ["tools", "tool_choice"].as_slice(),
                };
                name.is_some_and(|name| goes.contains(&name))
            });
            return;
        };
        // The provider refuses a conversation with calls and no tools: those it used stay, and none may be called.
        let tools = root.get("tools").and_then(At::items).unwrap_or_default();
        let places: Vec<_> = tools.iter().map(|tool| tool.place()).collect();
        edits.remove(&places, |index| {
            let offer = self.offers.iter().find(|offer| offer.index == index);
            offer.is_some_and(|offer| !used.contains(&offer.name))
        });
        let none = r#"{"type":"none"}"#;
        match root.member("tool_choice") {
            Some(choice) => edits.replace(choice.place(), none),
            None => edits.add_member(root, "tool_choice", none),
        }
    }

    /// Remote tools that the provider runs must ask before each call.
    fn ask_for_approvals(&self, root: At<'_>, edits: &mut Edits, gone: &[bool]) {
        if self.wire != Wire::OpenAiResponses {
            return;
        }
        let tools = root.get("tools").and_then(At::items).unwrap_or_default();
        for (offer, gone) in self.offers.iter().zip(gone) {
            let Some(tool) = tools.get(offer.index) else {
                continue;
            };
            if *gone || offer.name != "mcp" || !offer.hosted {
                continue;
            }
            match tool.member("require_approval") {
                Some(value) if value.str().as_deref() == Some("always") => {}
                Some(value) => edits.replace(value.place(), "\"always\""),
                None => edits.add_member(*tool, "require_approval", "\"always\""),
            }
        }
    }

    /// Puts a sentence in front of everything the model reads.
    fn insert_feedback(&self, root: At<'_>, edits: &mut Edits, text: &str) {
        let sentence = quoted(text);
        match self.wire {
            Wire::OpenAiChat => {
                if let Some(messages) = root.get("messages") {
                    let message = format!(r#"{{"role":"system","content":{sentence}}}"#);
                    edits.add_first(messages, &message);
                }
            }
            Wire::OpenAiResponses => match root.member("instructions") {
                Some(value) if value.is_string() => {
                    // Both are written as JSON already: the opening quote is the one of the sentence.
                    let start = sentence.strip_suffix('"').unwrap_or_default();
                    let place = value.place();
                    edits.replace(place.start..place.start + 1, format!("{start}\\n\\n"));
                }
                Some(value) => edits.replace(value.place(), sentence),
                None => edits.add_member(root, "instructions", &sentence),
            },
            Wire::AnthropicMessages => {
                let block = format!(r#"{{"type":"text","text":{sentence}}}"#);
                match root.member("system") {
                    Some(value) if value.is_string() => {
                        let place = value.place();
                        let before = format!(r#"[{block},{{"type":"text","text":"#);
                        edits.insert(place.start, before);
                        edits.insert(place.end, "}]");
                    }
                    Some(value) if value.items().is_some() => edits.add_first(value, &block),
                    Some(value) => edits.replace(value.place(), format!("[{block}]")),
                    None => edits.add_member(root, "system", &format!("[{block}]")),
                }
            }
        }
    }

    fn ask_for_usage(&self, root: At<'_>, edits: &mut Edits) {
        match root.member("stream_options") {
            Some(options) if options.is_object() => match options.member("include_usage") {
                Some(value) if value.bool() == Some(true) => {}
                Some(value) => edits.replace(value.place(), "true"),
                None => edits.add_member(options, "include_usage", "true"),
            },
            Some(options) => edits.replace(options.place(), r#"{"include_usage":true}"#),
            None => edits.add_member(root, "stream_options", r#"{"include_usage":true}"#),
        }
    }
}

/// Returns the tools that a conversation used; nothing when it has no tool blocks.
fn used_tools(root: At<'_>) -> Option<BTreeSet<String>> {
    let messages = root.get("messages").and_then(At::items)?;
    let mut any = false;
    let mut names = BTreeSet::new();
    let blocks = messages.into_iter().flat_map(|message| {
        message
            .get("content")
            .and_then(At::items)
            .unwrap_or_default()
    });
    for block in blocks {
        match block.get("type").and_then(At::str).as_deref() {
            Some("tool_use") => {
                any = true;
                names.extend(
                    block
                        .get("name")
                        .and_then(At::str)
                        .map(|name| name.into_owned()),
                );
            }
            Some("tool_result") => any = true,
            Some(_) | None => {}
        }
    }
    any.then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_to_change_changes_nothing() {
        let body = b"{ \"model\":\"m\" ,\"messages\":[],\n\"x\":1.50e1 }";
        let request = WireRequest::read(Wire::OpenAiChat, body, &BTreeSet::new());
        let plan = Plan {
            narrowing: Some(&Narrowing::default()),
            feedback: None,
            count_usage: true,
        };
        assert_eq!(request.planned(plan), body);
    }
}
