//! Errors of libraries in words: the cause alone, found by its type.
//!
//! Libraries print each error of a chain in front of its cause, some of them as whole structures. A user needs the cause: a
//! refused connection, a missing file, an untrusted certificate.

use std::{error::Error, io, path::Path};

use kube::{client::AuthError, config::KubeconfigError, config::LoadDataError};
use tokio_rustls::rustls::{self, CertificateError};

use crate::cluster::ApiError;

/// What to do if no kubeconfig is found, or if it has no such context.
const CHOOSE: &str = "set KUBECONFIG, or give --kubeconfig and --context";

/// A server whose certificate is not trusted.
pub(super) const UNTRUSTED: &str = "its certificate is not signed by a trusted CA";
/// A server whose certificate has other names.
pub(super) const OTHER_NAME: &str = "its certificate is not valid for this name";

/// The words of the first error in the chain whose type is known; otherwise the last error.
pub(super) fn cause(error: &(dyn Error + 'static)) -> String {
    if let Some(words) = in_words(error) {
        return words;
    }
    error.source().map_or_else(|| first_line(&error.to_string()), cause)
}

/// The words for an error whose type is known; they include those of its source.
fn in_words(error: &(dyn Error + 'static)) -> Option<String> {
    if let Some(error) = error.downcast_ref::<KubeconfigError>() {
        return of_kubeconfig(error);
    }
    if let Some(error) = error.downcast_ref::<AuthError>() {
        return of_login(error);
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return Some(io_error(error));
    }
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        return Some(of_tls(error));
    }
    match error.downcast_ref::<kube::Error>()? {
        kube::Error::Api(status) if !status.message.is_empty() => Some(first_line(&status.message)),
        kube::Error::ProxyProtocolDisabled { proxy_url, .. }
        | kube::Error::ProxyProtocolUnsupported { proxy_url } => {
            Some(format!("the proxy {proxy_url} of the kubeconfig is not supported: use a direct connection"))
        }
        kube::Error::RustlsTls(_) => Some(
            "the client certificate or its key is not valid PEM, or they do not belong together".to_owned(),
        ),
        _ => None,
    }
}

fn of_kubeconfig(error: &KubeconfigError) -> Option<String> {
    let data = |what: &str, error: &LoadDataError| match error {
        LoadDataError::ReadFile(error, path) => file(what, path, error),
        LoadDataError::DecodeBase64(_) => format!("{what}: its data is not base64"),
        LoadDataError::NoBase64DataOrFile => format!("{what}: neither data nor a file is given"),
    };
    Some(match error {
        KubeconfigError::ReadConfig(error, path) => format!("{}: {CHOOSE}", file("kubeconfig", path, error)),
        KubeconfigError::FindPath => format!("no kubeconfig was found: {CHOOSE}"),
        KubeconfigError::CurrentContextNotSet => {
            "the kubeconfig has no current context: give --context".to_owned()
        }
        KubeconfigError::LoadContext(name) => format!("the kubeconfig has no context {name:?}: {CHOOSE}"),
        KubeconfigError::LoadClusterOfContext(name) => format!("the kubeconfig has no cluster {name:?}"),
        KubeconfigError::Parse(error) => format!("the kubeconfig is invalid YAML: {}", yaml(error)),
        KubeconfigError::MissingClusterUrl => "the cluster of the kubeconfig has no server".to_owned(),
        KubeconfigError::LoadCertificateAuthority(error) => data("CA of the API server", error),
        KubeconfigError::LoadClientCertificate(error) => data("client certificate", error),
        KubeconfigError::LoadClientKey(error) => data("client key", error),
        KubeconfigError::ParseCertificates(_) => "the CA of the API server is not valid PEM".to_owned(),
        _ => return None,
    })
}

/// A login by a program or a file that the kubeconfig names.
fn of_login(error: &AuthError) -> Option<String> {
    Some(match error {
        AuthError::AuthExecStart(error) => {
            format!("the login program of the kubeconfig cannot be started: {}", io_error(error))
        }
        AuthError::AuthExecRun { out, .. } => {
            let said = String::from_utf8_lossy(&out.stderr);
            let last = said.lines().rev().find(|line| !line.trim().is_empty()).map(str::trim);
            let last = last.map(|line| format!(": {line}")).unwrap_or_default();
            format!("the login program of the kubeconfig failed ({}){last}", out.status)
        }
        AuthError::AuthExecParse(_) | AuthError::ExecPluginFailed => {
            "the login program of the kubeconfig printed no credentials".to_owned()
        }
        AuthError::ReadTokenFile(error, path) => file("token file", path, error),
        _ => return None,
    })
}

fn of_tls(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(invalid) => match invalid {
            CertificateError::UnknownIssuer => UNTRUSTED.to_owned(),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                OTHER_NAME.to_owned()
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "its certificate has expired".to_owned()
            }
            other => format!("its certificate is invalid: {other}"),
        },
        rustls::Error::InvalidMessage(_) => "it does not speak TLS: is the URL an https address?".to_owned(),
        other => first_line(&other.to_string()),
    }
}

