package web

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-go/sluice"
	"github.com/sluice-go/sluice/internal/redistest"
)

// TestHistory_IsOfAnHour: each ten seconds one sample, and all that was read of the last minute; no
// more is kept, however often viewers look.
func TestHistory_IsOfAnHour(t *testing.T) {
	t.Parallel()
	var h history
	start := time.Unix(1_800_000_000, 0)
	now := start
	for i := range 3 * 3600 {
		now = start.Add(time.Duration(i) * time.Second)
		h.note(now, sluice.Stats{Due: int64(i), Finished: int64(i)})
	}
	hour := h.lastHour()
	require.LessOrEqual(t, len(h.samples), int(remembered/sampleEvery)+1)
	require.LessOrEqual(t, len(h.points), int(rememberedWhole/time.Second)+1)
	require.WithinDuration(t, now.Add(-time.Hour), hour[0].at, sampleEvery)
	require.Equal(t, now, hour[len(hour)-1].at)
	for i, p := range hour {
		require.EqualValues(t, p.at.Sub(start)/time.Second, p.due)
		if i > 0 {
			require.True(t, p.at.After(hour[i-1].at))
			require.LessOrEqual(t, p.at.Sub(hour[i-1].at), sampleEvery+time.Second)
		}
	}
	require.Equal(t, "+1.0/s", newChange(h.lastMinute(), func(p point) int64 { return p.finished }).Text())
	c := newChart("Due", hour, now, func(p point) int64 { return p.due })
	require.LessOrEqual(t, strings.Count(c.Line, "L")+strings.Count(c.Line, "M"), mostDrawn+2)
	require.Equal(t, 1, strings.Count(c.Line, "M"), "no gap")
	require.Regexp(t, "the last (59m|1h)", c.Label)
}

// TestHistory_GoesOnAfterTheClockWasPutBack, without what was noted of the future.
func TestHistory_GoesOnAfterTheClockWasPutBack(t *testing.T) {
	t.Parallel()
	var h history
	now := time.Unix(1_800_000_000, 0)
	h.note(now.Add(time.Hour), sluice.Stats{Due: 9})
	for i := range 10 {
		h.note(now.Add(time.Duration(i)*sampleEvery), sluice.Stats{Due: 1})
	}
	require.Len(t, h.samples, 10)
	for _, p := range h.lastHour() {
		require.EqualValues(t, 1, p.due)
	}
}

// TestChart_LosesNoPeak where there are more points than it draws.
func TestChart_LosesNoPeak(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var points []point
	for i := range 360 {
		points = append(points, point{at: now.Add(time.Duration(i-360) * 10 * time.Second), due: 10})
	}
	points[217].due = 1000
	c := newChart("Due", points, now, func(p point) int64 { return p.due })
	require.Contains(t, c.Line, " 2.0", "the peak is at the top")
	require.Contains(t, c.Label, "10 to 1,000, now 10")
}

// TestPage_WatchLooksWithoutViewers, ends with its context, and asks for each queue once.
func TestPage_WatchLooksWithoutViewers(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	fill(t, newQueue(t, rdb, "orders"), 3, 0, "a")
	says(t, rdb, "orders", map[string]any{"label": "mailer-1"})
	page, err := New(rdb, Options{})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { // it ends with ctx, which the test waits for
		defer close(ended)
		page.Watch(ctx)
	}()
	orders := page.page.watch.of("orders")
	require.Eventually(t, func() bool { return len(orders.past.lastHour()) > 0 && orders.crews.hasAny() }, 20*time.Second, 10*time.Millisecond)
	require.EqualValues(t, 3, orders.past.lastHour()[0].due)
	stop()
	<-ended
}

