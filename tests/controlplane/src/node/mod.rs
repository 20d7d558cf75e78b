//! Real nodes: containerd, the kubelet and kube-proxy, beside a control plane in a network of its own.
//!
//! `controlplane nodes -- CMD` runs a command in namespaces of its own (network, processes, mounts), with a control plane
//! that listens on the address of the first node ([`isolate`]). The command starts the nodes itself: [`Nodes::shared`].
//! When the command ends, however it ends, the kernel ends every process in the namespaces, and nothing stays mounted.

mod cgroups;
mod containerd;
mod image;
pub mod isolate;
mod kubelet;
mod machine;
pub(crate) mod network;
mod requirements;

pub use image::Image;
pub use machine::Nodes;
