package web

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// press presses keys, one after the other.
func (b *browser) press(keys ...string) {
	b.Helper()
	for _, key := range keys {
		b.do(chromedp.KeyEvent(key))
	}
}

// focus returns what has the focus.
func (b *browser) focus() string {
	b.Helper()
	return eval[string](b, `(() => { const e = document.activeElement; return (e.id || e.name || '') + '|' + (e.getAttribute('aria-label') || e.textContent).trim(); })()`)
}

// tabTo presses Tab until an element has the focus that begins so, and returns what had it on the
// way.
func (b *browser) tabTo(want string) (way []string) {
	b.Helper()
	for range 60 {
		b.press(kb.Tab)
		focus := b.focus()
		way = append(way, focus)
		if strings.HasPrefix(focus, want) {
			require.True(b, eval[bool](b, `getComputedStyle(document.activeElement).outlineStyle !== 'none'`), "%s shows no focus", focus)
			return way
		}
	}
	require.Fail(b, "out of reach of the keyboard", "%s: %q", want, way)
	return nil
}

// TestBrowser_ByKeyboard: dead letters are selected, dropped and revived without a mouse.
func TestBrowser_ByKeyboard(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders")
	fill(t, q, 3, 0, "a")
	kill(t, q, 3, "broken")
	s := newSite(t, rdb, Options{Write: true})
	b := newBrowser(t, 1100, 800)
	b.open(s.url + "/")
	way := b.tabTo("|orders")
	require.Equal(t, "|Skip to content", way[0])
	require.Equal(t, []string{"|Sluice", "|Queues", "|Locks", "live|Live", "q|"}, way[1:6])
	b.press(kb.Enter)
	b.eventually(`location.pathname === '/queues/orders' && document.readyState === 'complete'`)
	b.tabTo("|Limits")
	b.press(kb.Enter)
	b.tabTo("running|")
	b.press("3")
	require.Equal(t, []string{"rate|"}, b.tabTo("rate|"))
	b.press("1", "0", "/", "m", kb.Enter)
	b.eventually(`document.querySelector('.notice')?.textContent.includes('limits: 3 running, 10/m, burst 1') && document.readyState === 'complete'`)
	require.Contains(t, eval[string](b, `document.getElementById('state').textContent`), "Limits 3 running, 10/m, burst 1")
	b.tabTo("|Limits")
	b.press(kb.Enter)
	b.tabTo("do|Take them away")
	b.press(kb.Enter)
	b.eventually(`document.querySelector('.notice')?.textContent.includes('has no limits') && document.readyState === 'complete'`)
	b.press(kb.Tab, kb.Enter) // skip to the content
	require.Equal(t, "main", eval[string](b, `document.activeElement.id`))
	b.tabTo("|Dead")
	b.press(kb.Enter)
	b.eventually(`location.search === '?state=dead' && document.readyState === 'complete'`)
	b.tabTo("all|Select all")
	b.press(" ")
	require.Equal(t, "With 3 selected:", eval[string](b, `document.getElementById('picked').textContent`))
	b.tabTo("id|Select a0001")
	b.press(" ")
	require.Equal(t, "With 2 selected:", eval[string](b, `document.getElementById('picked').textContent`))
	b.tabTo("do|Drop")
	b.press(kb.Enter)
	b.eventually(`document.querySelector('h1').textContent === 'Drop 2 dead letters?'`)
	b.tabTo("do|Drop for good")
	b.press(kb.Enter)
	b.eventually(`document.querySelector('.notice')?.textContent.includes('2 tasks dropped for good')`)
	b.tabTo("id|Select a0001")
	b.press(" ")
	b.tabTo("do|Revive")
	b.press(kb.Enter)
	b.eventually(`document.querySelector('.notice')?.textContent.includes('1 task revived')`)
	b.tabTo("|Purge")
	b.press(kb.Enter)
	b.tabTo("purge-name|")
	b.press("o", "r", "d", "e", "r", "s", kb.Enter)
	b.eventually(`document.querySelector('.notice')?.textContent.includes('is purged')`)
	stats, err := q.Stats(t.Context())
	require.NoError(t, err)
	require.Zero(t, stats.Due+stats.Dead)
	b.requireQuiet(s.url)
}

// names returns the accessible names of a page, by their roles.
func (b *browser) names() map[string][]string {
	b.Helper()
	all := map[string][]string{}
	for _, node := range call(b, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}).Nodes {
		if node.Ignored || node.Role == nil || node.Name == nil {
			continue
		}
		var role, name string
		require.NoError(b, json.Unmarshal(node.Role.Value, &role))
		require.NoError(b, json.Unmarshal(node.Name.Value, &name))
		all[role] = append(all[role], name)
	}
	return all
}