// TestQueue_ShowsWorkersThatAreGone, with the tasks that they had, until they are heard of again.
func TestQueue_ShowsWorkersThatAreGone(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders")
	fill(t, q, 14, 0, "a")
	_, err := q.Claim(t.Context(), 14, time.Hour)
	require.NoError(t, err)
	for i := range 12 {
		lease(t, rdb, "orders", fmt.Sprintf("a%04d", i), "3600/AAAAAAAA")
	}
	s := newSite(t, rdb, Options{})
	says(t, rdb, "orders", map[string]any{"label": "mailer-<1>", "running": 3})
	s.get("/queues/orders").lacks(t, "Gone in the last hour")
	require.NoError(t, rdb.Del(t.Context(), "{Queue:orders}:workers").Err())
	s.later()
	got := s.get("/queues/orders?state=leased")
	got.has(t, "Gone in the last hour", "mailer-&lt;1&gt;", ">3 of 4<", `href="/queues/orders/tasks/a0000"`, "and 2 more", "which is gone</span>", "No worker lives")
	s.later()
	require.Equal(t, 1, strings.Count(s.get("/queues/orders").body, `data-key="gone `), "it is missed once")
	for _, tab := range []string{"due", "leased", "scheduled", "dead"} { // the filter stays where it fits
		s.get("/queues/orders?state=due&prefix=a000&worker=mailer").has(t, `href="/queues/orders?prefix=a000&amp;state=`+tab+"&amp;worker=mailer")
	}
	says(t, rdb, "orders", map[string]any{"label": "mailer-<1>", "running": 3})
	s.later()
	s.get("/queues/orders").lacks(t, "Gone in the last hour")
	newQueue(t, rdb, "mails")
	says(t, rdb, "mails", map[string]any{"id": "B&BBBBBB"})
	s.get("/queues/mails")
	require.NoError(t, rdb.Del(t.Context(), "{Queue:mails}:workers").Err())
	s.later()
	s.get("/queues/mails").has(t, "none was leased to it when it was missed", `href="/queues/mails?state=due&amp;worker=B%26BBBBBB"`)
}

// TestCrews_KeepThoseThatHadMost, for an hour.
func TestCrews_KeepThoseThatHadMost(t *testing.T) {
	t.Parallel()
	var c crews
	var all []sluice.WorkerInfo
	for i := range 100 {
		all = append(all, sluice.WorkerInfo{ID: fmt.Sprint("W", i), Label: strings.Repeat("x", 10_000), Running: i})
	}
	require.Empty(t, c.note(all))
	missed := c.note(all[:50])
	require.Len(t, missed, 50)
	c.bury(missed, []sluice.TaskInfo{{Entry: sluice.Entry{ID: "t"}, Worker: "W60"}})
	gone := c.lately()
	require.Len(t, gone, mostGone)
	require.Equal(t, []string{"t"}, gone[0].Tasks)
	require.Equal(t, 99, gone[1].Running)
	require.Less(t, len(gone[1].Label), 1000)
	for i := range c.gone {
		c.gone[i].Missed = time.Now().Add(-goneFor - time.Second)
	}
	require.Empty(t, c.lately())
}

// TestTask_NamesItsLastHolder after a lease has ended, until it is claimed again.
func TestTask_NamesItsLastHolder(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	q := newQueue(t, rdb, "orders")
	fill(t, q, 3, 0, "a")
	entries, err := q.Claim(t.Context(), 3, 5*time.Second)
	require.NoError(t, err)
	lease(t, rdb, "orders", "a0000", "1/AAAAAAAA")
	lease(t, rdb, "orders", "a0001", "1/ZZZZZZZZ")
	says(t, rdb, "orders", map[string]any{"label": "mailer-1"})
	s := newSite(t, rdb, Options{})
	s.get("/queues/orders/tasks/a0000").lacks(t, "Last leased by")
	require.Eventually(t, func() bool {
		stats, err := q.Stats(t.Context())
		return err == nil && stats.Leased == 0
	}, 30*time.Second, 20*time.Millisecond)
	s.later()
	for id, want := range map[string]string{"a0000": "mailer-1</bdi>", "a0001": "a worker that ", "a0002": "a loop of your own"} {
		got := s.get("/queues/orders/tasks/" + id)
		require.Equal(t, http.StatusOK, got.StatusCode)
		got.has(t, "Last leased by", want, "until the lease ended")
	}
	s.get("/queues/orders?state=due&worker=mailer").has(t, "a0000")
	s.get("/queues/orders?state=due&worker=mailer").lacks(t, "a0001", "a0002")
	require.NoError(t, q.Retry(t.Context(), 0, "why", entries...))
	s.later()
	s.get("/queues/orders/tasks/a0000").lacks(t, "Last leased by", "mailer-1")
}

