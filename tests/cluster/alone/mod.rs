//! Tests that stop confrev. Their names come first in the order in which tests are started, so that they wait for each
//! other and not for all the rest.

mod acceptance;
mod collector;
mod outage;
mod restart;
mod traces;