// TestBrowser_AccessibilityTree: landmarks, tables, charts and controls have their roles and names,
// on a wide window and on a phone.
func TestBrowser_AccessibilityTree(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders")
	fill(t, q, 2, 0, "a")
	kill(t, q, 2, "broken")
	fill(t, q, 1, time.Hour, "b")
	require.NoError(t, q.SetLimits(t.Context(), sluice.Limits{Running: 3}))
	fill(t, newQueue(t, rdb, "mails"), 2, 0, "a")
	says(t, rdb, "orders", map[string]any{"label": "mailer-1", "running": 3, "stuck": 1})
	s := newSite(t, rdb, Options{Write: true})
	for _, width := range []int{1100, 360} {
		b := newBrowser(t, width, 800)
		b.open(s.url + "/")
		names := b.names()
		require.Contains(t, names["navigation"], "Main")
		require.Len(t, names["main"], 1)
		require.Len(t, names["banner"], 1)
		require.Len(t, names["contentinfo"], 1)
		require.Contains(t, names["heading"], "Queues")
		require.Contains(t, names["table"], "Queues")
		require.Subset(t, names["columnheader"], []string{"Queue", "Due", "Lateness", "Scheduled", "Leased", "Dead", "Workers", "Finished", "Failed", "Change"})
		require.Contains(t, strings.Join(names["cell"], "|"), "No worker none seen for a day")
		require.Contains(t, names["rowheader"], "orders 1 stuck Limits 3 running")
		require.Contains(t, names["button"], "Live")
		require.Contains(t, names["searchbox"], "Filter by name")

		b.open(s.url + "/queues/orders?state=dead")
		names = b.names()
		require.Contains(t, names["table"], "Dead letters")
		require.Subset(t, names["columnheader"], []string{"ID", "Died", "Attempts", "Reason", "Worker", "Running", "Stuck", "Started", "Last seen"})
		require.Contains(t, names["table"], "Workers")
		require.Contains(t, names["rowheader"], "mailer-1 node-1:7")
		for _, text := range []string{"3 of 4", "1 stuck"} { // on a phone a row's cells are one
			require.Contains(t, strings.Join(names["cell"], "|"), text)
		}
		require.Contains(t, names["link"], "1 worker")
		require.Subset(t, names["button"], []string{"Pause", "Find", "Revive", "Drop…", "Revive all dead letters…"})
		require.Subset(t, names["checkbox"], []string{"Select all on this page", "Select a0000", "Select a0001"})
		require.Subset(t, names["navigation"], []string{"Main", "Breadcrumb", "States"})
		require.True(t, slices.ContainsFunc(names["image"], func(name string) bool {
			return strings.HasPrefix(name, "Dead, the last") && strings.HasSuffix(name, "2 to 2, now 2")
		}), names["image"])
		for role, all := range names {
			if slices.Contains([]string{"button", "link", "checkbox", "searchbox", "combobox", "textbox", "image", "table", "heading"}, role) {
				require.NotContains(t, all, "", "a %s without a name", role)
			}
		}
		b.do(chromedp.Click(`.limits summary`), chromedp.WaitVisible(`#running`))
		names = b.names()
		require.Subset(t, names["textbox"], []string{"Leased at a time", "Handed out", "Of these at once"})
		require.Subset(t, names["button"], []string{"Set limits", "Take them away"})
		require.Contains(t, names["form"], "Limits")
		b.requireQuiet(s.url)
	}
}