/// An error of a file, a connection or a name's address. Errors of TLS are inside.
pub(super) fn io_error(error: &io::Error) -> String {
    // Connectors wrap errors of TLS, some of them twice.
    if let Some(inner) = error.get_ref()
        && (inner.is::<rustls::Error>() || inner.is::<io::Error>() || inner.source().is_some())
    {
        return cause(inner);
    }
    match error.kind() {
        io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "the connection was closed".to_owned(),
        io::ErrorKind::TimedOut => "it timed out".to_owned(),
        io::ErrorKind::InvalidData if error.to_string().contains("UTF-8") => {
            "it is not UTF-8 text".to_owned()
        }
        _ if error.to_string().starts_with("failed to lookup address") => {
            "its name cannot be resolved".to_owned()
        }
        _ => {
            let text = first_line(&error.to_string());
            let text = text.split(" (os error").next().unwrap_or_default().to_owned();
            lowercase(&text)
        }
    }
}

fn file(what: &str, path: &Path, error: &io::Error) -> String {
    format!("{what} {}: {}", path.display(), io_error(error))
}

/// The first line of an error of the YAML reader, which then shows a part of the text.
pub(super) fn yaml(error: &dyn std::fmt::Display) -> String {
    let line = first_line(&error.to_string());
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().to_owned()
}

fn lowercase(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_lowercase().to_string()).unwrap_or_default();
    first + characters.as_str()
}

/// An error of a call to the API server, with the object's name in place of its path.
pub(super) fn call(error: &ApiError) -> String {
    match error {
        ApiError::NotFound { what } => format!("{} does not exist", object(what)),
        ApiError::Conflict { what } => format!("{} was changed at the same time: try again", object(what)),
        ApiError::Terminating { what } => format!("{}: its namespace is being deleted", object(what)),
        ApiError::Refused { message, .. } => first_line(message),
        ApiError::Unreachable { source, .. } => {
            format!("the API server does not answer: {}", cause(&**source))
        }
        ApiError::Late { seconds, .. } => {
            format!("the API server gave no answer within {seconds} s: try again")
        }
        ApiError::TooLarge { what } => format!("{}: the answer of the API server is too large", object(what)),
        ApiError::Answer { what, .. } => format!(
            "{}: the answer cannot be read: is this the address of a Kubernetes API server?",
            object(what)
        ),
        ApiError::InVain { .. } | ApiError::InvalidName { .. } => error.to_string(),
    }
}

/// `deployments/web in namespace shop` for a verb and a path, or the path itself.
fn object(what: &str) -> String {
    let path = what.rsplit(' ').next().unwrap_or_default().split('?').next().unwrap_or_default();
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
    let (["api", _, rest @ ..] | ["apis", _, _, rest @ ..]) = &parts[..] else { return path.to_owned() };
    match rest {
        ["namespaces", namespace, kind @ ..] if !kind.is_empty() => {
            format!("{} in namespace {namespace}", kind.join("/"))
        }
        [] => path.to_owned(),
        other => other.join("/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_found_by_their_type() {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let untrusted = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        for (error, words) in [
            (kube::Error::Service(Box::new(refused())), "connection refused"),
            (kube::Error::Service(Box::new(io::Error::other(io::Error::other(untrusted)))), UNTRUSTED),
            (
                kube::Error::InferKubeconfig(KubeconfigError::LoadContext("a".to_owned())),
                "the kubeconfig has no context \"a\": set KUBECONFIG, or give --kubeconfig and --context",
            ),
            (
                kube::Error::Auth(AuthError::AuthExecStart(io::ErrorKind::NotFound.into())),
                "the login program of the kubeconfig cannot be started: no such file or directory",
            ),
            (kube::Error::Service(Box::new(io::Error::other("Strange thing (os error 7)"))), "strange thing"),
        ] {
            assert_eq!(cause(&error), words);
        }
    }

    #[test]
    fn calls_name_the_object_and_not_the_path() {
        for (what, said) in [
            ("get /api/v1/namespaces/shop/configmaps/demo?x=y", "configmaps/demo in namespace shop"),
            ("/apis/apps/v1/deployments", "deployments"),
            ("get /apis/apps/v1/namespaces/shop/deployments", "deployments in namespace shop"),
            ("get /version", "/version"),
            ("get /api/v1/namespaces/shop", "namespaces/shop"),
        ] {
            assert_eq!(object(what), said);
        }
    }
}
