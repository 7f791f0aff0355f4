//! TLS 1.3 in which both sides prove their ed25519 identity by a libp2p certificate.
//!
//! The certificate and its checks are libp2p's. Only the order of the cipher suites, the protocol
//! names and what is remembered between connections are chosen here.
//!
//! **Invariant:** no key log, no session tickets, no early data: each connection proves itself.

use std::sync::{Arc, OnceLock};

use libp2p::identity::Keypair;
use libp2p_tls::certificate::{self, GenError};
use quinn::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig, QuicServerConfig};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme,
};
use thiserror::Error;
use wire::NodeId;

use super::identity::{node_of_certificate, node_of_key};

/// What every version speaks, so that two versions can at least tell each other their names.
const HELLO_PROTOCOL: &[u8] = b"cadencia-hello";

/// TLS could not be set up.
#[derive(Debug, Error)]
pub enum TlsError {
    /// The node's key is of another kind.
    #[error("the node's key is not an ed25519 key; make a new one with `cadencia keys`")]
    NotEd25519,
    /// No certificate could be made.
    #[error("no certificate could be made for the node's key")]
    Certificate(#[from] GenError),
    /// The TLS library refused our configuration.
    #[error("the TLS library refused the node's configuration")]
    Rustls(#[from] rustls::Error),
    /// The suites lack the one that QUIC begins with.
    #[error("the TLS library lacks the cipher suite that QUIC begins with")]
    NoInitialSuite(#[from] NoInitialCipherSuite),
}

/// The node's certificate and the protocols it speaks; makes configurations for connections.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) node: NodeId,
    certified: Arc<CertifiedKey>,
    provider: Arc<CryptoProvider>,
    protocols: Vec<Vec<u8>>,
}

impl Identity {
    /// Makes a certificate for `key`.
    pub(super) fn new(key: &Keypair, lane_version: u32) -> Result<Self, TlsError> {
        let node = node_of_key(key).ok_or(TlsError::NotEd25519)?;
        let (certificate, secret): (_, PrivateKeyDer<'static>) = certificate::generate(key)?;
        let signer = aws_lc_rs::sign::any_ecdsa_type(&secret)?;
        let certified = Arc::new(CertifiedKey::new(vec![certificate], signer));
        let lane = format!("cadencia-lane/{lane_version}").into_bytes();
        let protocols = vec![lane, HELLO_PROTOCOL.to_vec()];
        Ok(Self { node, certified, provider: Arc::new(provider()), protocols })
    }

    /// For connections that others begin.
    pub(super) fn server(&self) -> Result<QuicServerConfig, TlsError> {
        let certified = SingleCertAndKey::from(Arc::clone(&self.certified));
        let mut config = rustls::ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(Arc::new(Verifier::anybody()))
            .with_cert_resolver(Arc::new(certified));
        config.alpn_protocols.clone_from(&self.protocols);
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config.try_into()?)
    }

    /// For a connection to `wanted`. Who was found instead, if so, is in the second value.
    pub(super) fn client(&self, wanted: NodeId) -> Result<(QuicClientConfig, Found), TlsError> {
        let found = Found::default();
        let verifier = Verifier { wanted: Some((wanted, found.clone())) };
        let certified = SingleCertAndKey::from(Arc::clone(&self.certified));
        let mut config = rustls::ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::new(certified));
        config.alpn_protocols.clone_from(&self.protocols);
        config.resumption = Resumption::disabled();
        // The name would be that of a domain, and nodes have none.
        config.enable_sni = false;
        Ok((config.try_into()?, found))
    }
}

/// Who showed a certificate while somebody else was wanted.
pub(super) type Found = Arc<OnceLock<NodeId>>;

/// AES first where the processor computes it, for it is several times faster there; ChaCha20
/// elsewhere. The server follows the order of the client.
fn provider() -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    let aes = [cipher_suite::TLS13_AES_128_GCM_SHA256, cipher_suite::TLS13_AES_256_GCM_SHA384];
    let chacha = [cipher_suite::TLS13_CHACHA20_POLY1305_SHA256];
    provider.cipher_suites = match has_aes() {
        true => [&aes[..], &chacha[..]].concat(),
        false => [&chacha[..], &aes[..]].concat(),
    };
    provider
}

fn has_aes() -> bool {
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")))]
    return false;
}

/// Somebody answered, but not who was wanted.
#[derive(Debug, Error)]
#[error("wanted {wanted}, found {found}")]
struct SomebodyElse {
    wanted: NodeId,
    found: NodeId,
}

/// Accepts exactly the certificates that libp2p accepts and that carry an ed25519 key.
#[derive(Debug)]
struct Verifier {
    /// Who must be at the other end; `None` where anybody may be.
    wanted: Option<(NodeId, Found)>,
}

impl Verifier {
    fn anybody() -> Self {
        Self { wanted: None }
    }

    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
    ) -> Result<(), rustls::Error> {
        if !rest.is_empty() {
            return Err(CertificateError::BadEncoding.into());
        }
        let found = node_of_certificate(certificate).ok_or(CertificateError::BadEncoding)?;
        match &self.wanted {
            Some((wanted, cell)) if *wanted != found => {
                // A second certificate on one connection cannot be; the first is what counts.
                let _ = cell.set(found);
                let other = SomebodyElse { wanted: *wanted, found };
                Err(CertificateError::Other(OtherError(Arc::new(other))).into())
            }
            _ => Ok(()),
        }
    }
}

/// The signature by which the peer shows that the certificate is its own.
fn check_signature(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    let parsed = certificate::parse(certificate)?;
    parsed.verify_signature(signed.scheme, message, signed.signature())?;
    Ok(HandshakeSignatureValid::assertion())
}

/// libp2p makes its certificates with P-256; other kinds exist in its specification, not here.
fn schemes() -> Vec<SignatureScheme> {
    vec![SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::ED25519]
}

const ONLY_TLS13: rustls::Error =
    rustls::Error::PeerIncompatible(rustls::PeerIncompatible::Tls13RequiredForQuic);

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(end_entity, intermediates).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(ONLY_TLS13)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        check_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(end_entity, intermediates).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(ONLY_TLS13)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        check_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}