// TestBrowser_AnyWidthAndScheme: no page scrolls sideways, not with the longest names either; dark
// and light differ; text has enough contrast; the browser complains of nothing.
func TestBrowser_AnyWidthAndScheme(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	long := strings.Repeat("W", 512)
	for _, name := range []string{"orders", long, "a/b%2F?c=../<script>alert(1)</script>"} {
		q := newQueue(t, rdb, name, sluice.WithRetention(time.Hour))
		_, err := q.EnqueueBatch(t.Context(), []sluice.Task{{ID: "done" + long[4:]}, {ID: "done"}})
		require.NoError(t, err)
		finishAll(t, q, 2, long)
		_, err = q.EnqueueBatch(t.Context(), []sluice.Task{
			{ID: long, Kind: long[:256], Payload: []byte(long), Header: map[string]string{long[:256]: long}}, {ID: binary(), Payload: []byte(binary())},
			{ID: `"><img src=x onerror=alert(1)>`, Payload: []byte("<script>alert(1)</script>")},
		})
		require.NoError(t, err)
		kill(t, q, 2, long)
		fill(t, q, 3, 0, "b")
		_, err = q.EnqueueBatch(t.Context(), []sluice.Task{{ID: "p" + long[1:], Group: long[:256], Delay: time.Hour}, {ID: "w" + long[1:], Group: long[:256], Delay: time.Hour}})
		require.NoError(t, err)
		entries, err := q.Claim(t.Context(), 2, time.Hour)
		require.NoError(t, err)
		require.NoError(t, q.Retry(t.Context(), time.Hour, long, entries[0]))
		if name != "orders" {
			lease(t, rdb, name, entries[1].ID, "3600/AAAAAAAA")
			says(t, rdb, name, map[string]any{"label": long, "host": long, "version": long, "running": 1000, "concurrency": 1000, "stuck": 1000})
			says(t, rdb, name, map[string]any{"id": "B", "label": "b"})
		}
		require.NoError(t, q.SetLimits(t.Context(), sluice.Limits{Running: 1_000_000_000, Rate: 1_000_000_000, Per: 8759*time.Hour + 59*time.Minute, Burst: 1_000_000_000}))
	}
	_, err := newQueue(t, rdb, "orders").Claim(t.Context(), 1, time.Hour)
	require.NoError(t, err)
	require.NoError(t, newQueue(t, rdb, "orders").SetLimits(t.Context(), sluice.Limits{Running: 1, Rate: 10})) // it is at its limit
	locker, err := sluice.NewLocker(rdb, sluice.WithTTL(time.Hour), sluice.WithOwner(strings.Repeat("o", 64)))
	require.NoError(t, err)
	_, err = locker.TryLock(t.Context(), long)
	require.NoError(t, err)
	_, err = locker.TryLock(t.Context(), "gate", sluice.WithPermits(3))
	require.NoError(t, err)
	s := newSite(t, rdb, Options{Write: true})
	b := newBrowser(t, 375, 800)
	paths := []string{"/", "/locks", "/locks/" + long, "/nowhere"}
	for _, name := range []string{"orders", long, "a/b%2F?c=../<script>alert(1)</script>"} {
		queue := "/queues/" + segment(name)
		paths = append(paths, queue, queue+"?state=dead", queue+"?state=leased", queue+"?state=scheduled", queue+"?state=done", queue+"?state=waiting", queue+"?state=waiting&group="+long[:256], queue+"/tasks/w"+long[1:], queue+"/tasks/p"+long[1:], queue+"/tasks/done", queue+"/tasks/done"+long[4:]+"?payload=1", queue+"/tasks/b0000", queue+"/tasks/b0001", queue+"/tasks/"+long+"?payload=1", queue+"/tasks/"+segment(binary())+"?payload=1")
	}
	backgrounds := map[string]bool{}
	for scheme, widths := range map[string][]int64{"light": {360, 900, 1280}, "dark": {900}} { // colours do not depend on the width
		b.scheme(scheme)
		for _, width := range widths {
			b.resize(width, 800)
			for _, path := range paths {
				b.open(s.url + path)
				eval[bool](b, `document.querySelectorAll('details').forEach((d) => { d.open = true; }) === undefined`)
				require.LessOrEqual(t, eval[int64](b, `document.documentElement.scrollWidth`), width, "%s scrolls sideways at %d", path, width)
				require.Empty(t, eval[[]string](b, cutOff), "%s at %d", path, width)
				require.Empty(t, eval[[]string](b, lowContrast), "%s, %s", path, scheme)
				require.Zero(t, eval[int](b, `document.querySelectorAll('main img, main script').length`))
			}
		}
		backgrounds[eval[string](b, `getComputedStyle(document.body).backgroundColor`)] = true
	}
	require.Len(t, backgrounds, 2)
	b.mu.Lock()
	b.messages = slices.DeleteFunc(b.messages, func(m string) bool { return strings.HasSuffix(m, "/nowhere") }) // its 404
	b.mu.Unlock()
	b.requireQuiet(s.url)
}

