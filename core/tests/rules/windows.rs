//! Windows: when automatic rolls happen, across days, time zones and changes of the clock.

use confrev::gate_settings::{Place, Texts, Windows, closed};
use jiff::Timestamp;

use confrev::annotations;
use serde_json::json;

use super::{
    story::{BLUE, GREEN, poke, world},
    world::{annotate, configmap, deployment, volume},
};

fn at(text: &str) -> Timestamp {
    format!("{text}Z").parse().unwrap()
}

/// Checks the next opening of windows: for each time, the same time if they are open.
fn check(windows: &str, cases: &[(&str, &str)]) {
    let parsed = Windows::parse(windows).unwrap();
    for (now, opens) in cases {
        let found = parsed.next_open(at(now)).map(|at| at.to_string());
        assert_eq!(found, Some(at(opens).to_string()), "{windows} at {now}");
    }
}

/// 24 November 2026 is a Tuesday.
#[test]
fn opens_on_its_days() {
    let berlin = "Mon-Fri 09:00-17:00 Europe/Berlin";
    check(
        berlin,
        &[
            ("2026-11-24T07:59:59", "2026-11-24T08:00:00"),
            ("2026-11-24T08:00:00", "2026-11-24T08:00:00"),
            ("2026-11-24T15:59:59", "2026-11-24T15:59:59"),
            ("2026-11-24T16:00:00", "2026-11-25T08:00:00"),
            ("2026-11-27T16:00:00", "2026-11-30T08:00:00"),
        ],
    );
    check(&berlin.to_lowercase(), &[("2026-11-27T16:00:00", "2026-11-30T08:00:00")]);
    check("09:00-17:00", &[("2026-11-28T18:00:00", "2026-11-29T09:00:00")]);
    check(
        "Fri-Mon 10:00-11:00",
        &[
            ("2026-11-24T00:00:00", "2026-11-27T10:00:00"),
            ("2026-11-29T10:30:00", "2026-11-29T10:30:00"),
            ("2026-11-30T11:00:00", "2026-12-04T10:00:00"),
        ],
    );
    check(
        "Sat,Sun 00:00-24:00",
        &[
            ("2026-11-27T23:59:59", "2026-11-28T00:00:00"),
            ("2026-11-29T23:59:59", "2026-11-29T23:59:59"),
            ("2026-11-30T00:00:00", "2026-12-05T00:00:00"),
        ],
    );
    check(
        "Mon 09:00-10:00; Wed 09:00-10:00 Asia/Tokyo",
        &[("2026-11-24T12:00:00", "2026-11-25T00:00:00"), ("2026-11-25T01:00:00", "2026-11-30T09:00:00")],
    );
}

/// The part after midnight belongs to the day before.
#[test]
fn window_may_cross_midnight() {
    check(
        "Fri 22:00-04:00",
        &[
            ("2026-11-27T03:00:00", "2026-11-27T22:00:00"),
            ("2026-11-28T00:00:00", "2026-11-28T00:00:00"),
            ("2026-11-28T03:59:59", "2026-11-28T03:59:59"),
            ("2026-11-28T04:00:00", "2026-12-04T22:00:00"),
        ],
    );
    check("Fri 22:00-00:00", &[("2026-11-28T00:00:00", "2026-12-04T22:00:00")]);
}

/// A skipped time of the day counts as one hour later.
#[test]
fn skipped_hour_opens_later() {
    // In Berlin, 02:00 becomes 03:00 at 01:00 UTC on 29 March 2026.
    check(
        "02:30-05:00 Europe/Berlin",
        &[
            ("2026-03-29T00:00:00", "2026-03-29T01:30:00"),
            ("2026-03-29T01:15:00", "2026-03-29T01:30:00"),
            ("2026-03-29T02:59:59", "2026-03-29T02:59:59"),
            ("2026-03-29T03:00:00", "2026-03-30T00:30:00"),
        ],
    );
    check(
        "02:15-02:45 Europe/Berlin",
        &[("2026-03-29T01:00:00", "2026-03-29T01:15:00"), ("2026-03-29T01:45:00", "2026-03-30T00:15:00")],
    );
    // It would end before it begins: it does not open on that day.
    check("02:30-03:15 Europe/Berlin", &[("2026-03-29T00:00:00", "2026-03-30T00:30:00")]);
    // It would end as it begins.
    check("02:00-03:00 Europe/Berlin", &[("2026-03-29T00:00:00", "2026-03-30T00:00:00")]);
    check(
        "Sat 22:00-04:00 Europe/Berlin",
        &[("2026-03-29T01:59:59", "2026-03-29T01:59:59"), ("2026-03-29T02:00:00", "2026-04-04T20:00:00")],
    );
    // In New York, 02:00 becomes 03:00 at 07:00 UTC on 8 March 2026.
    check(
        "02:30-05:00 America/New_York",
        &[("2026-03-08T06:00:00", "2026-03-08T07:30:00"), ("2026-03-08T09:00:00", "2026-03-09T06:30:00")],
    );
}

