package web

import (
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// buryAll makes dead letters of all due tasks, for a reason.
func buryAll(t *testing.T, q *sluice.Queue, n int, reason string) {
	t.Helper()
	entries, err := q.Claim(t.Context(), n, time.Minute)
	require.NoError(t, err)
	require.Len(t, entries, n)
	require.NoError(t, q.Bury(t.Context(), reason, entries...))
}

// listed returns the tasks that a page lists.
func listed(a answer) (ids []string) {
	for _, found := range regexp.MustCompile(`<th scope="row" class="id"><a href="[^"]*/tasks/([^"]*)"`).FindAllStringSubmatch(a.body, -1) {
		ids = append(ids, html.UnescapeString(found[1]))
	}
	return ids
}

// TestFilter_MeansTasks by each of its fields, in the list and in what is changed.
func TestFilter_MeansTasks(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders")
	for i := range 3 {
		_, err := q.Enqueue(t.Context(), sluice.Task{ID: fmt.Sprintf("a-%d", i), Group: fmt.Sprintf("g%d", i)})
		require.NoError(t, err)
	}
	_, err := q.Claim(t.Context(), 3, time.Hour)
	require.NoError(t, err)
	says(t, rdb, "orders", map[string]any{"label": "Mailer-1", "host": "node-9"})
	lease(t, rdb, "orders", "a-0", "7200/AAAAAAAA") // of which one hour is left: it was claimed an hour ago
	lease(t, rdb, "orders", "a-1", "3600/BBBBBBBB")
	s := newSite(t, rdb, Options{Write: true})
	for query, want := range map[string]string{
		"prefix=a-": "a-0 a-1 a-2", "prefix=-": "", "contains=-2": "a-2", "group=g1": "a-1", "in-group=g2": "a-2",
		"worker=mailer": "a-0", "worker=NODE-9:7": "a-0", "worker=bbbb": "a-1", "until=30m": "a-0", "since=30m": "a-1 a-2",
		"since=2h&until=30m": "a-0", "contains=-2&group=g1": "", "since=" + url.QueryEscape(time.Now().Add(-time.Minute).Format(time.RFC3339)): "a-1 a-2",
	} {
		got := s.get("/queues/orders?state=leased&" + query)
		require.Equal(t, http.StatusOK, got.StatusCode, query)
		require.Equal(t, want, strings.Join(listed(got), " "), query)
		got.has(t, "Only: ", `<details class="limits filter" open>`, "Cancel all that match…")
	}
	for _, bad := range []string{"since=yesterday", "until=-5m"} {
		got := s.get("/queues/orders?state=leased&" + bad)
		require.Equal(t, http.StatusBadRequest, got.StatusCode)
		got.has(t, "how long ago", ">More filters…<", `value="`+strings.SplitAfter(bad, "=")[1]+`"`) // to be mended where it was written
		got.lacks(t, "all that match…", "No task is meant")
	}
	got := s.post("/queues/orders", "do", "cancel", "state", "leased", "group", "g1")
	got.has(t, "Cancel 1 leased task?", "Only: Group is <b><bdi>g1</bdi></b>")
	s.post("/queues/orders", "do", "cancel", "state", "leased", "group", "50%").has(t, "There is nothing to be changed") // not that of all groups
	s.post("/queues/orders", "do", "cancel", "state", "leased", "group", "g1", "sure", "1").has(t, "1 leased task cancelled")
	s.later()
	require.Equal(t, "a-0 a-2", strings.Join(listed(s.get("/queues/orders?state=leased")), " "))
}

// TestFilter_ByKind knows that of small tasks and large ones, shows it, and keeps no payload.
func TestFilter_ByKind(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders")
	for id, task := range map[string]sluice.Task{"a": {Kind: "mail"}, "b": {Kind: "sms"}, "c": {Kind: "mail", Payload: make([]byte, 1<<15)}, "d": {}} {
		task.ID = id
		_, err := q.Enqueue(t.Context(), task)
		require.NoError(t, err)
	}
	s := newSite(t, rdb, Options{Write: true})
	got := s.get("/queues/orders?kind=mail")
	require.ElementsMatch(t, []string{"a", "c"}, listed(got))
	got.has(t, ">Kind</th>", "<bdi>mail</bdi>")
	s.post("/queues/orders", "do", "cancel", "state", "due", "kind", "sms").has(t, "Cancel 1 due task?")
	s.post("/queues/orders", "do", "cancel", "state", "due", "kind", "sms", "sure", "1").has(t, "1 due task cancelled")
}

// TestFilter_TextsComeBackFromAPage: what is shown as escapes, and copied, is meant as it was.
func TestFilter_TextsComeBackFromAPage(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders")
	s := newSite(t, rdb, Options{Write: true})
	for i, text := range append(hostile, `back\\slash`) {
		if text == "" || len(text) > 200 || strings.Contains(text, "\x00") {
			continue
		}
		id := fmt.Sprintf("t%03d", i)
		_, err := q.Enqueue(t.Context(), sluice.Task{ID: text + id, Group: text, Delay: time.Hour})
		require.NoError(t, err)
		got := s.get("/queues/orders?" + url.Values{"state": {"scheduled"}, "prefix": {shown(text)}, "contains": {id}, "in-group": {shown(text)}}.Encode())
		got.requireSafe(t)
		require.Len(t, listed(got), 1, "%q", text)
		form := regexp.MustCompile(`(?s)<form class="actions" method="post" action="/queues/orders".*?</form>`).FindString(got.body)
		pairs := []string{"do", "cancel", "sure", "1"}
		for _, field := range regexp.MustCompile(`<input type="hidden" name="(state|prefix|contains|group)" value="([^"]*)">`).FindAllStringSubmatch(form, -1) {
			pairs = append(pairs, field[1], html.UnescapeString(field[2]))
		}
		s.post("/queues/orders", pairs...).has(t, "1 scheduled task cancelled")
		s.later()
	}
}

// TestBulk_AsksWithACountFirst, in each state, and changes what is in that state alone.
func TestBulk_AsksWithACountFirst(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders", sluice.WithRetention(time.Hour))
	fillLarge(t, q, 20, 100)
	s := newSite(t, rdb, Options{Write: true})
	for _, test := range []struct{ do, state, ask, done string }{
		{"run", "scheduled", "Run now 20 scheduled tasks?", "20 scheduled tasks due now."},
		{"delay", "due", "Put off 41 due tasks?", "41 due tasks put off."},
		{"cancel", "waiting", "Cancel 19 waiting tasks?", "19 waiting tasks cancelled."},
		{"cancel", "leased", "Cancel 20 leased tasks?", "20 leased tasks cancelled."},
		{"cancel", "scheduled", "Cancel 41 scheduled tasks?", "41 scheduled tasks cancelled."},
		{"forget", "done", "Forget 20 done tasks?", "20 done tasks forgotten."},
		{"revive", "dead", "Revive 20 dead letters?", "20 dead letters revived"},
		{"cancel", "due", "Cancel 20 due tasks?", "20 due tasks cancelled."},
	} {
		before, err := q.Stats(t.Context())
		require.NoError(t, err)
		if test.state == "due" || test.state == "scheduled" { // the first that waits in its group may be in play by now
			n := countOf(before, map[string]sluice.State{"due": sluice.StateDue, "scheduled": sluice.StateScheduled}[test.state])
			test.ask = regexp.MustCompile(`\d+`).ReplaceAllString(test.ask, fmt.Sprint(n))
			test.done = regexp.MustCompile(`\d+`).ReplaceAllString(test.done, fmt.Sprint(n))
		}
		got := s.post("/queues/orders", "do", test.do, "state", test.state, "for", "10m")
		got.has(t, test.ask, `name="sure" value="1"`, "Back, change nothing")
		after, err := q.Stats(t.Context())
		require.NoError(t, err)
		after.Lateness, before.Lateness = 0, 0
		require.Equal(t, before, after, "nothing was changed yet")
		s.post("/queues/orders", "do", test.do, "state", test.state, "for", "10m", "sure", "1").has(t, test.done)
		s.later()
	}
	for _, bad := range [][]string{{"revive", "due"}, {"delay", "scheduled"}, {"forget", "dead"}, {"cancel", "dead"}, {"run", "leased"}} {
		require.Equal(t, http.StatusBadRequest, s.post("/queues/orders", "do", bad[0], "state", bad[1], "sure", "1", "for", "1m").StatusCode, bad)
	}
	s.post("/queues/orders", "do", "cancel", "state", "due").has(t, "There is nothing to be changed")
}

// TestBulk_CountsWhileThereIsTime, and says that there are more.
func TestBulk_CountsWhileThereIsTime(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	fillDead(t, rdb, "orders", 990)
	s := newSite(t, rdb, Options{Write: true})
	s.post("/queues/orders", "do", "revive", "state", "dead", "reason", "BROKEN").has(t, "Revive 989 dead letters?")
	s.page.busy = time.Nanosecond
	s.post("/queues/orders", "do", "revive", "state", "dead", "reason", "broken").has(t, "Revive more than 250 dead letters?")
}

// TestQueue_SaysWhyLettersAreDead: how many for each reason, each a link to its letters.
func TestQueue_SaysWhyLettersAreDead(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders")
	for i, n := range []int{7, 3, 2, 1, 1, 1, 1, 1, 1, 1} {
		fill(t, q, n, 0, fmt.Sprint("r", i, "-"))
		buryAll(t, q, n, fmt.Sprintf("reason %d: <b>", i))
	}
	s := newSite(t, rdb, Options{})
	got := s.get("/queues/orders?state=dead")
	got.has(t, `<b>7</b>`, "reason 0: &lt;b&gt;", "2 other reasons: 2 letters")
	got.lacks(t, "there are more", ">All reasons<")
	link := regexp.MustCompile(`class="why" href="([^"]*)"`).FindAllStringSubmatch(got.body, -1)
	require.Len(t, link, mostReasons)
	got = s.get(html.UnescapeString(link[1][1]))
	require.Equal(t, []string{"r1-0002", "r1-0001", "r1-0000"}, listed(got), "the newest first")
	got.has(t, `aria-current="true"><b>3</b>`, ">All reasons<")
	s.get("/queues/orders?state=due").lacks(t, `class="reasons"`)
}

// TestQueue_ShowsUnitsAndStocks of what tasks hold.
func TestQueue_ShowsUnits(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders")
	s := newSite(t, rdb, Options{})
	fill(t, q, 1, 0, "a")
	s.get("/queues/orders").lacks(t, ">Units<", ">Kind<")
	require.NoError(t, q.SetStock(t.Context(), "phone <1>", 10))
	_, err := q.Enqueue(t.Context(), sluice.Task{ID: "b", Take: sluice.Take{Item: "phone <1>", Units: 3}})
	require.NoError(t, err)
	s.later()
	s.get("/queues/orders").has(t, ">Units</th>", "3 × <bdi>phone &lt;1&gt;</bdi>")
}
