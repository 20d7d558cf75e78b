//! What the annotation `roll` asks for.

use crate::{
    annotations,
    resolve::{
        Plan, Request, To,
        used::{has_new_roll, has_other_roll},
    },
    snapshot::ObjectName,
};

/// What the annotation `roll` of a request asks for; nothing in an undo that restores annotations.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a question of its own")]
pub(super) struct Roll {
    /// What the request moves, if the value is a plan.
    pub(super) plan: Option<Plan>,
    /// The value is new, from a person or the controller, and not restored by an undo.
    pub(super) is_new: bool,
    /// The value differs from the stored one. In a later pass of one admission, a new value looks as if an undo restored it.
    pub(super) is_other: bool,
    /// A person or the controller changed the value, or removed it.
    pub(super) is_poke: bool,
    /// That other value is a person's own text, and no plan.
    pub(super) is_free_text: bool,
}

impl Roll {
    /// `Err`: why the value is invalid.
    pub(super) fn of(request: &Request<'_>) -> Result<Self, String> {
        let value = request.new.annotation(annotations::ROLL);
        let (plan, is_other) = (Plan::of(request)?, has_other_roll(request));
        let is_text = || value.is_some_and(|roll| Plan::parse(roll) == Ok(None));
        Ok(Self {
            is_new: has_new_roll(request),
            is_poke: request.old.as_ref().is_some_and(|old| value != old.annotation(annotations::ROLL)),
            is_free_text: plan.is_none() && is_other && is_text(),
            plan,
            is_other,
        })
    }

    /// The controller's plan.
    pub(super) fn automatic(&self) -> Option<&Plan> {
        self.plan.as_ref().filter(|plan| plan.is_automatic)
    }

    /// Whether a person asks for the newest content of a source, by a new value.
    pub(super) fn asks_for(&self, source: &ObjectName) -> bool {
        match &self.plan {
            Some(plan) if plan.is_automatic => false,
            Some(plan) => plan.of_source(source).is_some_and(|wanted| wanted.to == To::Present),
            None => self.is_new && self.is_free_text,
        }
    }

    /// Whether the plan moves a source to its newest content even if that was refused.
    pub(super) fn is_forced(&self, source: &ObjectName) -> bool {
        let wanted = self.plan.as_ref().and_then(|plan| plan.of_source(source));
        wanted.is_some_and(|wanted| wanted.forced && wanted.to == To::Present)
    }

    /// Whether the controller asks for the decision on a write that admission did not answer: its plan moves nothing.
    pub(super) fn is_late(&self) -> bool {
        self.automatic().is_some_and(|plan| plan.moves.is_empty() && plan.every.is_none())
    }
}
