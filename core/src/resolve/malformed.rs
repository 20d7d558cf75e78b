//! Validation of a workload's label and annotations, without any facts.

use super::{
    Facts, Policy, Request,
    optin::{OptIn, opt_in},
};
use crate::annotations;

/// The errors in an opted-in workload's label and annotations; `None` if they are well-formed.
pub fn malformed(request: &Request<'_>) -> Option<String> {
    let errors = match request.new.label(annotations::ENABLED) {
        None | Some("false") => return None,
        Some("true") => Policy::read(&request.new).1,
        Some(_) => match opt_in(request, &Facts::default()) {
            OptIn::Malformed(error) => vec![error],
            _ => Vec::new(),
        },
    };
    (!errors.is_empty()).then(|| format!("{}: {}", request.new.display(), errors.join("; ")))
}
