//! Container images made of files of this machine: an OCI layout in a tar, with one layer that is not compressed. It can
//! hold a program of the machine with the libraries that it is linked to.

use anyhow::{Context, Result};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What stands at a path of the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file of this machine, executable.
    File(PathBuf),
    /// A small text.
    Text(String),
    /// A symbolic link to this.
    Link(String),
}

/// An image in the making.
#[derive(Debug, Clone, Default)]
pub struct Image {
    files: BTreeMap<PathBuf, Source>,
    entrypoint: Vec<String>,
}

impl Image {
    /// One with the accounts and folders that every program expects.
    #[must_use]
    pub fn new(entrypoint: &[&str]) -> Self {
        let mut image = Image { files: BTreeMap::new(), entrypoint: entrypoint.iter().map(|word| (*word).to_owned()).collect() };
        image.add("/etc/passwd", Source::Text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n".into()));
        image.add("/etc/group", Source::Text("root:x:0:\nnogroup:x:65534:\n".into()));
        image.add("/etc/nsswitch.conf", Source::Text("hosts: files dns\n".into()));
        image
    }

    /// Puts something at an absolute path.
    pub fn add(&mut self, path: &str, source: Source) {
        self.files.insert(PathBuf::from(path), source);
    }

    /// Puts a program of this machine at `path`, with its libraries where its loader looks for them.
    pub fn add_program(&mut self, program: &Path, path: &str) -> Result<()> {
        for library in libraries(program)? {
            let there = library.canonicalize().with_context(|| format!("the library {}", library.display()))?;
            self.files.insert(library, Source::File(there));
        }
        self.add(path, Source::File(program.to_owned()));
        Ok(())
    }

    /// Puts a program in, by its name in the machine's search path.
    pub fn add_tool(&mut self, name: &str) -> Result<()> {
        let found = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(|folder| Path::new(folder).join(name));
        let program = found.into_iter().find(|path| path.exists()).with_context(|| format!("{name} is not installed"))?;
        // Names such as mkfs.ext4 are links to one program that looks at its name.
        let real = program.canonicalize()?;
        self.add_program(&real, &format!("/usr/bin/{name}"))
    }

    /// Puts the static busybox in, under the names of all its programs but those that are there already.
    pub fn add_busybox(&mut self) -> Result<()> {
        let busybox = Path::new("/bin/busybox");
        let names = crate::run_program("/bin/busybox", &["--list"]).context("busybox-static is not installed")?;
        self.add_program(busybox, "/bin/busybox")?;
        for name in names.split_whitespace() {
            let there = |folder: &str| self.files.contains_key(&Path::new(folder).join(name));
            if !there("/bin") && !there("/usr/bin") {
                self.add(&format!("/bin/{name}"), Source::Link("/bin/busybox".into()));
            }
        }
        Ok(())
    }

    /// Writes the tar that `ctr images import` reads.
    pub fn write(&self, name: &str, to: &Path) -> Result<()> {
        let layer_file = to.with_extension("layer");
        self.write_layer(&layer_file)?;
        let (layer, layer_bytes) = digest_of_file(&layer_file)?;
        let config = serde_json::to_vec(&json!({
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": self.entrypoint, "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [layer]},
        }))?;
        let manifest = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(&config), "size": config.len(),
            },
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": layer, "size": layer_bytes}],
        }))?;
        let index = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [{
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "digest": digest(&manifest),
                "size": manifest.len(),
                "annotations": {"io.containerd.image.name": name},
                "platform": {"architecture": "amd64", "os": "linux"},
            }],
        }))?;
        let mut tar = tar::Builder::new(File::create(to).with_context(|| format!("could not make {}", to.display()))?);
        append(&mut tar, "oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        append(&mut tar, "index.json", &index)?;
        append(&mut tar, &blob(&digest(&config)), &config)?;
        append(&mut tar, &blob(&digest(&manifest)), &manifest)?;
        tar.append_path_with_name(&layer_file, blob(&layer))?;
        tar.into_inner()?.flush()?;
        Ok(std::fs::remove_file(layer_file)?)
    }

    fn write_layer(&self, to: &Path) -> Result<()> {
        let mut tar = tar::Builder::new(File::create(to)?);
        let mut folders: BTreeSet<PathBuf> = ["tmp", "proc", "sys", "dev", "run", "root", "var"].map(PathBuf::from).into();
        for path in self.files.keys() {
            folders.extend(inside(path).ancestors().skip(1).filter(|parent| *parent != Path::new("")).map(Path::to_owned));
        }
        for folder in folders {
            let mut header = header(tar::EntryType::Directory, 0, if folder == Path::new("tmp") { 0o1777 } else { 0o755 });
            tar.append_data(&mut header, folder, std::io::empty())?;
        }
        for (path, source) in &self.files {
            match source {
                Source::Text(text) => {
                    let mut header = header(tar::EntryType::Regular, text.len() as u64, 0o644);
                    tar.append_data(&mut header, inside(path), text.as_bytes())?;
                }
                Source::Link(target) => {
                    tar.append_link(&mut header(tar::EntryType::Symlink, 0, 0o777), inside(path), target)?;
                }
                Source::File(from) => {
                    let file = File::open(from).with_context(|| format!("could not read {}", from.display()))?;
                    let mut header = header(tar::EntryType::Regular, file.metadata()?.len(), 0o755);
                    tar.append_data(&mut header, inside(path), file)?;
                }
            }
        }
        Ok(tar.into_inner()?.flush()?)
    }
}