// TestQueues_WorstFirst unless a visitor asks for another order, and signs say why.
func TestQueues_WorstFirst(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client(t)
	for _, name := range []string{"a-idle", "b-dead", "c-full", "d-unattended", "e-stuck", "f-later", "g-deserted"} {
		q := newQueue(t, rdb, name)
		fill(t, q, 2, time.Hour, "later")
		if name == "b-dead" {
			fill(t, q, 2, 0, "a")
			kill(t, q, 2, "broken")
		}
		if name == "c-full" || name == "d-unattended" || name == "g-deserted" {
			fill(t, q, 2, 0, "a")
		}
		if name == "c-full" {
			_, err := q.Claim(t.Context(), 1, time.Hour)
			require.NoError(t, err)
		}
		if name == "g-deserted" {
			require.NoError(t, rdb.HSet(t.Context(), "{Queue:g-deserted}:counts", "worked", time.Now().Add(-time.Minute).Unix()).Err())
		}
	}
	says(t, rdb, "c-full", nil)
	says(t, rdb, "e-stuck", map[string]any{"stuck": 2})
	s := newSite(t, rdb, Options{})
	got := s.get("/")
	got.has(t, "</svg>2 stuck<", "</svg>No room<", "2 queues with due tasks and no worker, 1 of which had one within a day", "1 queue without room", "1 queue with stuck handlers")
	require.Equal(t, []string{"e-stuck", "g-deserted", "d-unattended", "c-full", "b-dead", "a-idle", "f-later"}, rowsOf(got))
	got.lacks(t, "aria-sort", ">Worst first<")
	got = s.get("/?sort=name&q=-")
	require.Equal(t, []string{"a-idle", "b-dead", "c-full", "d-unattended", "e-stuck", "f-later", "g-deserted"}, rowsOf(got))
	got.has(t, `href="/?q=-&amp;sort=worst">Worst first<`)
}

// rowsOf returns the queues that a list has, in its order.
func rowsOf(a answer) (names []string) {
	for _, found := range regexp.MustCompile(`<tr data-key="([^"]*)"`).FindAllStringSubmatch(a.body, -1) {
		names = append(names, found[1])
	}
	return names
}

// TestListName_IsCutInItsMiddle in lists, where the whole is its title; characters stay whole.
func TestListName_IsCutInItsMiddle(t *testing.T) {
	t.Parallel()
	require.Equal(t, text("short"), listName("short"))
	require.Equal(t, text(strings.Repeat("ü", 48)), listName(strings.Repeat("ü", 48)))
	long := "begin<" + strings.Repeat("ü", 100) + `"end`
	got := string(listName(long))
	require.Contains(t, got, `title="begin&lt;`+strings.Repeat("ü", 100)+`&#34;end"`)
	require.Contains(t, got, "<bdi>begin&lt;"+strings.Repeat("ü", 24)+"</bdi>")
	require.Contains(t, got, strings.Repeat("ü", 12)+"&#34;end</bdi>")
	require.NotContains(t, string(listName(strings.Repeat("\xff", 1000))), "\xff")
}

// TestPage_CostsLittleWithManyQueues: what 330 queues with an hour of history need in the process,
// and what a viewer of the list is sent each two seconds. docs/page.md has the figures.
func TestPage_CostsLittleWithManyQueues(t *testing.T) {
	rdb := redistest.Start(t).Client(t)
	const n = 330
	for i := range n {
		fill(t, newQueue(t, rdb, fmt.Sprintf("team-%02d:service-%03d", i%17, i)), 1+i%7, time.Duration(i%3)*time.Hour, "a")
	}
	s := newSite(t, rdb, Options{})
	s.get("/")
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	start := time.Now().Add(-time.Hour)
	for name, series := range s.page.watch.series {
		series.past.points, series.past.samples = nil, nil
		for i := range 3600 {
			if now := start.Add(time.Duration(i) * time.Second); i%10 == 0 || i > 3500 { // at last a viewer looks all the time
				series.past.note(now, sluice.Stats{Due: int64(i*i*len(name)) % 90_000, Dead: int64(i)})
			}
		}
	}
	size := heap() - before
	t.Logf("an hour of %d queues: %.1f MB", n, float64(size)/1e6)
	require.Less(t, size, uint64(n*25_000))
	ask := func(accepts string) int {
		s.later()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/", nil)
		require.NoError(t, err)
		r.Header.Set("Accept-Encoding", accepts)
		r.Header.Set("Sluice-Live", "1")
		return len(s.send(r).body)
	}
	plain, packed := ask("identity"), ask("gzip")
	t.Logf("a viewer of the list: %d kB/s, compressed %d kB/s", plain/2000, packed/2000)
	require.Less(t, packed, plain/4)
	require.Less(t, packed, 200_000)
}
