//! `--tls-dir`: a certificate and key in a directory, read again whenever their content changes.
//!
//! A pair with another CA in `ca.crt` comes into use in steps, so that no request fails. First the new CA joins the
//! previous one in the webhook configurations. The new pair is served once every API server has had time to learn of
//! that CA. The previous CA stays until every replica has had time to follow (`lingering`).
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use sha2::{Digest, Sha256};

use super::pair::{CertifiedPair, PairError};
use super::poll::{PolledContent, poll};
use super::serving::{Serving, fit};
use super::trust::{Bundle, Trust, certificates, same, union};
use crate::telemetry::causes;
use crate::telemetry::{Condition, Metrics};

/// Why the directory holds no usable pair.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// A file cannot be read.
    #[error("cannot read {}: mount a Secret of type kubernetes.io/tls there (keys tls.crt and tls.key)", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The files exist but cannot be used.
    #[error("the certificate and key in {} cannot be used: put a certificate and its key there", dir.display())]
    CertifiedPair {
        /// The directory.
        dir: PathBuf,
        /// Which file, and what is wrong with it.
        #[source]
        source: PairError,
    },
    /// `ca.crt` exists but holds no certificate.
    #[error("{} holds no PEM certificate: put the CA certificate there, or remove the file", path.display())]
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
    transition: Transition,
    /// The fingerprint of the content that `open` loaded.
    first: Fingerprint,
}

/// The times of the change from one CA to the next. The defaults are for production; tests use seconds.
#[derive(Clone, Copy, Debug)]
pub struct Transition {
    /// How long a CA must have been in the webhook configurations before a certificate of it is served: time for every
    /// API server to learn of it.
    pub settle: Duration,
    /// How long the previous CA stays there: time for the kubelets to bring the files to every replica.
    pub linger: Duration,
}

/// The content of the directory at one moment.
struct PairFiles {
    chain: Vec<u8>,
    key: Vec<u8>,
    authority: Option<Vec<u8>>,
}

/// Identifies a content without keeping its key.
type Fingerprint = [u8; 32];

/// What was read from the directory so far.
struct DirState {
    polled: PolledContent<Fingerprint>,
    /// `ca.crt` of the content in use.
    authority: Option<Bundle>,
}

impl Default for Transition {
    fn default() -> Self {
        Self { settle: Duration::from_secs(30), linger: Duration::from_mins(10) }
    }
}

impl Files {
    /// Reads the pair, which has to be valid.
    pub(super) fn open(
        dir: PathBuf,
        transition: Transition,
        metrics: Metrics,
        condition: Condition,
    ) -> Result<Self, FilesError> {
        let content = PairFiles::read(&dir)?;
        let first = content.fingerprint();
        let (pair, bundle) = content.check(&dir, Timestamp::now())?;
        let serving = Serving::new(pair, metrics, condition);
        tracing::info!(dir = %dir.display(), expires = %serving.expires(), "serving certificate loaded");
        Ok(Self { dir, serving, trust: Trust::new(bundle), transition, first })
    }

    pub(super) fn serving(&self) -> &Serving {
        &self.serving
    }

    pub(super) fn trust(&self) -> &Trust {
        &self.trust
    }

    pub(super) fn transition(&self) -> Transition {
        self.transition
    }

    /// Loads each new valid pair. Never returns.
    pub(super) async fn run(&self) {
        let mut state = DirState::new(self.first, self.trust.wanted());
        let dir = self.dir.clone();
        let read = move || PairFiles::read(&dir);
        poll(read, |content| self.check(&mut state, content, Timestamp::now())).await;
    }

    /// Whether a pair of the CAs in `bundle` can be served. They have to be trusted everywhere, unless waiting is
    /// pointless: they are the CAs in use, the certificate in use is unfit, or the webhook configurations no longer
    /// carry its CA.
    fn may_serve(&self, bundle: &Bundle, state: &DirState, now: Timestamp) -> bool {
        if state.authority.as_ref().is_some_and(|before| same(before, bundle)) {
            return true;
        }
        let settled = self.trust.settled(self.transition.settle);
        if certificates(bundle).iter().all(|one| settled.contains(one)) || !fit(self.serving.validity(), now)
        {
            return true;
        }
        let before = state.authority.as_deref().map(certificates).unwrap_or_default();
        match self.trust.published() {
            Some(published) => !before.is_empty() && !before.iter().any(|one| published.contains(one)),
            None => false,
        }
    }

