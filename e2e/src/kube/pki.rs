//! The lab's certificates and the kubeconfigs made of them. All signed by one authority that lives as long as the lab.

use anyhow::{Context, Result};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use std::path::{Path, PathBuf};

/// What a certificate lets its owner do.
enum Role<'a> {
    Client,
    Server(&'a [&'a str]),
}

/// The folder of certificates.
#[derive(Debug, Clone)]
pub(crate) struct Pki {
    dir: PathBuf,
}

impl Pki {
    pub(crate) fn at(dir: &Path) -> Self {
        Pki { dir: dir.to_owned() }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Makes all of them. `server` is the API's address, `names` what else it is called, `nodes` the kubelets' names.
    pub(crate) fn make(&self, server: &str, names: &[&str], nodes: &[String]) -> Result<()> {
        std::fs::create_dir_all(&self.dir)?;
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.distinguished_name.push(DnType::CommonName, "lab");
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let certificate = authority.self_signed(&key)?.pem();
        self.write("ca.crt", &certificate)?;
        self.write("ca.key", &key.serialize_pem())?;
        let issuer = Issuer::new(authority, key);

        let tokens = KeyPair::generate()?;
        self.write("tokens.key", &tokens.serialize_pem())?;
        self.write("tokens.pub", &tokens.public_key_pem())?;

        self.sign(&issuer, "apiserver", ("kube-apiserver", None), &Role::Server(names))?;
        self.sign(&issuer, "to-kubelet", ("apiserver-to-kubelet", Some("system:masters")), &Role::Client)?;
        let mut users = vec![
            ("admin".to_owned(), "admin".to_owned(), Some("system:masters")),
            ("controllers".to_owned(), "system:kube-controller-manager".to_owned(), None),
            ("scheduler".to_owned(), "system:kube-scheduler".to_owned(), None),
            ("proxy".to_owned(), "system:kube-proxy".to_owned(), None),
            ("dns".to_owned(), "dns".to_owned(), Some("system:masters")),
        ];
        users.extend(nodes.iter().map(|node| (format!("node-{node}"), format!("system:node:{node}"), Some("system:nodes"))));
        for (file, name, group) in &users {
            self.sign(&issuer, file, (name, *group), &Role::Client)?;
            self.write(&format!("{file}.kubeconfig"), &self.kubeconfig(server, file))?;
        }
        Ok(())
    }

    fn sign(&self, issuer: &Issuer<'_, KeyPair>, file: &str, owner: (&str, Option<&str>), role: &Role<'_>) -> Result<()> {
        let (names, usage) = match role {
            Role::Client => (Vec::new(), ExtendedKeyUsagePurpose::ClientAuth),
            Role::Server(names) => (names.iter().map(|name| (*name).to_owned()).collect(), ExtendedKeyUsagePurpose::ServerAuth),
        };
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, owner.0);
        if let Some(group) = owner.1 {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate()?;
        self.write(&format!("{file}.crt"), &params.signed_by(&key, issuer)?.pem())?;
        self.write(&format!("{file}.key"), &key.serialize_pem())
    }

    /// JSON is YAML too.
    fn kubeconfig(&self, server: &str, user: &str) -> String {
        serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": {"server": server, "certificate-authority": self.file("ca.crt")}}],
            "users": [{"name": user, "user": {
                "client-certificate": self.file(&format!("{user}.crt")),
                "client-key": self.file(&format!("{user}.key")),
            }}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
            "current-context": "lab",
        })
        .to_string()
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.file(name);
        std::fs::write(&path, text).with_context(|| format!("could not write {}", path.display()))
    }
}
