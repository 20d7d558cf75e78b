//! Errors as text.

/// An error with all its causes, in one line.
pub fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut line = message(error);
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = message(cause);
        // Some libraries repeat the cause in their own message.
        if !line.ends_with(&cause_text) {
            line = format!("{line}: {cause_text}");
        }
        next = cause.source();
    }
    line
}

/// kube prints an answer of the API server twice, the second time as a whole structure.
fn message(error: &(dyn std::error::Error + 'static)) -> String {
    match error.downcast_ref() {
        Some(kube::Error::Api(status)) if !status.message.is_empty() => status.message.clone(),
        _ => error.to_string(),
    }
}