    /// Handles one read of the directory.
    fn check(&self, state: &mut DirState, content: Result<PairFiles, FilesError>, now: Timestamp) {
        let fingerprint = match &content {
            Ok(content) => content.fingerprint(),
            Err(error) => Sha256::digest(causes(error)).into(),
        };
        self.serving.check(now);
        if state.polled.is_loaded(&fingerprint) {
            self.trust.want(state.authority.clone());
            return;
        }
        match content.and_then(|content| content.check(&self.dir, now)) {
            Ok((_, Some(bundle))) if !self.may_serve(&bundle, state, now) => {
                let before = state.authority.as_deref().map(certificates).unwrap_or_default();
                let both = Some(union(&bundle, &before));
                if self.trust.wanted() != both {
                    tracing::info!(dir = %self.dir.display(), "new CA found; its certificate will be served when the CA is trusted");
                    self.trust.want(both);
                }
            }
            Ok((pair, bundle)) => {
                self.serving.replace(pair);
                self.trust.want(bundle.clone());
                *state = DirState::new(fingerprint, bundle);
                let expires = self.serving.expires();
                tracing::info!(dir = %self.dir.display(), %expires, "new serving certificate in use");
            }
            Err(error)
                if state.polled.is_repeated(fingerprint) && state.polled.is_unreported(fingerprint) =>
            {
                self.serving.refused();
                let (error, until) = (causes(&error), self.serving.expires());
                tracing::error!(%error, %until, "new serving certificate refused; the previous one stays in use");
            }
            Err(_) => {}
        }
    }
}

impl DirState {
    fn new(loaded: Fingerprint, authority: Option<Bundle>) -> Self {
        Self { polled: PolledContent::new(loaded), authority }
    }
}

