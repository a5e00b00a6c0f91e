//! Bodies about receipts and the heads of their log.

use domain::{BatchId, ReceiptCheck, ReceiptId, Request};

use super::{DecodeInput, TEXT_BYTES_MAX, URI_BYTES_MAX};
use crate::InputError;

/// Reads the body of a verification.
///
/// # Errors
/// A member has another type than it must.
pub fn verify_receipt(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    let members = incoming.members();
    Ok(Request::VerifyReceipt {
        id: incoming.id("receipt_id", ReceiptId::OBJECT, ReceiptId::parse)?,
        check: ReceiptCheck {
            trust_anchor: members.string_or_null("trust_anchor", TEXT_BYTES_MAX)?,
            at_time: members.string_or_null("at_time", TEXT_BYTES_MAX)?,
            integrity_only: false,
        },
    })
}

/// Reads the signature line of a witness.
///
/// # Errors
/// It is not there or no text.
pub fn cosign_head(incoming: &DecodeInput<'_>) -> Result<Request, InputError> {
    Ok(Request::CosignHead {
        id: incoming.id("batch_id", BatchId::OBJECT, BatchId::parse)?,
        line: incoming.members().required_string("line", URI_BYTES_MAX)?,
    })
}
