//! `--tls-dir`: a pair in a directory, read again whenever its content is another.
//!
//! The directory is polled and its content compared. The kubelet swaps a mounted Secret by renaming a symlink above
//! the files, which a watch on the files does not see.
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::pair::{self, Pair};
use super::serving::Serving;
use super::trust::{Bundle, Trust, certificates};
use crate::telemetry::log::causes;
use crate::telemetry::{Condition, Metrics};

const POLL: Duration = Duration::from_secs(1);

/// Why the directory holds no pair to serve with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {}: mount a Secret of type kubernetes.io/tls there (keys tls.crt and tls.key)", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The files are there and of no use.
    #[error("the pair in {} cannot be used: put a certificate and its key there", dir.display())]
    Pair {
        /// The directory.
        dir: PathBuf,
        /// Which file, and what is wrong with it.
        #[source]
        source: pair::Error,
    },
    /// `ca.crt` is there and holds no certificate.
    #[error("{} holds no PEM certificate: give it the authority's, or leave it away", path.display())]
    Bundle {
        /// The file.
        path: PathBuf,
    },
}

/// The pair in a directory.
#[derive(Debug)]
pub(super) struct Files {
    dir: PathBuf,
    serving: Serving,
    trust: Trust,
    /// Of the content that `open` loaded.
    first: Fingerprint,
}

/// What stands in the directory at one moment.
struct Content {
    chain: Vec<u8>,
    key: Vec<u8>,
    authority: Option<Vec<u8>>,
}

/// Tells one content from another, without keeping keys.
type Fingerprint = [u8; 32];

/// What was seen in the directory up to now.
struct Seen {
    /// In use.
    loaded: Fingerprint,
    /// Broken when last looked at. Only what is still the same at the next look is reported: a swap between the
    /// reading of two files looks broken for a moment.
    suspect: Option<Fingerprint>,
    /// Broken and reported.
    reported: Option<Fingerprint>,
}

impl Files {
    /// Reads the pair, which has to be good.
    pub(super) fn open(dir: PathBuf, metrics: Metrics, condition: Condition) -> Result<Self, Error> {
        let content = Content::read(&dir)?;
        let first = content.fingerprint();
        let (pair, bundle) = content.check(&dir, Timestamp::now())?;
        let serving = Serving::new(pair, metrics, condition);
        tracing::info!(dir = %dir.display(), expires = %serving.expires(), "serving certificate loaded");
        Ok(Self { dir, serving, trust: Trust::new(bundle), first })
    }

    pub(super) fn serving(&self) -> &Serving {
        &self.serving
    }

    pub(super) fn trust(&self) -> &Trust {
        &self.trust
    }

    /// Takes over each new good pair. Never returns.
    pub(super) async fn run(&self) {
        let mut seen = Seen { loaded: self.first, suspect: None, reported: None };
        loop {
            tokio::time::sleep(POLL).await;
            let dir = self.dir.clone();
            // Three small files, once a second, on a thread that may block: a hung mount must not hold a worker.
            if let Ok(content) = tokio::task::spawn_blocking(move || Content::read(&dir)).await {
                self.look(&mut seen, content, Timestamp::now());
            }
        }
    }

    /// One look at the directory.
    fn look(&self, seen: &mut Seen, content: Result<Content, Error>, now: Timestamp) {
        let fingerprint = match &content {
            Ok(content) => content.fingerprint(),
            Err(error) => Sha256::digest(causes(error)).into(),
        };
        self.serving.judge(now);
        if fingerprint == seen.loaded {
            (seen.suspect, seen.reported) = (None, None);
            return;
        }
        match content.and_then(|content| content.check(&self.dir, now)) {
            Ok((pair, bundle)) => {
                self.serving.replace(pair);
                self.trust.want(bundle);
                *seen = Seen { loaded: fingerprint, suspect: None, reported: None };
                let expires = self.serving.expires();
                tracing::info!(dir = %self.dir.display(), %expires, "new serving certificate in use");
            }
            Err(error) if seen.suspect == Some(fingerprint) && seen.reported != Some(fingerprint) => {
                seen.reported = Some(fingerprint);
                self.serving.refused();
                let (error, until) = (causes(&error), self.serving.expires());
                tracing::error!(%error, %until, "new serving certificate refused; the one before stays in use");
            }
            Err(_) => seen.suspect = Some(fingerprint),
        }
    }
}

