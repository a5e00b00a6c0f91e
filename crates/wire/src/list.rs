//! The shape of a list, with its paging members at both places (C-12).

use canon::Value;
use serde_json::json;

use crate::Cursor;

/// Returns a page of resources.
pub fn list(data: Vec<Value>, next: Option<Cursor>) -> Value {
    let next_cursor = next.map(|cursor| cursor.to_string());
    json!({
        "object": "list",
        "data": data,
        "has_more": next.is_some(),
        "next_cursor": next_cursor,
        "page": {"has_more": next.is_some(), "next_cursor": next_cursor},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ap_env_06_paging_is_the_same_at_both_places() {
        let page = list(vec![json!(1)], Some(Cursor(7)));
        assert_eq!(page["page"]["next_cursor"], page["next_cursor"]);
        assert_eq!(page["page"]["has_more"], true);
        let last = list(vec![], None);
        assert_eq!(
            last["page"],
            json!({"has_more": false, "next_cursor": null})
        );
        assert_eq!(last["object"], "list");
    }
}