// cutOff lists the texts that stick out of a table, a tab or a story, which hide what does.
const cutOff = `(() => {
	const bad = new Set(), range = document.createRange();
	for (const box of document.querySelectorAll('.list, .tab, .story > div')) {
		const edge = box.getBoundingClientRect().right + 1, texts = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
		while (texts.nextNode()) {
			range.selectNodeContents(texts.currentNode);
			if (texts.currentNode.nodeValue.trim() && !(innerWidth <= 760 && texts.currentNode.parentElement.closest('thead')) && range.getBoundingClientRect().right > edge) bad.add(texts.currentNode.nodeValue.slice(0, 30));
		}
	}
	return [...bad];
})()`

// lowContrast lists the texts of a page whose contrast is less than 4.5, as WCAG has it.
const lowContrast = `(() => {
	const channels = (c) => c.match(/[\d.]+/g).map(Number);
	const luminance = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
	const behind = (e) => { for (; e; e = e.parentElement) { const c = channels(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] === 1) return c.slice(0, 3); } return [255, 255, 255]; };
	const bad = new Set();
	for (const e of document.querySelectorAll('body *')) {
		if (e.closest('svg') || !e.offsetParent || ![...e.childNodes].some((n) => n.nodeType === 3 && n.nodeValue.trim())) continue;
		const a = luminance(channels(getComputedStyle(e).color).slice(0, 3)), z = luminance(behind(e));
		const ratio = (Math.max(a, z) + .05) / (Math.min(a, z) + .05);
		if (ratio < 4.5) bad.add(e.className + ': ' + e.textContent.trim().slice(0, 20) + ' ' + ratio.toFixed(2));
	}
	return [...bad];
})()`

// TestBrowser_LiveWithoutReload: figures change while the page stays, and so does the focus; the
// button stops it; a server that is gone is told once, and the page recovers.
func TestBrowser_LiveWithoutReload(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	for _, name := range []string{"b", "c"} {
		fill(t, newQueue(t, rdb, name), 1, 0, "a")
	}
	s := newSite(t, rdb, Options{Write: true})
	b := newBrowser(t, 1100, 800)
	b.open(s.url + "/")
	eval[bool](b, `window.stays = true`)
	b.tabTo("|c")
	a := newQueue(t, rdb, "a")
	fill(t, a, 7, 0, "a")
	s.later()
	b.eventually(`document.querySelector('[data-key=a] .num')?.textContent === '7'`)
	require.Equal(t, "|c", b.focus(), "a row came in front of the one with the focus")
	require.NoError(t, a.Purge(t.Context()))
	b.eventually(`document.querySelector('[data-key=a] .num')?.textContent === '0'`)
	require.Equal(t, "|c", b.focus())
	require.True(t, eval[bool](b, `window.stays === true`))

	b.open(s.url + "/queues/b?state=dead")
	eval[bool](b, `window.stays = true`)
	fill(t, newQueue(t, rdb, "b"), 4, 0, "more")
	b.eventually(`document.querySelector('.tab.due .tab-count').textContent === '5'`)
	b.eventually(`document.querySelector('.tab.due .chart .line').getAttribute('d').includes('L')`)
	require.True(t, eval[bool](b, `window.stays === true`))
	b.requireQuiet(s.url)

	b.tabTo("live|Live")
	b.press(kb.Enter)
	require.Equal(t, "false", eval[string](b, `document.getElementById('live').getAttribute('aria-pressed')`))
	fill(t, newQueue(t, rdb, "b"), 1, 0, "last")
	asked := b.asked()
	// For longer than the page's pause between two looks.
	require.Never(t, func() bool { return b.asked() != asked }, 3*time.Second, 50*time.Millisecond, "it asks although it was told not to")
	b.press(kb.Enter)
	b.eventually(`document.querySelector('.tab.due .tab-count').textContent === '6'`)

	s.fails.Store(true)
	b.eventually(`document.getElementById('live-note').textContent.startsWith('No answer: these figures are as of ')`)
	s.fails.Store(false)
	b.eventually(`document.getElementById('live-note').textContent === ''`)
}

// asked returns how many requests the browser has sent.
func (b *browser) asked() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.requests)
}

// TestBrowser_WithoutScript: all that is done by links and forms works.
func TestBrowser_WithoutScript(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders")
	fill(t, q, 2, 0, "a")
	kill(t, q, 2, "broken")
	s := newSite(t, rdb, Options{Write: true})
	b := newBrowser(t, 1100, 800)
	b.withoutScript()
	b.open(s.url + "/queues/orders?state=dead")
	b.do(chromedp.Click(`input[value="a0001"]`), chromedp.Click(`button[value="revive"]`), chromedp.WaitVisible(".notice"))
	stats, err := q.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, stats.Due)
	require.EqualValues(t, 1, stats.Dead)
}