impl Content {
    fn read(dir: &Path) -> Result<Self, Error> {
        let read = |name: &str| {
            let path = dir.join(name);
            std::fs::read(&path).map_err(|source| Error::Read { path, source })
        };
        let authority = match read("ca.crt") {
            Ok(content) if content.trim_ascii().is_empty() => None, // cert-manager's ACME issuers leave it empty
            Ok(content) => Some(content),
            Err(Error::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok(Self { chain: read("tls.crt")?, key: read("tls.key")?, authority })
    }

    fn fingerprint(&self) -> Fingerprint {
        let mut hash = Sha256::new();
        for part in [&self.chain, &self.key, self.authority.as_ref().unwrap_or(&Vec::new())] {
            hash.update(Sha256::digest(part));
        }
        hash.finalize().into()
    }

    fn check(self, dir: &Path, now: Timestamp) -> Result<(Pair, Option<Bundle>), Error> {
        let pair = Pair::from_pem(&self.chain, &self.key, now)
            .map_err(|source| Error::Pair { dir: dir.to_owned(), source })?;
        match self.authority {
            Some(pem) if certificates(&pem).is_empty() => Err(Error::Bundle { path: dir.join("ca.crt") }),
            authority => Ok((pair, authority.map(Bundle::from))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Readiness;
    use rcgen::{CertificateParams, KeyPair};

    fn content() -> Content {
        let key = KeyPair::generate().unwrap();
        let pem = CertificateParams::new(vec!["x".to_owned()]).unwrap().self_signed(&key).unwrap().pem();
        Content { chain: pem.into_bytes(), key: key.serialize_pem().into_bytes(), authority: None }
    }

    fn broken(text: &str) -> Content {
        Content { chain: text.as_bytes().to_vec(), ..content() }
    }

    fn files(first: Content) -> (Files, Seen, Metrics) {
        let metrics = Metrics::new();
        let condition = Readiness::new().register("serving certificate");
        let loaded = first.fingerprint();
        let (pair, bundle) = first.check(Path::new("x"), Timestamp::now()).unwrap();
        let serving = Serving::new(pair, metrics.clone(), condition);
        let files = Files { dir: "x".into(), serving, trust: Trust::new(bundle), first: loaded };
        (files, Seen { loaded, suspect: None, reported: None }, metrics)
    }

    fn refused(metrics: &Metrics) -> bool {
        metrics.encode().contains("confrev_certificate_reload_total{outcome=\"refused\"} 1\n")
    }

    #[test]
    fn a_content_that_is_broken_for_one_look_only_is_not_reported() {
        let (files, mut seen, metrics) = files(content());
        files.look(&mut seen, Ok(broken("half")), Timestamp::now());
        files.look(&mut seen, Ok(content()), Timestamp::now());
        let text = metrics.encode();
        assert!(!text.contains("refused"), "{text}");
        assert!(text.contains("{outcome=\"loaded\"} 1"), "{text}");
    }

    #[test]
    fn a_broken_content_is_reported_once_however_often_it_is_seen() {
        let (files, mut seen, metrics) = files(content());
        let (chain, key) = (b"garbage".to_vec(), content().key);
        for _ in 0..10 {
            let again = Content { chain: chain.clone(), key: key.clone(), authority: None };
            files.look(&mut seen, Ok(again), Timestamp::now());
        }
        assert!(refused(&metrics), "{}", metrics.encode());
    }

    #[test]
    fn a_missing_file_is_reported_once_too() {
        let (files, mut seen, metrics) = files(content());
        for _ in 0..10 {
            files.look(&mut seen, Content::read(Path::new("/nowhere")), Timestamp::now());
        }
        assert!(refused(&metrics), "{}", metrics.encode());
    }

    #[test]
    fn a_new_ca_crt_is_wanted_at_once() {
        let (files, mut seen, _) = files(content());
        assert!(files.trust.wanted().is_none());
        let mut next = content();
        next.authority = Some(next.chain.clone());
        let wanted = next.chain.clone();
        files.look(&mut seen, Ok(next), Timestamp::now());
        assert_eq!(files.trust.wanted().as_deref(), Some(&wanted[..]));
    }
}