/// Of two equal times of the day, the first one counts.
#[test]
fn repeated_hour_opens_once() {
    // In Berlin, 03:00 becomes 02:00 at 01:00 UTC on 25 October 2026.
    check(
        "02:15-02:45 Europe/Berlin",
        &[
            ("2026-10-25T00:00:00", "2026-10-25T00:15:00"),
            ("2026-10-25T00:45:00", "2026-10-26T01:15:00"),
            ("2026-10-25T01:20:00", "2026-10-26T01:15:00"),
        ],
    );
    check(
        "02:00-03:00 Europe/Berlin",
        &[("2026-10-25T01:59:59", "2026-10-25T01:59:59"), ("2026-10-25T02:00:00", "2026-10-26T01:00:00")],
    );
    // In New York, 02:00 becomes 01:00 at 06:00 UTC on 1 November 2026.
    check(
        "01:30-01:45 America/New_York",
        &[("2026-11-01T05:30:00", "2026-11-01T05:30:00"), ("2026-11-01T06:35:00", "2026-11-02T06:30:00")],
    );
    check(
        "Sun 01:00-02:00 America/New_York",
        &[("2026-11-01T06:59:59", "2026-11-01T06:59:59"), ("2026-11-01T07:00:00", "2026-11-08T06:00:00")],
    );
}

#[test]
fn refuses_other_windows() {
    let many = ["09:00-10:00"; 21].join(";");
    assert!(Windows::parse(&["09:00-10:00"; 20].join("; ")).is_ok());
    for (text, part) in [
        ("", "HH:MM-HH:MM"),
        (" ", "HH:MM-HH:MM"),
        (";", "HH:MM-HH:MM"),
        ("09:00-17:00;", "HH:MM-HH:MM"),
        ("Mon", "HH:MM-HH:MM"),
        ("Mon 9:00-17:00", "HH:MM-HH:MM"),
        ("Mon 09:00", "HH:MM-HH:MM"),
        ("09:00-24:01", "HH:MM-HH:MM"),
        ("24:00-04:00", "HH:MM-HH:MM"),
        ("09:60-10:00", "HH:MM-HH:MM"),
        ("+9:00-10:00", "HH:MM-HH:MM"),
        ("Mon-Foo 09:00-17:00", "HH:MM-HH:MM"),
        ("Mon- 09:00-17:00", "HH:MM-HH:MM"),
        ("Mon, 09:00-17:00", "HH:MM-HH:MM"),
        ("Mon, Tue 09:00-17:00", "HH:MM-HH:MM"),
        ("Mon 09:00-17:00 Europe/Berlin x", "HH:MM-HH:MM"),
        ("09:00-09:00", "never open"),
        ("Mon 00:00-00:00 Europe/Berlin", "never open"),
        ("Mon 09:00-17:00 Mars/Base", "time zone"),
        ("09:00-17:00 +02:00", "time zone"),
        ("09:00-17:00 CEST-2", "time zone"),
        (&many, "at most 20"),
    ] {
        let error = Windows::parse(text).unwrap_err();
        assert!(error.contains(part), "{text:?}: {error}");
    }
}

/// The settings of an object with this window.
fn texts(window: Option<&str>) -> Texts {
    Texts::read(|key| window.filter(|_| key == annotations::WINDOW))
}

/// Why a workload does not roll: with its own window, that of its namespace, and that of its source `demo`.
fn reason(
    workload: Option<&str>,
    namespace: Option<&str>,
    source: Option<&str>,
    now: &str,
) -> Option<String> {
    let of = [
        (Place::Workload, texts(workload)),
        (Place::Namespace, texts(namespace)),
        (Place::Source(configmap("demo")), texts(source)),
    ];
    closed(of.iter().map(|(of, texts)| (of.clone(), texts)), at(now)).map(|closed| closed.to_string())
}

