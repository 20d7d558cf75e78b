//! A page as a person uses it: reads its text, presses buttons and links by their text, fills in fields by their labels.

use confrev_controlplane::wait_for;
use serde_json::{Value, json};

use crate::axe;
use crate::browser::Browser;
use crate::shared::Dashboard;
use crate::world::LIMIT;

/// A browser at a dashboard.
pub(crate) struct Page {
    pub(crate) browser: Browser,
}

impl Page {
    /// Opens a dashboard in a new browser.
    pub(crate) fn open(dashboard: &Dashboard) -> Self {
        let mut page = Self { browser: Browser::start() };
        page.browser.open(&dashboard.address);
        page.sees("Workloads");
        page
    }

    /// The text that is visible; none of a page that is still loading.
    pub(crate) fn text(&mut self) -> String {
        let text = self.browser.eval("document.readyState === 'complete' ? document.body.innerText : ''");
        text.as_str().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// Waits until the page shows this text.
    #[track_caller]
    pub(crate) fn sees(&mut self, wanted: &str) {
        wait_for(&format!("the page to show {wanted:?}"), LIMIT, || {
            let text = self.text();
            if text.contains(wanted) { Ok(()) } else { Err(text) }
        });
    }

    /// Waits until the page no longer shows this text.
    #[track_caller]
    pub(crate) fn sees_no(&mut self, unwanted: &str) {
        wait_for(&format!("the page to hide {unwanted:?}"), LIMIT, || {
            let text = self.text();
            if text.contains(unwanted) { Err(text) } else { Ok(()) }
        });
    }

    /// Presses a visible link or button that begins with this text. The page may change at any time, so the button must stay at its
    /// place for two frames, and the button is pressed again if the press did not reach it.
    #[track_caller]
    pub(crate) fn press(&mut self, text: &str) {
        let find = format!(
            "(async () => {{ const wanted = {}; if (document.readyState !== 'complete') return null;
              const one = [...document.querySelectorAll('a, button')].find((one) =>
                one.innerText.trim().startsWith(wanted) && one.checkVisibility() && !one.matches(':disabled'));
              if (!one) return null;
              one.scrollIntoView({{block: 'center', behavior: 'instant'}});
              const place = () => {{ const box = one.getBoundingClientRect();
                return [box.x + Math.min(box.width / 2, 20), box.y + box.height / 2]; }};
              const before = place();
              for (let i = 0; i < 2; i += 1) await new Promise(requestAnimationFrame);
              const [x, y] = place();
              if (!one.isConnected || before.join() !== [x, y].join() || !one.contains(document.elementFromPoint(x, y))) return null;
              window.missed = true;
              one.addEventListener('click', () => {{ window.missed = false; }}, {{capture: true, once: true}});
              return [x, y]; }})()",
            json!(text)
        );
        wait_for(&format!("a button {text:?}"), LIMIT, || {
            let point = self.browser.eval(&find);
            if point.is_null() {
                return Err(self.text());
            }
            self.browser.press(point[0].as_f64().unwrap(), point[1].as_f64().unwrap());
            // A page that the press has opened has no such variable.
            let missed = self.browser.eval("window.missed === true");
            if missed == true { Err(format!("the press missed it: {}", self.text())) } else { Ok(()) }
        });
    }

    /// Moves the focus to the link or button that begins with this text, and presses it, by the keyboard alone.
    #[track_caller]
    pub(crate) fn press_by_keyboard(&mut self, text: &str) {
        /// The most elements before it.
        const ELEMENTS: usize = 100;
        let is_there = format!("document.activeElement.innerText.trim().startsWith({})", json!(text));
        let visible = "getComputedStyle(document.activeElement).outlineStyle !== 'none'";
        for _ in 0..ELEMENTS {
            self.browser.key("Tab", 9);
            if self.browser.eval(&is_there) == true {
                assert_eq!(self.browser.eval(visible), true, "{text:?} shows that it has the focus");
                return self.browser.key("Enter", 13);
            }
        }
        panic!("the keyboard does not reach {text:?}: {}", self.text());
    }

    /// Chooses in a list by the text of its label. `near`: a text of the form that has the list.
    #[track_caller]
    pub(crate) fn choose(&mut self, label: &str, value: &str) {
        let choose = format!(
            "(() => {{ const labels = [...document.querySelectorAll('label')];
              const label = labels.find((one) => one.firstChild.textContent.trim() === {} && one.querySelector('select'));
              if (!label) return 'no label';
              const select = label.querySelector('select');
              const option = [...select.options].find((one) => one.text.startsWith({}));
              if (!option) return [...select.options].map((one) => one.text).join();
              select.value = option.value; select.dispatchEvent(new Event('input', {{bubbles: true}})); return ''; }})()",
            json!(label),
            json!(value)
        );
        wait_for(&format!("{value:?} in the list {label:?}"), LIMIT, || {
            let problem = self.browser.eval(&choose);
            if problem == "" { Ok(()) } else { Err(problem.to_string()) }
        });
    }

    /// The text of a disabled button's explanation; null if the button can be used.
    pub(crate) fn why_disabled(&mut self, button: &str) -> Value {
        self.browser.eval(&format!(
            "(() => {{ const one = [...document.querySelectorAll('button')].find((b) => b.innerText.startsWith({}));
              return one && one.matches(':disabled') ? one.closest('form').innerText : null; }})()",
            json!(button)
        ))
    }

    /// Checks that the page has no violation of accessibility in each colour scheme, at each width.
    #[track_caller]
    pub(crate) fn is_accessible(&mut self) {
        for scheme in ["light", "dark"] {
            for (width, contrast) in [(1280, "no-preference"), (375, "more")] {
                self.browser.media(&[("prefers-color-scheme", scheme), ("prefers-contrast", contrast)]);
                self.browser.size(width, 900);
                let found = axe::violations(&mut self.browser);
                assert!(found.is_empty(), "{scheme}, {width} pixels: {found:#?}");
                let wide = self.browser.eval("document.documentElement.scrollWidth");
                assert!(wide.as_u64().unwrap() <= width.into(), "{width} pixels: the page is {wide} wide");
            }
        }
        self.browser.media(&[]);
        self.browser.size(1280, 900);
    }

    /// Checks that the page reported no error.
    #[track_caller]
    pub(crate) fn has_no_errors(&mut self) {
        self.browser.eval("0");
        assert!(self.browser.problems.is_empty(), "{:#?}", self.browser.problems);
    }
}
