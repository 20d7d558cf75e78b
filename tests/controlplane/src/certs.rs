//! The cluster's CA.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};

use crate::Result;
use crate::node::network;
use crate::site::Site;

/// A certificate and its key, both PEM.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// The CA that signs the certificates of servers and clients.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new CA, and its own certificate and key.
    pub(crate) fn create() -> Result<(Self, Identity)> {
        let key = generate_key()?;
        let certificate =
            parameters().self_signed(&key).map_err(|e| format!("cannot sign the CA's certificate: {e}"))?;
        let identity = Identity { certificate: certificate.pem(), key: key.serialize_pem() };
        Ok((Self { issuer: Issuer::new(parameters(), key) }, identity))
    }

    /// The CA with this key (PEM).
    pub(crate) fn load(key: &str) -> Result<Self> {
        let key = KeyPair::from_pem(key).map_err(|e| format!("cannot read the CA's key: {e}"))?;
        Ok(Self { issuer: Issuer::new(parameters(), key) })
    }

    /// A certificate for servers on loopback, and at the addresses of a control plane.
    pub(crate) fn server(&self, site: Site) -> Result<Identity> {
        let mut names = ["localhost", "127.0.0.1", "kubernetes.default.svc"].map(String::from).to_vec();
        if site == Site::Network {
            names.extend([site.address().to_string(), network::FIRST_SERVICE.to_string()]);
        }
        let parameters = CertificateParams::new(names)
            .map_err(|e| format!("cannot name the server's certificate: {e}"))?;
        self.sign(parameters, "localhost", &[], ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A certificate for a user of the API in at most two groups.
    pub(crate) fn client(&self, user: &str, groups: &[&str]) -> Result<Identity> {
        self.sign(CertificateParams::default(), user, groups, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(
        &self,
        mut parameters: CertificateParams,
        name: &str,
        organizations: &[&str],
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<Identity> {
        let problem = |e| format!("cannot sign a certificate for {name}: {e}");
        parameters.distinguished_name = DistinguishedName::new();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![usage];
        // rcgen keeps one value of each type, so a second organization is given by the type's number.
        let types = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
        if organizations.len() > types.len() {
            return Err(format!("cannot sign a certificate for {name}: at most two groups fit into one"));
        }
        for (kind, organization) in types.into_iter().zip(organizations) {
            parameters.distinguished_name.push(kind, *organization);
        }
        let key = generate_key()?;
        let certificate = parameters.signed_by(&key, &self.issuer).map_err(problem)?;
        Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// A new ECDSA key.
pub(crate) fn generate_key() -> Result<KeyPair> {
    KeyPair::generate().map_err(|e| format!("cannot generate a key: {e}"))
}

fn parameters() -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, "confrev-controlplane");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    parameters
}