/// Without the first slash: names in a tar have none.
fn inside(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

/// Always the same for the same files: no time, no owner.
fn header(kind: tar::EntryType, size: u64, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

fn append(tar: &mut tar::Builder<File>, name: &str, bytes: &[u8]) -> Result<()> {
    Ok(tar.append_data(&mut header(tar::EntryType::Regular, bytes.len() as u64, 0o644), name, bytes)?)
}

fn digest(bytes: &[u8]) -> String {
    show(Sha256::digest(bytes).as_slice())
}

fn digest_of_file(path: &Path) -> Result<(String, u64)> {
    let mut hasher = Sha256::new();
    let bytes = std::io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok((show(hasher.finalize().as_slice()), bytes))
}

fn show(hash: &[u8]) -> String {
    hash.iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

fn blob(digest: &str) -> String {
    format!("blobs/sha256/{}", digest.trim_start_matches("sha256:"))
}

/// The libraries and the loader of a program, as its loader finds them; none when it is static.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("could not run ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    anyhow::ensure!(!text.contains("not found"), "{} lacks a library:\n{text}", program.display());
    // `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`, or the loader alone with its path.
    let path = |line: &str| {
        let words = line.split_whitespace();
        words.into_iter().find(|word| word.starts_with('/')).map(PathBuf::from)
    };
    Ok(text.lines().filter(|line| line.contains("(0x")).filter_map(path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_files_make_the_same_image_and_a_program_has_its_libraries() {
        let dir = tempfile::tempdir().unwrap();
        let mut image = Image::new(&["/usr/bin/tool"]);
        image.add_program(Path::new("/bin/sh").canonicalize().unwrap().as_path(), "/usr/bin/tool").unwrap();
        image.add("/deep/er/link", Source::Link("/usr/bin/tool".into()));
        let (one, two) = (dir.path().join("one.tar"), dir.path().join("two.tar"));
        image.write("registry.local/x:1", &one).unwrap();
        image.write("registry.local/x:1", &two).unwrap();
        assert_eq!(std::fs::read(&one).unwrap(), std::fs::read(&two).unwrap());

        let mut outer = tar::Archive::new(File::open(&one).unwrap());
        let mut names = Vec::new();
        for entry in outer.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut bytes = Vec::new();
            std::io::copy(&mut entry, &mut bytes).unwrap();
            if name.starts_with("blobs/") {
                assert_eq!(blob(&digest(&bytes)), name);
            }
            names.push((name, bytes));
        }
        let (_, layer) = names.iter().max_by_key(|(_, bytes)| bytes.len()).unwrap();
        let mut layer = tar::Archive::new(layer.as_slice());
        let files: Vec<String> =
            layer.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect();
        assert!(files.iter().any(|file| file == "usr/bin/tool"));
        assert!(files.iter().any(|file| file.contains("libc.so")), "{files:?}");
        assert!(files.iter().any(|file| file.starts_with("deep/er")));
    }
}
