"use strict";
// Filters the overview while the user types, and keeps open pages up to date.
(() => {
  const body = document.body;
  const filter = document.getElementById("filter");

  const wanted = () => {
    const data = new FormData(filter);
    return {
      words: (data.get("words") || "").toLowerCase().split(/\s+/).filter(Boolean),
      namespace: data.get("namespace") || "",
      state: data.get("state") || "",
      source: data.get("source") || "",
    };
  };

  const isShown = (row, want, namespace) =>
    (!want.namespace || want.namespace === namespace) &&
    (!want.state || row.dataset.states.split(" ").includes(want.state)) &&
    (!want.source || row.dataset.sources.split(" ").includes(want.source)) &&
    want.words.every((word) => row.dataset.text.includes(word));

  const applyFilter = () => {
    if (!filter) return;
    const want = wanted();
    let all = 0;
    for (const section of document.querySelectorAll("section.namespace")) {
      const namespace = section.querySelector("h2").textContent;
      let shown = 0;
      for (const row of section.querySelectorAll("li.row")) {
        const show = isShown(row, want, namespace);
        if (row.hidden === show) row.hidden = !show;
        if (show) shown += 1;
      }
      section.hidden = shown === 0;
      all += shown;
    }
    document.getElementById("shown").textContent = `${all} shown`;
    document.getElementById("none").hidden = all > 0;
  };

  if (filter) {
    let soon = 0;
    // The address has the filter, so that it can be kept and shared.
    const changed = () => {
      applyFilter();
      const data = new URLSearchParams(new FormData(filter));
      for (const [name, value] of [...data]) if (!value) data.delete(name);
      const query = data.toString();
      if (location.protocol !== "file:") history.replaceState(null, "", query ? `?${query}` : location.pathname);
    };
    filter.addEventListener("input", () => { cancelAnimationFrame(soon); soon = requestAnimationFrame(changed); });
    filter.addEventListener("submit", (event) => { event.preventDefault(); changed(); });
    applyFilter();
    document.addEventListener("keydown", (event) => {
      const isTyping = event.target.closest("input, select, textarea");
      if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault();
        document.getElementById("words").focus();
      }
    });
  }

  const live = body.dataset.live;
  if (!live || location.protocol === "file:") return;
  const status = document.getElementById("live");
  const say = (text) => { if (status.textContent !== text) status.textContent = text; };

  const parse = (text) => new DOMParser().parseFromString(text, "text/html");

  // A choice of the user stays as long as it is offered, even if it is the suggested one.
  const chosen = new WeakSet();
  addEventListener("input", (event) => { if (event.target.matches("select")) chosen.add(event.target); });
  const updateSelect = (old, fresh) => {
    const offered = (select) => [...select.options].map((one) => `${one.value} ${one.text} ${one.defaultSelected}`).join("\n");
    if (offered(old) === offered(fresh)) return;
    const value = chosen.has(old) ? old.value : null;
    old.replaceChildren(...[...fresh.options].map((one) => one.cloneNode(true)));
    if ([...old.options].some((one) => one.value === value)) old.value = value;
  };

  // What the user is doing stays: the choices in forms, and the element with the focus.
  const morph = (old, fresh) => Idiomorph.morph(old, fresh, {
    ignoreActiveValue: true,
    callbacks: {
      beforeNodeMorphed: (node, next) => {
        if (!(node instanceof Element)) return true;
        if (node.matches("select")) { updateSelect(node, next); return false; }
        return !node.matches("input:not([type=hidden])");
      },
    },
  });

  // The number of the last update that the page has; none after a failure.
  let version = Number(body.dataset.version);
  let loading = false;
  let again = false;
  const load = async () => {
    if (loading) { again = true; return; }
    loading = true;
    let pause = 250;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin" });
      // The object of the page may be deleted: the page then says so. If the cluster does not answer, the page stays.
      const fresh = answer.status < 500 ? parse(await answer.text()) : null;
      const main = fresh?.getElementById("main");
      if (main) {
        morph(document.getElementById("main"), main);
        applyFilter();
        version = Number(fresh.body.dataset.version ?? NaN);
        if (events.readyState === EventSource.OPEN) say("live");
      } else {
        say("out of date: the cluster does not answer");
        again = true;
        pause = 2000;
      }
    } catch (error) {
      version = NaN;
      say("not connected");
    }
    loading = false;
    if (again) { again = false; setTimeout(load, pause); }
  };

  const update = ({ section, rows, counts }) => {
    // The page that is loading may be older than this change.
    if (loading) again = true;
    const place = document.getElementById(section)?.querySelector("ul.rows");
    for (const [id, html] of rows) {
      const old = document.getElementById(id);
      if (html === null) { old?.remove(); continue; }
      if (!old && !place) { load(); return; }
      const fresh = parse(html).querySelector("li");
      if (old) morph(old, fresh); else {
        const key = fresh.dataset.text;
        const next = [...place.children].find((row) => row.dataset.text > key);
        place.insertBefore(fresh, next || null);
      }
    }
    if (rows.length) {
      morph(document.getElementById("counts"), parse(counts).getElementById("counts"));
      applyFilter();
    }
  };

  const events = new EventSource(`${body.dataset.root}live/${live}`);
  events.onopen = () => say("live");
  events.onerror = () => say("not connected: is the command still running?");
  // Changes between the page and the stream are in neither.
  events.addEventListener("hello", (event) => { if (JSON.parse(event.data).version !== version) load(); });
  events.addEventListener("reload", load);
  let soon = 0;
  events.addEventListener("change", (event) => {
    const change = JSON.parse(event.data);
    version = change.version;
    if (live === "rows") update(change);
    else if (change.namespace === body.dataset.namespace && !soon) soon = setTimeout(() => { soon = 0; load(); }, 100);
  });
  addEventListener("pagehide", () => events.close());
})();
