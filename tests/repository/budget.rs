//! The memory budget is the same in the program, in the chart, in the manifests and in `docs/evidence/security.md`.

use std::{collections::BTreeMap, fs, path::Path};

use confrev::{admission::ReviewLimits, budget};

fn text(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The parts by their names in the chart. `checks` is a count.
fn parts() -> BTreeMap<String, usize> {
    let parts = [
        ("program", budget::PROGRAM),
        ("connections", budget::CONNECTIONS),
        ("index", budget::INDEX),
        ("controller", budget::CONTROLLER),
        ("reviews", budget::REVIEWS),
        ("body", budget::BODY),
        ("checks", budget::CHECKS),
        ("notifications", budget::NOTIFICATIONS),
    ];
    parts.map(|(name, amount)| (name.to_owned(), amount)).into()
}

#[test]
fn chart_has_the_parts_of_the_memory_budget() {
    let values = text("charts/confrev/values.yaml");
    let of_memory = values.lines().skip_while(|line| *line != "memory:").skip(1);
    let of_memory = of_memory.take_while(|line| line.starts_with("  "));
    let found: BTreeMap<_, _> = of_memory
        .filter(|line| !line.trim().starts_with('#'))
        .map(|line| line.trim().split_once(": ").unwrap())
        .map(|(name, amount)| (name.to_owned(), amount.parse().unwrap()))
        .collect();
    assert_eq!(found, parts());
    let check = format!("{{{{- define \"confrev.memoryOfCheck\" -}}}}{}{{{{- end }}}}", budget::CHECK);
    assert!(text("charts/confrev/templates/_helpers.tpl").contains(&check), "{check}");
}

#[test]
fn limit_of_manifests_is_sum_of_parts() {
    let sum: usize = parts().values().sum::<usize>() - budget::CHECKS + budget::CHECKS * budget::CHECK;
    assert_eq!(budget::LIMIT, sum);
    for file in ["manifests/self-signed.yaml", "manifests/cert-manager.yaml"] {
        let limit = format!("limits:\n              memory: {}Mi\n", budget::LIMIT);
        assert!(text(file).contains(&limit), "{file} lacks {limit}");
        let named = [("REVIEW_MEMORY", budget::REVIEWS), ("BODY", budget::BODY), ("CHECKS", budget::CHECKS)];
        for (name, amount) in named {
            let variable = format!("- name: CONFREV_MAX_{name}\n              value: \"{amount}\"\n");
            assert!(text(file).contains(&variable), "{file} lacks {variable}");
        }
    }
}

#[test]
fn docs_have_the_parts_of_the_memory_budget() {
    let page = text("docs/evidence/security.md");
    let section =
        page.split("\n## Memory budget\n").nth(1).expect("the section").split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `memory.")?.split(" | ");
        Some((cells.next()?.trim_end_matches('`').to_owned(), cells.next()?.trim().to_owned()))
    });
    let found: BTreeMap<_, _> = rows.collect();
    let wanted = parts().into_iter().map(|(name, amount)| {
        let cell =
            if name == "checks" { format!("{amount} × {}", budget::CHECK) } else { amount.to_string() };
        (name, cell)
    });
    assert_eq!(found, wanted.collect());
    assert!(section.contains(&format!("{} MiB", budget::LIMIT)), "the sum");
}

/// The program limits itself to the parts without any option.
#[test]
fn defaults_of_the_program_match_the_budget() {
    let limits = ReviewLimits::default();
    assert_eq!((limits.memory, limits.body), (budget::REVIEWS << 20, budget::BODY << 20));
}