#[test]
fn rolls_while_all_windows_are_open() {
    let (day, evening) = (Some("09:00-17:00"), Some("16:00-20:00"));
    assert_eq!(reason(None, None, None, "2026-11-24T12:00:00"), None);
    assert_eq!(reason(day, evening, day, "2026-11-24T16:30:00"), None);
    for (windows, now, says) in [
        ((day, None, None), "2026-11-24T18:00:00", "outside its window, opens Wed 09:00 UTC"),
        (
            (None, Some("Mon 09:00-17:00 Europe/Berlin"), None),
            "2026-11-24T18:00:00",
            "outside the window of its namespace, opens Mon 09:00 Europe/Berlin",
        ),
        (
            (None, None, Some("Mon 09:00-17:00 europe/berlin")),
            "2026-11-30T16:30:00",
            "outside the window of ConfigMap \"demo\", opens Mon 2026-12-07 09:00 Europe/Berlin",
        ),
        (
            (day, evening, None),
            "2026-11-24T12:00:00",
            "outside the window of its namespace, opens Tue 16:00 UTC",
        ),
        // The window of the workload opens first, and closes that of its namespace.
        (
            (day, evening, None),
            "2026-11-24T18:00:00",
            "outside the window of its namespace, opens Wed 16:00 UTC",
        ),
        // Exactly six days, and more.
        (
            (None, None, Some("Mon 18:00-19:00")),
            "2026-11-24T18:00:00",
            "outside the window of ConfigMap \"demo\", opens Mon 18:00 UTC",
        ),
        (
            (None, None, Some("Mon 18:01-19:00")),
            "2026-11-24T18:00:00",
            "outside the window of ConfigMap \"demo\", opens Mon 2026-11-30 18:01 UTC",
        ),
        // They are open at the same time in summer only.
        (
            (Some("Sun 01:30-01:40"), None, Some("Sun 02:35-02:45 Europe/London")),
            "2026-11-24T18:00:00",
            "outside its windows, which are not open at the same time within two weeks",
        ),
        (
            (Some("Sun 01:30-01:40"), None, Some("Sun 02:35-02:45 Europe/London")),
            "2027-03-20T00:00:00",
            "outside the window of ConfigMap \"demo\", opens Sun 2027-03-28 02:35 Europe/London",
        ),
        (
            (Some("Mon 09:00-10:00"), None, Some("Tue 09:00-10:00")),
            "2026-11-24T18:00:00",
            "outside its windows, which are not open at the same time within two weeks",
        ),
    ] {
        let (workload, namespace, source) = windows;
        assert_eq!(reason(workload, namespace, source, now).as_deref(), Some(says), "{windows:?} at {now}");
    }
}

/// A malformed window is closed, whatever the others.
#[test]
fn malformed_window_moves_nothing() {
    let closed = reason(Some("09:00-17:00"), Some("x"), None, "2026-11-24T12:00:00").unwrap();
    assert!(closed.starts_with("the window of its namespace: annotation confrev.dev/window: \"x\" is not"));
}

/// A change is pending, and a write of the window may be there to postpone it. A deployment moves nevertheless.
#[test]
fn change_of_window_rolls_nothing_itself() {
    let mut world = world("blue");
    let stored = world.create(&deployment(&["demo"]));
    world.set("demo", json!({"color": "green"}));
    for of_apply in [false, true] {
        let mut new = if of_apply { deployment(&["demo"]) } else { stored.clone() };
        annotate(&mut new, annotations::WINDOW, "09:00-17:00");
        let admitted = world.admit(&new, Some(&stored));
        assert_eq!(volume(&admitted.object, 0), BLUE, "by an apply: {of_apply}");
        let [warning] = &admitted.decision.warnings[..] else { panic!("{:?}", admitted.decision.warnings) };
        assert!(warning.contains(annotations::WINDOW), "{warning}");
        assert_eq!(volume(&poke(&mut world, &admitted.object, 5), 0), GREEN, "by an apply: {of_apply}");
        new["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
        let deployed = world.update(&new, &stored);
        assert_eq!(volume(&deployed, 0), if of_apply { GREEN } else { BLUE }, "by an apply: {of_apply}");
    }
}

#[test]
fn refusal_of_window_names_annotation_and_text() {
    for window in ["", "Mon", "09:00-17:00 Nowhere/City", "Mon-Fri 25:00-26:00"] {
        let why = texts(Some(window)).invalid().pop().unwrap_or_else(|| panic!("{window:?} is allowed"));
        let begin = format!("annotation {}: {window:?} is not allowed, use ", annotations::WINDOW);
        assert!(why.starts_with(&begin), "{why}");
    }
    assert_eq!(texts(Some("Mon-Fri 09:00-17:00 Europe/Berlin")).invalid(), Vec::<String>::new());
}
