//! A Secret mounted as a volume, and swapped as the kubelet does it. The files are symlinks into `..data`, which is
//! itself a symlink and is replaced by a rename.
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// The directory, which is removed on drop.
pub struct Mount {
    dir: PathBuf,
    generation: u32,
}

impl Mount {
    /// A mount with these names and contents of files.
    pub fn new(files: &[(&str, &[u8])]) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("confrev-tls-{}-{number}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut mount = Self { dir, generation: 0 };
        mount.swap(files);
        mount
    }

    /// The mounted directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Replaces all files atomically.
    pub fn swap(&mut self, files: &[(&str, &[u8])]) {
        self.generation += 1;
        let name = format!("..{}", self.generation);
        fs::create_dir(self.dir.join(&name)).unwrap();
        for (file, content) in files {
            fs::write(self.dir.join(&name).join(file), content).unwrap();
        }
        let old = fs::read_link(self.dir.join("..data")).ok();
        symlink(&name, self.dir.join("..data_tmp")).unwrap();
        fs::rename(self.dir.join("..data_tmp"), self.dir.join("..data")).unwrap();
        for (file, _) in files {
            let _ = symlink(Path::new("..data").join(file), self.dir.join(file));
        }
        if let Some(old) = old {
            fs::remove_dir_all(self.dir.join(old)).unwrap();
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}