impl PairFiles {
    fn read(dir: &Path) -> Result<Self, FilesError> {
        let read = |name: &str| {
            let path = dir.join(name);
            std::fs::read(&path).map_err(|source| FilesError::Read { path, source })
        };
        let authority = match read("ca.crt") {
            Ok(content) if content.trim_ascii().is_empty() => None, // cert-manager's ACME issuers leave it empty
            Ok(content) => Some(content),
            Err(FilesError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
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

    fn check(self, dir: &Path, now: Timestamp) -> Result<(CertifiedPair, Option<Bundle>), FilesError> {
        let pair = CertifiedPair::from_pem(&self.chain, &self.key, now)
            .map_err(|source| FilesError::CertifiedPair { dir: dir.to_owned(), source })?;
        match self.authority {
            Some(pem) if certificates(&pem).is_empty() => {
                Err(FilesError::Bundle { path: dir.join("ca.crt") })
            }
            authority => Ok((pair, authority.map(Bundle::from))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::Readiness;
    use jiff::SignedDuration;
    use rcgen::{CertificateParams, KeyPair};

    fn content() -> PairFiles {
        let key = KeyPair::generate().unwrap();
        let pem = CertificateParams::new(vec!["x".to_owned()]).unwrap().self_signed(&key).unwrap().pem();
        PairFiles { chain: pem.into_bytes(), key: key.serialize_pem().into_bytes(), authority: None }
    }

    fn broken(text: &str) -> PairFiles {
        PairFiles { chain: text.as_bytes().to_vec(), ..content() }
    }

    fn files(first: PairFiles) -> (Files, DirState, Metrics) {
        let metrics = Metrics::new();
        let condition = Readiness::new().register("serving certificate");
        let loaded = first.fingerprint();
        let (pair, bundle) = first.check(Path::new("x"), Timestamp::now()).unwrap();
        let serving = Serving::new(pair, metrics.clone(), condition);
        let trust = Trust::new(bundle.clone());
        let transition = Transition { settle: Duration::ZERO, ..Transition::default() };
        let files = Files { dir: "x".into(), serving, trust, transition, first: loaded };
        (files, DirState::new(loaded, bundle), metrics)
    }

    fn refused(metrics: &Metrics, times: usize) -> bool {
        let line = format!("confrev_certificate_reloads_total{{outcome=\"refused\"}} {times}\n");
        metrics.encode().contains(&line)
    }

    #[test]
    fn briefly_broken_files_are_not_reported() {
        let (files, mut state, metrics) = files(content());
        files.check(&mut state, Ok(broken("half")), Timestamp::now());
        files.check(&mut state, Ok(content()), Timestamp::now());
        let text = metrics.encode();
        assert!(refused(&metrics, 0), "{text}");
        assert!(text.contains("{outcome=\"loaded\"} 1"), "{text}");
    }

    #[test]
    fn broken_files_are_reported_once() {
        let (files, mut state, metrics) = files(content());
        let (chain, key) = (b"garbage".to_vec(), content().key);
        for _ in 0..10 {
            let again = PairFiles { chain: chain.clone(), key: key.clone(), authority: None };
            files.check(&mut state, Ok(again), Timestamp::now());
        }
        assert!(refused(&metrics, 1), "{}", metrics.encode());
    }

    #[test]
    fn missing_file_is_reported_once() {
        let (files, mut state, metrics) = files(content());
        for _ in 0..10 {
            files.check(&mut state, PairFiles::read(Path::new("/nowhere")), Timestamp::now());
        }
        assert!(refused(&metrics, 1), "{}", metrics.encode());
    }

    fn with_authority() -> PairFiles {
        let content = content();
        PairFiles { authority: Some(content.chain.clone()), ..content }
    }

    fn loads(metrics: &Metrics) -> bool {
        metrics.encode().contains("{outcome=\"loaded\"} 1")
    }

    #[test]
    fn new_ca_crt_is_wanted_immediately() {
        let (files, mut state, _) = files(content());
        assert!(files.trust.wanted().is_none());
        let next = with_authority();
        let wanted = next.chain.clone();
        files.check(&mut state, Ok(next), Timestamp::now());
        assert_eq!(files.trust.wanted().as_deref(), Some(&wanted[..]));
    }

    /// Until then, the wanted bundle contains both the new and the previous CA.
    #[test]
    fn pair_of_new_ca_is_served_once_trusted() {
        let (first, next) = (with_authority(), with_authority());
        let (old, new) = (first.chain.clone(), next.chain.clone());
        let again = || PairFiles {
            chain: next.chain.clone(),
            key: next.key.clone(),
            authority: next.authority.clone(),
        };
        let (files, mut state, metrics) = files(first);
        files.trust.publish(Some(old.clone().into()));
        files.check(&mut state, Ok(again()), Timestamp::now());
        assert!(!loads(&metrics), "only the previous CA is trusted");
        let both = [new.clone(), old].concat();
        assert_eq!(files.trust.wanted().as_deref(), Some(&both[..]));
        files.trust.publish(None);
        files.check(&mut state, Ok(again()), Timestamp::now());
        assert!(!loads(&metrics), "the webhook configurations are not correct");
        files.trust.publish(Some(both.into()));
        files.check(&mut state, Ok(again()), Timestamp::now());
        assert!(loads(&metrics));
        assert_eq!(files.trust.wanted().as_deref(), Some(&new[..]));
    }

    /// The CA is unchanged, the served pair is no longer trusted, or it is about to expire.
    #[test]
    fn new_pair_is_served_immediately_without_pending_trust() {
        let first = with_authority();
        let before = first.authority.clone();
        let PairFiles { chain, key, .. } = content();
        let renewed = move || PairFiles { chain: chain.clone(), key: key.clone(), authority: before.clone() };
        let (files, mut state, metrics) = files(first);
        files.check(&mut state, Ok(renewed()), Timestamp::now());
        assert!(loads(&metrics), "the CA is the same");

        let (files, mut state, metrics) = self::files(with_authority());
        files.trust.publish(Some(with_authority().chain.into()));
        files.check(&mut state, Ok(with_authority()), Timestamp::now());
        assert!(loads(&metrics), "an injector was first: the served pair is no longer trusted");

        let (files, mut state, metrics) = self::files(with_authority());
        let late = files.serving.expires() - SignedDuration::from_secs(30);
        files.check(&mut state, Ok(with_authority()), late);
        assert!(loads(&metrics), "the served certificate is about to expire");
    }

    #[test]
    fn restored_files_are_wanted_again() {
        let first = with_authority();
        let again = PairFiles {
            chain: first.chain.clone(),
            key: first.key.clone(),
            authority: first.authority.clone(),
        };
        let old = first.chain.clone();
        let (files, mut state, metrics) = files(first);
        files.check(&mut state, Ok(with_authority()), Timestamp::now());
        files.check(&mut state, Ok(again), Timestamp::now());
        assert_eq!(files.trust.wanted().as_deref(), Some(&old[..]));
        assert!(!loads(&metrics));
    }
}
