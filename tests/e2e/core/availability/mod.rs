//! Tests that stop confrev. Their names sort first, so the tests start first: they wait for each other, and not for all
//! other tests.

mod admin_kubeconfig;
mod outage;
mod restart;
mod traces;
